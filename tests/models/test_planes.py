"""Whole models on the processor's kernels: near the reference, and every row as if it were alone."""

import itertools
from pathlib import Path

import pytest
import torch
from perplexity import text_windows

from strata.models import Model
from strata.native import num_threads, set_num_threads
from strata.options import EMBEDDED_MODEL
from tests.helpers.hf_models import TOLERANCE, relative_error, save_hf, tiny
from tests.helpers.hybrid_models import EXPERTS, PIECES, QWEN4, tiny_hybrid
from tests.helpers.models import native_model, reference_model

MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
MODELS = {
    "llama": lambda: tiny("Llama"),
    "biases": lambda: tiny("Llama", attention_bias=True, mlp_bias=True),
    "mixtral": lambda: tiny("Mixtral", num_local_experts=6, num_experts_per_tok=2),
    "window": lambda: tiny("Mistral", sliding_window=40),
    "qwen3": lambda: tiny("Qwen3", head_dim=16),
    "qwen3moe": lambda: tiny("Qwen3Moe", head_dim=16, **MOE),
    "qwen3next": lambda: tiny_hybrid("Qwen3NextConfig", "Qwen3NextForCausalLM", **EXPERTS),
    "qwen35": lambda: tiny_hybrid("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "qwen35moe": lambda: tiny_hybrid("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", **EXPERTS),
    "qwen4exp": lambda: tiny_hybrid("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM", **QWEN4),
}
HELDOUT = Path(__file__).parents[1] / "data" / "heldout.txt"
TOKENS = [(37 * i) % 90 + 6 for i in range(140)]


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hf(MODELS[request.param](), tmp_path_factory.mktemp("hf"))


@pytest.fixture
def threads():
    before = num_threads()
    yield
    set_num_threads(before)


@torch.inference_mode()
def logits_in_pieces(model: Model, tokens: list[int], cuts: list[int]) -> torch.Tensor:
    bounds = [0, *cuts, len(tokens)]
    state = model.new_state()
    pieces = [model.forward(tokens[a:b], state, all_logits=True) for a, b in itertools.pairwise(bounds)]
    return torch.cat(pieces)


def test_float_weights_give_the_reference_and_any_cut_the_same_bits(folder: Path):
    """1e-4 relative: nothing is quantised in these files, so only the order of sums differs."""
    model, reference = native_model(folder), reference_model(folder)
    whole = logits_in_pieces(model, TOKENS, [])
    assert relative_error(whole, logits_in_pieces(reference, TOKENS, [])) < TOLERANCE
    for name, cuts in PIECES.items():
        assert torch.equal(logits_in_pieces(model, TOKENS, list(cuts)), whole), name
    assert torch.equal(logits_in_pieces(model, TOKENS, list(range(1, len(TOKENS)))), whole), "one by one"
    with torch.inference_mode():
        assert torch.equal(model.forward(TOKENS, model.new_state()), whole[-1:]), "only the last logits"


@pytest.mark.parametrize("count", [2, 3])
def test_threads_do_not_show(folder: Path, threads: None, count: int):
    model = native_model(folder)
    set_num_threads(1)
    alone = logits_in_pieces(model, TOKENS, [100])
    set_num_threads(count)
    assert torch.equal(logits_in_pieces(model, TOKENS, [100]), alone)


QUANTISED_TOKENS = [(37 * i) % 7000 + 300 for i in range(90)]


def test_quantised_any_cut_gives_the_same_bits():
    """The embedded model, Q4_K_M."""
    model = native_model(EMBEDDED_MODEL)
    whole = logits_in_pieces(model, QUANTISED_TOKENS, [])
    for cuts in ([1, 2, 3, 5, 9, 18, 34], [64], [89]):
        assert torch.equal(logits_in_pieces(model, QUANTISED_TOKENS, cuts), whole), cuts


def test_quantised_stays_near_the_reference():
    """Activations are rounded to 8 bits: a few hundredths of the logits, as in llama.cpp (0.024)."""
    tokens = text_windows(EMBEDDED_MODEL, HELDOUT, 1 << 16, 200)[0]
    ours = logits_in_pieces(native_model(EMBEDDED_MODEL), tokens, [])
    reference = logits_in_pieces(reference_model(EMBEDDED_MODEL), tokens, [])
    error = ((ours - reference).norm() / reference.norm()).item()
    assert 0.001 < error < 0.05
