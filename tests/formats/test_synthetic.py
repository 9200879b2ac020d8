"""Random weights that behave: a benchmark on NaNs or on one favourite expert would measure something else."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from strata.errors import StrataError
from strata.formats.geometry import GEOMETRIES, DeltaNet, Hyper
from strata.formats.mixes import find_mix, mixes_of
from strata.formats.quants import FORMATS
from strata.formats.synthetic import SyntheticCheckpoint, random_blocks, write_gguf
from strata.models import DecodedWeights, load_model, open_checkpoint
from strata.ops.router import route

SMALL = {"layers": 4, "width": 256, "vocab": 300, "heads": 4, "kv_heads": 2, "head_length": 64,
         "expert_count": 8, "used": 2, "ff": 64, "rope_dimensions": 16}  # fmt: skip
SMALLER = {
    "qwen4exp": GEOMETRIES["tiny"],
    "qwen35moe": replace(
        GEOMETRIES["qwen3.6-35b-a3b"], **SMALL, shared_ff=64, rope_sections=(3, 3, 2, 0),
        delta=DeltaNet(2, 4, state=64),
    ),
    "qwen3next": replace(
        GEOMETRIES["qwen3-next-80b-a3b"], **SMALL, shared_ff=64, delta=DeltaNet(2, 4, state=64, fused=True)
    ),
    "qwen3moe": replace(GEOMETRIES["qwen3-30b-a3b"], **SMALL | {"rope_dimensions": 64}),
}  # fmt: skip


def made_up(architecture: str, quant: str, seed: int = 0) -> SyntheticCheckpoint:
    geometry = SMALLER[architecture]
    return SyntheticCheckpoint(geometry, find_mix(geometry, quant), seed)


@pytest.mark.parametrize("format", FORMATS)
def test_weights_have_mean_zero_and_the_deviation_asked_for(format):
    blocks = random_blocks(format, 1024, seed=0)[:4000]
    weights = FORMATS[format].dequantize(blocks)
    assert weights.std() == pytest.approx(1024**-0.5, rel=0.03)
    assert abs(weights.mean()) < 0.2 * weights.std()  # codes of an even number of bits lean to one side


@pytest.mark.parametrize("architecture", SMALLER)
def test_a_made_up_model_loads_and_stays_of_order_one(architecture):
    checkpoint = made_up(architecture, next(iter(mixes_of(SMALLER[architecture]))))
    model = load_model(DecodedWeights(checkpoint, cache_bytes=1 << 28))
    tokens = np.random.default_rng(0).choice(300, 40, replace=False).tolist()
    logits = model.forward(tokens, model.new_state(), all_logits=True)
    assert 0.2 < logits.std() < 5
    between = np.corrcoef(logits.numpy())[np.triu_indices(len(tokens), 1)]
    assert np.abs(between).mean() < 0.7  # tokens matter


@pytest.mark.parametrize("name", ["qwen3.8-flash-next", "qwen3-30b-a3b"])
def test_routers_choose_all_experts_about_equally_often(name):
    geometry = GEOMETRIES[name]
    checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, "iq3_xxs"))
    weight = checkpoint.read("blk.0.ffn_gate_inp.weight")
    x = torch.randn(1000, geometry.width, generator=torch.Generator().manual_seed(0))
    experts, _ = route(x @ weight.T, geometry.used)
    counts = experts.flatten().bincount(minlength=geometry.expert_count)
    mean = 1000 * geometry.used / geometry.expert_count
    assert counts.min() > mean / 4 and counts.max() < 4 * mean


def test_no_two_experts_are_alike():
    checkpoint = made_up("qwen3moe", "iq3_xxs")
    tensor = checkpoint.tensors["blk.0.ffn_gate_exps.weight"]
    experts = {checkpoint.raw(tensor.name, e).tobytes() for e in range(tensor.shape[0])}
    experts |= {checkpoint.raw("blk.1.ffn_gate_exps.weight", e).tobytes() for e in range(tensor.shape[0])}
    assert len(experts) == 2 * tensor.shape[0]


def test_a_read_gives_the_same_at_any_time_and_another_seed_another():
    one, two, other = (made_up("qwen3moe", "q3_k", seed) for seed in (1, 1, 2))
    for name in reversed(one.tensors):
        two.raw(name)
    assert all(np.array_equal(one.raw(name), two.raw(name)) for name in one.tensors)
    differ = [n for n in one.tensors if not np.array_equal(one.raw(n), other.raw(n))]
    assert len(differ) > len(one.tensors) / 2


@pytest.mark.parametrize("name", ["blk.0.ffn_down_exps.weight", "token_embd.weight", "output_hc_norm.weight"])
def test_slices_and_rows_are_those_of_the_whole(name):
    checkpoint = made_up("qwen4exp", "iq3_xxs")
    whole = checkpoint.read(name)
    assert whole.shape == checkpoint.tensors[name].shape
    assert torch.equal(checkpoint.read(name, 3), whole[3])
    assert checkpoint.raw(name).nbytes == checkpoint.tensors[name].num_bytes
    if whole.dim() == 2:
        rows = torch.tensor([5, 0, 511])
        assert torch.equal(checkpoint.read_rows(name, rows), whole[rows])
    with pytest.raises(IndexError, match="first dimension"):
        checkpoint.raw(name, whole.shape[0])


def test_pieces_that_go_round_the_pool_are_joined():
    geometry = GEOMETRIES["qwen3.8-flash-next"]
    checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, "q2_0"))
    pool = 4 << 20
    wide = checkpoint.raw("blk.0.attn_qkv.weight")  # 11 MB
    assert (
        wide.shape == (10240, 1100)
        and len(list(checkpoint.pieces("blk.0.attn_qkv.weight"))) > wide.nbytes / pool
    )
    assert np.array_equal(checkpoint.raw("blk.0.attn_qkv.weight", 10239), wide[10239])
    # the n-gram table of 28.8 GB is never made
    assert checkpoint.read_rows("per_layer_token_embd.weight", torch.tensor([0, 320001535])).shape == (2, 160)


@pytest.mark.parametrize("architecture, quant", [("qwen3moe", "iq3_xxs"), ("qwen4exp", "q2_0")])
def test_a_file_holds_the_same_model(architecture, quant, tmp_path):
    checkpoint, path = made_up(architecture, quant), tmp_path / "model.gguf"
    steps = []
    write_gguf(checkpoint, path, lambda done, total: steps.append(done / total))
    file = open_checkpoint(path)
    assert dict(file.tensors) == dict(checkpoint.tensors)
    assert all(np.array_equal(file.raw(name), checkpoint.raw(name)) for name in file.tensors)
    for key, value in checkpoint.metadata.items():
        assert file.metadata[key] == (pytest.approx(value) if isinstance(value, float) else value), key
    assert steps == sorted(steps) and steps[-1] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


def test_a_disk_without_room_is_said_before_it_is_full(tmp_path):
    geometry = replace(GEOMETRIES["qwen3.8-flash-next"], hyper=Hyper(ngram_rows=10**12, ngram_heads=1))
    checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, "q2_0"))
    with pytest.raises(StrataError, match=r"takes \d+.* GB, the disk has"):
        write_gguf(checkpoint, tmp_path / "model.gguf", lambda done, total: None)
    with pytest.raises(StrataError, match="there is no folder"):
        write_gguf(made_up("qwen3moe", "q4_k"), tmp_path / "no" / "model.gguf", lambda done, total: None)


@pytest.mark.parametrize("architecture, quant", [("qwen3moe", "iq3_xxs"), ("qwen4exp", "ud-iq3_xxs")])
def test_llama_cpp_reads_the_same_model(architecture, quant, tmp_path):
    pytest.importorskip("llama_cpp")
    from llamacpp import LlamaCpp

    checkpoint, path = made_up(architecture, quant), tmp_path / "model.gguf"
    write_gguf(checkpoint, path, lambda done, total: None)
    tokens = np.random.default_rng(0).integers(0, 300, 40).tolist()
    model = load_model(DecodedWeights(checkpoint, cache_bytes=1 << 28))
    ours = model.forward(tokens, model.new_state(), all_logits=True).numpy()
    engine = LlamaCpp(path, 64, threads=1)
    theirs = engine.forward(tokens, all_logits=True)
    engine.close()
    # llama.cpp rounds activations to 8 bits, which may choose another expert now and then
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.98
