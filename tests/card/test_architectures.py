"""Every architecture on a card, in Triton's interpreter, beside the processor's kernels."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

pytest.importorskip("triton")

from strata.card.feed_forward import card_feed_forward
from strata.card.mixers import card_mixer
from strata.card.products import Activations
from strata.errors import UnsupportedModelError
from strata.formats.geometry import Geometry
from strata.ops.triton.catalog import largest_error
from tests.helpers.card_runs import on_card, rows_of, window
from tests.helpers.tiny_models import EXPERTS, FUSED, HYBRID, TINY, TinyCheckpoint
from tests.helpers.triton_interpreter import repair_bfloat16

repair_bfloat16()

TOLERANCE = 2e-3  # the card keeps keys and values in float16 ...
QUANTISED_TOLERANCE = 2e-2  # ... by which some quantised activations come to have the next code
TOKENS = [11, 30, 7]

YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 8,
}
BIASES = {f"blk.0.attn_{part}.bias": (width,) for part, width in (("q", 32), ("k", 16), ("v", 16))}
BIASES |= {f"blk.0.{name}.bias": (32,) for name in ("attn_output", "ffn_gate", "ffn_down")}
SCALES = {f"blk.0.ffn_{part}_exps.scale": (4,) for part in ("gate", "up", "down")}
FLOATS = {"query_key": "F16", "value": "F32"}
QUANTISED = {"experts": "Q4_0", "experts_down": "Q8_0"}
LLAMA = replace(TINY, qk_norm=False)
MIXTRAL = replace(LLAMA, kv_heads=2, **EXPERTS)
QWEN3 = replace(TINY, architecture="qwen3")
QWEN3_MOE = replace(QWEN3, architecture="qwen3moe", **EXPERTS)
QWEN3_NEXT = replace(TINY, architecture="qwen3next", shared_ff=32, **EXPERTS, **FUSED)
QWEN35 = replace(TINY, architecture="qwen35", **HYBRID)
QWEN35_MOE = replace(TINY, architecture="qwen35moe", shared_ff=32, **EXPERTS, **HYBRID)


def early_next(formats: dict[str, str]) -> TinyCheckpoint:
    """Early files of Qwen3-Next have qkv and z in one matrix."""
    less = ("attn_qkv.weight", "attn_gate.weight")
    return TinyCheckpoint(QWEN3_NEXT, formats, more={"blk.0.ssm_in.weight": (192, 32)}, less=less)


MODELS: dict[str, Callable[[], TinyCheckpoint]] = {
    "llama": partial(TinyCheckpoint, LLAMA, {}, {"attention.sliding_window": 2}),
    "llama with biases, an extended context": partial(TinyCheckpoint, LLAMA, FLOATS, YARN, BIASES),
    "mixtral": partial(TinyCheckpoint, MIXTRAL, QUANTISED),
    "qwen3, tied": partial(TinyCheckpoint, replace(QWEN3, tied=True), {}),
    "qwen35": partial(TinyCheckpoint, replace(QWEN35, layers=2), {}),
}


@torch.inference_mode()
@pytest.mark.parametrize("case", MODELS)
def test_windows_agree_with_the_processor(case: str):
    """Of three rows the third is rejected; then the lane goes on beside another one.

    Qwen3-Next and the experts of Qwen3.5 differ from these in layers that are compared below.
    """
    model = on_card(MODELS[case]())
    reference = model.model
    want = reference.forward(TOKENS, reference.new_state(), all_logits=True)
    other = reference.forward([5], reference.new_state())
    first = window(model, [1, 1, 1], [0, 1, 2], [*TOKENS[:2], 3], [0, 0])
    second = window(model, [0, 1], [0, 2], [5, TOKENS[2]], [0, 2])
    got = torch.cat([first[:2], second[1:]])
    tolerance = QUANTISED_TOLERANCE if reference.expert_layers() else TOLERANCE
    assert largest_error(got, want) < tolerance
    assert largest_error(second[:1], other) < tolerance


@torch.inference_mode()
@pytest.mark.parametrize(
    ("geometry", "formats", "more"),
    [
        (replace(QWEN3_MOE, width=64), {"experts": "NVFP4", "experts_down": "Q4_0"}, SCALES),
        (
            QWEN35_MOE,
            {"experts": "Q8_0", "experts_down": "Q8_0", "shared": "Q8_0", "shared_down": "Q8_0"},
            {},
        ),
        (QWEN35_MOE, {**QUANTISED, "router": "F16", "shared": "F16"}, {}),
        (QWEN35_MOE, {**QUANTISED, "shared": "F16"}, {}),
    ],
    ids=["factors", "shared expert", "shared expert like the router", "shared expert of other floats"],
)
def test_quantised_experts_agree_with_the_processor(geometry: Geometry, formats, more):
    """Their products have the same bits; router and shares are floats."""
    model = on_card(TinyCheckpoint(geometry, formats, {"expert_weights_norm": False}, more))
    layer = next(iter(model.model.expert_layers().values()))
    x = torch.randn(3, geometry.width, generator=torch.Generator().manual_seed(0))
    experts = card_feed_forward(layer, model.memory)
    assert experts.wants_quantized
    got = experts(Activations(x), rows_of(model, [0, 0, -1], [0, 1, 0], [0, 0]))
    assert largest_error(got[:2], layer(x[:2])) < 1e-6
    assert model.counts[0].sum() == 4  # two rows of two experts


@torch.inference_mode()
@pytest.mark.parametrize("make", [partial(TinyCheckpoint, QWEN3_NEXT), early_next], ids=["ssm_ba", "ssm_in"])
def test_quantised_rows_of_heads_are_put_in_order(make: Callable[[dict[str, str]], TinyCheckpoint]):
    model = on_card(make({"query_key": "Q8_0", "gate": "Q8_0", "ssm_ba": "Q8_0"}))
    layer = model.model.blocks[0].mixer
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    mixer = card_mixer(layer, model.memory)
    got = mixer(Activations(x), rows_of(model, [0, 0], [0, 1], [0, 0]))
    assert largest_error(got, layer(x, None, layer.new_state())) < 1e-5


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (TinyCheckpoint(replace(QWEN3, head_length=24), {}), "heads of 24 values .attention.key_length"),
        (
            TinyCheckpoint(replace(QWEN35, delta=replace(QWEN35.delta, state=24)), {}),
            "heads of 24 values .ssm.state_size",
        ),
        (
            TinyCheckpoint(QWEN3_MOE, {"experts_down": "Q8_0"}),
            "experts of BF16, BF16, Q8_0 .gate, up, d",
        ),
        (TinyCheckpoint(QWEN3_MOE, {}, more=SCALES), "experts of BF16 with factors beside them"),
        (
            TinyCheckpoint(QWEN3_MOE, {}, more={"blk.0.ffn_gate_inp.bias": (4,)}),
            "blk.0.ffn_gate_inp.weight has a bias",
        ),
    ],
    ids=["attention", "delta net", "mixed experts", "factors of floats", "router"],
)
def test_what_does_not_run_on_a_card_is_named(checkpoint: TinyCheckpoint, message: str):
    with pytest.raises(UnsupportedModelError, match=message):
        on_card(checkpoint)


def test_the_experts_of_a_draft_stay_in_the_file():
    nextn = {"enorm": (32,), "hnorm": (32,), "eh_proj": (32, 64)}
    more = {f"blk.1.nextn.{name}.weight": shape for name, shape in nextn.items()}
    geometry, keys = replace(QWEN35_MOE, layers=2), {"nextn_predict_layers": 1}
    model = on_card(TinyCheckpoint(geometry, {}, keys, more))
    assert model.model.draft is not None and len(model.weights.stacks) == 2
    assert model.num_layers == len(model.addresses) == len(model.counts) == 1


def test_dense_matrices_of_fp8_are_refused():
    checkpoint, name = TinyCheckpoint(LLAMA, {}), "blk.0.attn_q.weight"
    checkpoint.tensors[name] = replace(checkpoint.tensors[name], format="F8_E4M3")
    with pytest.raises(UnsupportedModelError, match=f"{name} is F8_E4M3, which a card does not multiply"):
        on_card(checkpoint)
