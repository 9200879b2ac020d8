"""Both engines on what llama.cpp's quantiser writes; the whole table is in docs/agreement.md."""

import pytest

from strata.options import EMBEDDED_MODEL

pytest.importorskip("llama_cpp")


@pytest.mark.parametrize("format", ["Q4_0", "Q2_0"])
def test_perplexity_is_llama_cpps(format):
    from perplexity import text_windows
    from perplexity_by_format import HELD_OUT, measure

    windows = text_windows(EMBEDDED_MODEL, HELD_OUT, 512, 512)
    assert measure(EMBEDDED_MODEL, format, windows, 1)["ratio"] == pytest.approx(1, abs=0.01)
