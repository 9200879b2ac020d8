"""Whether an engine runs on a card, and what it keeps for the next run."""

import builtins
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from strata.engine import card_loading
from strata.engine.card_loading import _Learned, load_on_card
from strata.engine.messages import EngineConfig
from strata.errors import EngineError, StrataError, UnsupportedModelError
from strata.options import Options
from strata.serve.engine_config import engine_config

CHECKPOINT = SimpleNamespace(path=Path("m.gguf"), tensors={"a": SimpleNamespace(num_bytes=6)})


def load(card: str = "auto", **options):
    config = EngineConfig("m.gguf", card=card, **options)
    return load_on_card(CHECKPOINT, config, 2, lambda done, total: None, print)


@pytest.fixture
def card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def fail(monkeypatch, error: BaseException):
    def raise_it(*_):
        raise error

    monkeypatch.setattr(card_loading, "_load", raise_it)


def test_without_a_card_the_processor_computes_unless_one_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load() is None and load("none") is None
    with pytest.raises(StrataError, match=r"--card 0: PyTorch .* sees no card"):
        load("0")
    with pytest.raises(StrataError, match="--reference computes on the processor"):
        load("0", reference=True)


def test_what_does_not_run_on_a_card_runs_on_the_processor_and_says_so(monkeypatch, card, capfd):
    pytest.importorskip("triton")
    fail(monkeypatch, UnsupportedModelError("no such layer"))
    assert load() is None
    assert capfd.readouterr().err == "the processor computes: no such layer\n"
    with pytest.raises(UnsupportedModelError):
        load("0")
    assert load("none") is None and load(reference=True) is None


def test_a_full_card_is_told_in_words(monkeypatch, card):
    pytest.importorskip("triton")
    fail(monkeypatch, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB ..."))
    with pytest.raises(EngineError, match="--vram-reserve-mib"):
        load()


def test_a_card_without_triton_is_named(monkeypatch, card, capfd):
    real = builtins.__import__

    def import_(name, *rest):
        if name == "strata.card.device":
            raise ModuleNotFoundError("No module named 'triton'", name="triton")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", import_)
    assert load() is None
    assert "triton-windows" in capfd.readouterr().err
    with pytest.raises(StrataError, match="pip install triton"):
        load("0")


@pytest.fixture
def learned(monkeypatch, tmp_path):
    """What is learned of six experts, kept below a folder of the test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setattr(_Learned, "_experts", lambda self: 6)
    return _Learned(CHECKPOINT)


FREQUENCY = np.arange(6, dtype=np.float32)


def test_what_is_learned_comes_back(learned, tmp_path):
    assert learned.read() is None
    learned.write(np.zeros(6, np.float32))  # a run that answered nothing
    assert not list(tmp_path.iterdir())
    learned.write(FREQUENCY)
    assert np.array_equal(_Learned(CHECKPOINT).read(), FREQUENCY)
    other = SimpleNamespace(path=Path("m.gguf"), tensors={"a": SimpleNamespace(num_bytes=7)})
    assert _Learned(other).read() is None


def test_a_damaged_order_is_told_of_and_not_used(learned, tmp_path, capfd):
    learned.write(FREQUENCY)
    (path,) = tmp_path.rglob("*.npz")
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        found = learned.read()  # raises nothing
        assert found is None or found.shape == (6,)
    path.write_bytes(whole[:100])
    capfd.readouterr()
    assert learned.read() is None
    assert str(path) in capfd.readouterr().err


def test_a_folder_that_cannot_be_written_is_told_of(learned, tmp_path, capfd):
    (tmp_path / "strata").write_text("a file")
    assert learned.read() is None
    learned.write(FREQUENCY)
    assert "not written" in capfd.readouterr().err


def test_a_servers_options_for_a_card():
    config = engine_config(
        Options(model="m", card="1", vram_budget_mib=12, vram_reserve_mib=3, kv="int8", context=4096)
    )
    assert (config.card, config.kv, config.context) == ("1", "int8", 4096)
    assert (config.vram_budget_bytes, config.vram_reserve_bytes) == (12 << 20, 3 << 20)
    assert engine_config(Options(model="m")).card == "auto"
    assert engine_config(Options(model="m", card="None")).card == "none"
    with pytest.raises(StrataError, match="--card RTX 4090: must be"):
        engine_config(Options(model="m", card="RTX 4090"))
