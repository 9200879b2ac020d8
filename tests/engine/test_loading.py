"""What loading refuses, before it fills the memory."""

from dataclasses import replace

import pytest

from strata.engine import loading
from strata.engine.messages import EngineConfig
from strata.engine.worker import load_checkpoint
from strata.errors import StrataError
from strata.formats.checkpoint import open_checkpoint
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.synthetic import SyntheticCheckpoint, write_gguf
from strata.options import EMBEDDED_MODEL

pytest.importorskip("strata.native._core")


def test_a_model_without_room_is_refused_with_the_planners_numbers(monkeypatch):
    monkeypatch.setattr(loading, "available_bytes", lambda: 8 << 30)
    geometry = GEOMETRIES["qwen3.8-flash-next"]
    checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, "q2_0"))
    says = r"does not fit\. RAM: needs .* GiB, has .* short .*smaller quantisation"
    with pytest.raises(StrataError, match=says):
        loading._check_memory(checkpoint, "avx2", threads=1)


def test_a_model_with_room_is_loaded(monkeypatch):
    monkeypatch.setattr(loading, "available_bytes", lambda: 2 << 30)
    loaded = loading.load(open_checkpoint(EMBEDDED_MODEL), 1, False, None, lambda done, total: None)
    assert {part.purpose for part in loaded.memory} >= {"dense weights", "experts"}


def test_a_worker_requantises_and_says_so(tmp_path):
    geometry = replace(GEOMETRIES["tiny"], layers=2, expert_count=8, used=2)
    path = tmp_path / "model.gguf"
    write_gguf(SyntheticCheckpoint(geometry, find_mix(geometry, "iq3_xxs")), path, lambda done, total: None)
    bytes_of = {}
    for dense in ("as_stored", "q8_0"):
        config = EngineConfig(str(path), lanes=1, threads=1, card="none", dense=dense)
        _, info, _ = load_checkpoint(config, lambda event: None)
        assert info.dense == dense
        bytes_of[dense] = next(part.bytes for part in info.memory if part.purpose == "dense weights")
    assert bytes_of["q8_0"] < bytes_of["as_stored"]


def test_memory_that_is_nearly_full_is_told(monkeypatch):
    monkeypatch.setattr(loading, "available_bytes", lambda: 1 << 20)
    monkeypatch.setattr(loading, "_own_bytes", lambda: 400 << 20)
    with pytest.raises(StrataError, match=r"tiny\.gguf: does not fit"):
        loading.load(open_checkpoint(EMBEDDED_MODEL), 1, False, None, lambda done, total: None)
