"""`llama` against transformers' Llama, Mistral and Mixtral, from safetensors and from GGUF."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from strata.errors import ModelFileError, UnsupportedModelError
from strata.models import open_checkpoint
from tests.helpers.gguf_files import write_gguf
from tests.helpers.hf_models import (
    assert_agrees,
    gguf_tensors,
    prompt,
    relative_error,
    save_gguf,
    save_hf,
    tiny,
)
from tests.helpers.models import reference_model

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gqa": ("Llama", {}),
    "one head of keys": ("Llama", {"num_key_value_heads": 1}),
    "tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "head_dim": ("Llama", {"head_dim": 24}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "window": ("Mistral", {"sliding_window": 13}),
    "experts": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "experts with window": (
        "Mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 9},
    ),
}


def gguf_keys(reference: Any) -> dict[str, Any]:
    window = getattr(reference.config, "sliding_window", None)
    return {"attention__sliding_window": window} if window else {}


@pytest.mark.parametrize("case", MODELS)
def test_agrees_with_transformers(case: str, tmp_path: Path):
    name, fields = MODELS[case]
    reference = tiny(name, **fields)
    from_safetensors = reference_model(save_hf(reference, tmp_path / "hf"))
    path = save_gguf(reference, tmp_path / "model.gguf", "llama", **gguf_keys(reference))
    from_gguf = reference_model(path)
    assert_agrees(from_safetensors, reference, length=37)
    assert_agrees(from_gguf, reference, length=37)


SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
    "yarn with attention factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.3,
    },
}


@pytest.mark.parametrize("case", SCALINGS)
def test_extended_context_agrees_at_long_positions(case: str, tmp_path: Path):
    scaling = {"rope_theta": 10000.0, **SCALINGS[case]}
    reference = tiny("Llama", head_dim=32, rope_parameters=scaling)
    model = reference_model(save_hf(reference, tmp_path))
    assert_agrees(model, reference, length=1500, steps=4)


def test_rope_freqs_of_a_gguf(tmp_path: Path):
    """Llama 3.1's scaling is a tensor in GGUF: the frequencies' divisors, by llama.cpp's formula."""
    scaling = {"rope_theta": 10000.0, **SCALINGS["llama3"]}
    reference = tiny("Llama", head_dim=32, rope_parameters=scaling)
    divisors = []
    for frequency in 10000.0 ** -(np.arange(0, 32, 2) / 32):
        wavelength = 2 * np.pi / frequency
        smooth = (128 / wavelength - 1.0) / (4.0 - 1.0)
        between = 1 / ((1 - smooth) / 8.0 + smooth)
        divisors.append(1.0 if wavelength < 128 / 4 else 8.0 if wavelength > 128 else between)
    assert len(set(divisors)) > 3  # some kept, some divided, some between
    path = save_gguf(reference, tmp_path / "plain.gguf", "llama")
    keys = {k: v for k, v in open_checkpoint(path).metadata.items() if k.startswith("llama.")}
    tensors = gguf_tensors(reference, "llama") | {"rope_freqs.weight": np.array(divisors, np.float32)}
    model = reference_model(write_gguf(tmp_path / "model.gguf", tensors, keys))
    assert_agrees(model, reference, length=400, steps=2)


def test_experts_in_a_tensor_each(tmp_path: Path):
    """Mixtral files of early 2024 have `blk.0.ffn_gate.3.weight` where later ones have a stack."""
    reference = tiny("Mixtral", num_local_experts=4)
    stacked = open_checkpoint(save_gguf(reference, tmp_path / "stacked.gguf", "llama"))
    keys = {k: v for k, v in stacked.metadata.items() if k.startswith("llama.")}
    tensors = {}
    for name, array in gguf_tensors(reference, "llama").items():
        if "_exps" in name:
            tensors |= {name.replace("_exps", f".{i}"): array[i] for i in range(len(array))}
        else:
            tensors[name] = array
    model = reference_model(write_gguf(tmp_path / "model.gguf", tensors, keys))
    assert_agrees(model, reference, length=20, steps=4)


def test_only_the_last_logits_unless_all_are_asked_for(tmp_path: Path):
    model = reference_model(save_hf(tiny("Llama"), tmp_path))
    last = model.forward(prompt(9), model.new_state())
    every = model.forward(prompt(9), model.new_state(), all_logits=True)
    assert last.shape == (1, every.shape[1]) and relative_error(last, every[-1:]) < 1e-5


def test_a_sequence_is_cut_anywhere(tmp_path: Path):
    model = reference_model(save_hf(tiny("Llama"), tmp_path))
    state = model.new_state()
    model.forward(prompt(70), state)
    checkpoint = state.checkpoint()
    model.forward(prompt(30, seed=2), state)
    state.rewind(checkpoint)
    state.truncate(50)
    logits = model.forward([7], state)
    straight = model.forward([*prompt(70)[:50], 7], model.new_state())
    assert not state.recurrent and state.position == 51
    assert relative_error(logits, straight) < 1e-5


def test_without_a_cache_nothing_is_kept(tmp_path: Path):
    reference = tiny("Mixtral", num_local_experts=4)
    model = reference_model(open_checkpoint(save_hf(reference, tmp_path)), 0)
    with torch.no_grad():
        expected = reference(torch.tensor([prompt(9)])).logits[0]
    assert relative_error(model.forward(prompt(9), model.new_state(), all_logits=True), expected) < 1e-4
    assert model.token_embd.weights.cached_bytes == 0


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"rope__scaling__type": "longrope"}, UnsupportedModelError, "rope.scaling.type is 'longrope'"),
        ({"rope__scaling__factor": -2.0}, ModelFileError, "rope.scaling.factor must be positive, not -2.0"),
        ({"rope__freq_base": 1.0}, ModelFileError, "rope.freq_base must be above 1, not 1.0"),
        ({"rope__freq_base": float("nan")}, ModelFileError, "llama.rope.freq_base must be positive, not nan"),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 2.0,
                "rope__scaling__yarn_beta_fast": 0.0,
            },
            ModelFileError,
            "rope.scaling.yarn_beta_fast must be positive, not 0.0",
        ),
        ({"block_count": 2**31 - 1}, ModelFileError, "block_count 2147483647 with 0 draft layers .* tensors"),
        ({"nextn_predict_layers": 2}, ModelFileError, "block_count 2 with 2 draft layers"),
        ({"expert_weights_norm": "false"}, ModelFileError, "llama.expert_weights_norm has the value 'false'"),
        ({"expert_count": "four"}, ModelFileError, "llama.expert_count has the value 'four'"),
        ({"rope__dimension_count": 10}, ModelFileError, "10 rotated values .* head of 8"),
        ({"rope__dimension_count": 5}, ModelFileError, "5 rotated values"),
        ({"expert_used_count": 9}, ModelFileError, "blk.0 cannot use 9 of 4 experts"),
        ({"expert_count": 5}, ModelFileError, r"ffn_gate_inp.weight has shape \[4, 32\].*\[5, 32\]"),
        ({"expert_gating_func": 2}, UnsupportedModelError, "llama.expert_gating_func is 2"),
        ({"expert_weights_scale": 2.5}, UnsupportedModelError, "llama.expert_weights_scale is 2.5"),
        ({"feed_forward_length": 49}, ModelFileError, r"\[4, 48, 32\].*\[4, 49, 32\]"),
    ],
)
def test_a_key_that_does_not_fit_is_named(keys: dict[str, Any], error: type, message: str, tmp_path: Path):
    path = save_gguf(tiny("Mixtral", num_local_experts=4), tmp_path / "model.gguf", "llama", **keys)
    with pytest.raises(error, match=message):
        reference_model(path)


@pytest.mark.parametrize("beta", [1e-38, 3e38])
def test_a_bound_of_yarn_may_be_any_positive_number(beta: float, tmp_path: Path):
    keys = {"type": "yarn", "factor": 2.0, "yarn_beta_fast": beta, "yarn_beta_slow": beta}
    keys = {f"rope__scaling__{key}": value for key, value in keys.items()}
    path = save_gguf(tiny("Llama"), tmp_path / "model.gguf", "llama", **keys)
    model = reference_model(path)
    assert model.forward(prompt(3), model.new_state()).isfinite().all()


def test_a_tensor_without_a_place_is_named(tmp_path: Path):
    reference = tiny("Llama")
    keys = open_checkpoint(save_gguf(reference, tmp_path / "plain.gguf", "llama")).metadata
    tensors = gguf_tensors(reference, "llama") | {"blk.1.attn_q_norm.weight": np.ones(8, np.float32)}
    path = write_gguf(
        tmp_path / "model.gguf", tensors, {k: v for k, v in keys.items() if k.startswith("llama.")}
    )
    with pytest.raises(UnsupportedModelError, match=r"1 tensors have no place.*blk\.1\.attn_q_norm"):
        reference_model(path)


def test_quantised_weights_are_the_decoded_ones(tmp_path: Path):
    """A Q8_0 file gives the logits of a float32 file of its decoded values."""
    reference = tiny("Llama", hidden_size=64, intermediate_size=96)
    q8 = gguf.GGMLQuantizationType.Q8_0
    exact, quantised = {}, {}
    for name, array in gguf_tensors(reference, "llama").items():
        matrix = array.ndim == 2
        decoded = gguf.quants.dequantize(gguf.quants.quantize(array, q8), q8) if matrix else array
        exact[name], quantised[name] = decoded, (decoded, "Q8_0") if matrix else array
    keys = open_checkpoint(save_gguf(reference, tmp_path / "plain.gguf", "llama")).metadata
    keys = {k: v for k, v in keys.items() if k.startswith("llama.")}
    logits = []
    for name, tensors in (("exact", exact), ("q8", quantised)):
        path = write_gguf(tmp_path / f"{name}.gguf", tensors, keys)
        model = reference_model(path)
        logits.append(model.forward(prompt(20), model.new_state(), all_logits=True))
    assert relative_error(logits[1], logits[0]) < 1e-5
