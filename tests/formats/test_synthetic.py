"""Random weights that behave: a benchmark on NaNs or on one favourite expert would measure something else."""

import numpy as np
import pytest
import torch
from synthetic import QWEN3MOE_FORMATS, Qwen3Moe, Qwen4Exp, draw, random_blocks, write

from strata.formats.quants import FORMATS
from strata.models import DecodedWeights, load_model, open_checkpoint
from strata.ops.router import route

SHAPES = [
    Qwen3Moe(
        "IQ3_XXS", 2, 300, width=256, heads=4, kv_heads=2, head_length=64, expert_count=8, used=2, ff=256
    ),
    Qwen4Exp(
        *(4, 300, 8, 2, 64),
        **{"width": 256, "heads": 4, "kv_heads": 2, "head_length": 64, "key_heads": 2, "value_heads": 4},
        **{"state": 64, "low_rank": 32, "index_heads": 2, "index_length": 64},
    ),
]


@pytest.mark.parametrize("format", sorted({f for mix in QWEN3MOE_FORMATS.values() for f in mix} | {"Q8_0"}))
def test_weights_have_mean_zero_and_the_deviation_asked_for(format):
    blocks = random_blocks(format, 64, 1024, np.random.default_rng(0))
    weights = FORMATS[format].dequantize(blocks.reshape(-1, FORMATS[format].block_bytes))
    assert weights.std() == pytest.approx(1024**-0.5, rel=0.03)
    assert abs(weights.mean()) < 0.2 * weights.std()  # codes of an even number of bits lean to one side


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.architecture)
def test_a_synthetic_model_loads_and_stays_of_order_one(shape, tmp_path):
    path = write(shape, tmp_path / "model.gguf")
    model = load_model(DecodedWeights(open_checkpoint(path), cache_bytes=1 << 28))
    tokens = np.random.default_rng(0).integers(0, shape.vocab, 40).tolist()
    logits = model.forward(tokens, model.new_state(), all_logits=True)
    assert 0.2 < logits.std() < 5
    assert len(set(logits.argmax(-1).tolist())) > 20  # tokens matter


@pytest.mark.parametrize("shape", [Qwen3Moe(), Qwen4Exp()], ids=lambda shape: shape.architecture)
def test_routers_choose_all_experts_about_equally_often(shape):
    router = next(tensor for tensor in shape.tensors() if tensor.name == "blk.0.ffn_gate_inp.weight")
    weight = torch.from_numpy(draw(router, np.random.default_rng(0)).view(np.float32))
    x = torch.randn(1000, shape.width, generator=torch.Generator().manual_seed(0))
    experts, _ = route(x @ weight.T, shape.used)
    counts = experts.flatten().bincount(minlength=shape.expert_count)
    mean = 1000 * shape.used / shape.expert_count
    assert counts.min() > mean / 4 and counts.max() < 4 * mean


def test_experts_share_no_bytes():
    tensor = next(t for t in SHAPES[0].tensors() if t.name == "blk.0.ffn_gate_exps.weight")
    experts = draw(tensor, np.random.default_rng(0)).reshape(tensor.shape[0], -1)
    assert len({expert.tobytes() for expert in experts}) == len(experts)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.architecture)
def test_llama_cpp_reads_the_same_model(shape, tmp_path):
    pytest.importorskip("llama_cpp")
    from llamacpp import LlamaCpp

    path = write(shape, tmp_path / "model.gguf")
    tokens = np.random.default_rng(0).integers(0, shape.vocab, 40).tolist()
    model = load_model(DecodedWeights(open_checkpoint(path), cache_bytes=1 << 28))
    ours = model.forward(tokens, model.new_state(), all_logits=True).numpy()
    engine = LlamaCpp(path, 64, threads=1)
    theirs = engine.forward(tokens, all_logits=True)
    engine.close()
    # llama.cpp rounds activations to 8 bits, which may choose another expert now and then
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.98
