"""`strata synth`: a made-up model that runs, or a file."""

import json

import numpy as np
import pytest

from strata.cli import main
from strata.engine import loading
from strata.experts.trace import Trace
from strata.formats.checkpoint import open_checkpoint
from strata.options import EMBEDDED_MODEL

pytest.importorskip("strata.native._core")
SHORT = ["--prompt-tokens", "20", "--decode-tokens", "4", "--threads", "1"]


def test_tokens_per_second_are_told(capsys):
    assert main(["synth", "tiny", "--quant", "q2_0", *SHORT]) == 0
    text = capsys.readouterr().out
    assert text.startswith("tiny q2_0, 4 layers, made-up weights; ")
    assert "prompt of 20: " in text and "decoding 4: " in text


def test_json_has_the_times(capsys):
    arguments = ["--layers", "3", "--experts", "8", "--json", *SHORT]
    assert main(["synth", "tiny", "--quant", "ud-iq3_xxs", *arguments]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["model"], measured["layers"]) == ("tiny ud-iq3_xxs", 3)
    assert measured["prompt_s"] > 0 and measured["decode_s"] > 0 and measured["memory_bytes"] > 0


def test_float_matrices_can_be_requantised(capsys, tmp_path):
    sizes = {}
    for dense in ("as_stored", "q8_0"):
        arguments = ["--layers", "2", "--experts", "8", "--json", "--dense", dense, *SHORT]
        assert main(["synth", "tiny", "--quant", "iq3_xxs", *arguments]) == 0
        sizes[dense] = json.loads(capsys.readouterr().out)["memory_bytes"]
    assert sizes["q8_0"] < sizes["as_stored"]
    out = str(tmp_path / "model.gguf")
    assert main(["synth", "tiny", "--quant", "q2_0", "--dense", "q8_0", "--out", out]) == 1
    assert "--dense q8_0: is made while a model is loaded" in capsys.readouterr().err


def test_a_file_is_the_same_model(capsys, tmp_path):
    out = tmp_path / "model.gguf"
    assert main(["synth", "tiny", "--quant", "q2_0", "--layers", "2", "--out", str(out)]) == 0
    assert "model.gguf: 0.0" in capsys.readouterr().out
    assert open_checkpoint(out).metadata["qwen4exp.block_count"] == 2


def test_a_recorded_trace_can_be_forced(capsys, tmp_path, monkeypatch):
    tokens, trace = tmp_path / "tokens.json", tmp_path / "trace.npz"
    tokens.write_text("[1, 2, 3, 4, 5]")
    recording = ["--tokens", str(tokens), "--out", str(tmp_path / "l.npy"), "--record-trace", str(trace)]
    assert main(["logits", "--model", str(EMBEDDED_MODEL), "--threads", "1", *recording]) == 0
    recorded = Trace.load(trace)
    assert recorded.ids.shape == (5, 8, 4) and len(np.unique(recorded.ids)) > 8
    capsys.readouterr()
    # of another model, of which nothing is made first
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load", None)
        assert main(["synth", "tiny", "--quant", "q2_0", "--trace", str(trace), *SHORT]) == 1
    assert f"{trace}: the trace has 8 layers of 32 experts" in capsys.readouterr().err.replace("\n", " ")
    # of this one
    arguments = ["--layers", "8", "--experts", "32", "--trace", str(trace), *SHORT]
    assert main(["synth", "tiny", "--quant", "q2_0", *arguments]) == 0


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["gpt-2", "--quant", "q2_0"], "gpt-2: known models are qwen3.8-flash-next"),
        (["tiny"], "--quant is missing: tiny comes in q2_0"),
        (["tiny", "--quant", "q2_0", "--trace", "missing.npz"], "missing.npz: cannot be read"),
        (
            ["tiny", "--quant", "q2_0", "--prompt-tokens", "4090", "--decode-tokens", "7"],
            "--prompt-tokens 4090 and --decode-tokens 7 make 4097 tokens; tiny was made for 4096",
        ),
    ],
)
def test_mistakes_are_named(arguments, says, capsys):
    assert main(["synth", *arguments]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "free, says", [(8 << 30, "There is room for --layers 7; fewer"), (0, "short (most of")]
)
def test_what_does_not_fit_says_what_helps(free, says, capsys, monkeypatch):
    monkeypatch.setattr(loading, "available_bytes", lambda: free)
    monkeypatch.setattr(loading, "_own_bytes", lambda: 300 << 20)
    assert main(["synth", "qwen3.8-flash-next", "--quant", "iq3_xxs", "--threads", "1", *SHORT[:4]]) == 1
    error = capsys.readouterr().err
    assert (
        "qwen3.8-flash-next iq3_xxs, 48 layers: does not fit. RAM: needs 45.9 GiB" in error and says in error
    )
    assert "--reference" not in error
