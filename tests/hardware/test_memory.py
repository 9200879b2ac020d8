"""Free memory inside containers, on faked control groups."""

from pathlib import Path

import psutil
import pytest

from strata.hardware.memory import available_bytes


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    free = type("Memory", (), {"available": 8 << 30})()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_machine_decides_where_no_limit_is_set(tmp_path: Path):
    assert available_bytes(tmp_path) == 8 << 30
    assert available_bytes(write(tmp_path, {"memory.max": "max\n", "memory.current": "5\n"})) == 8 << 30


def test_a_container_gets_what_is_left_of_its_limit_and_its_file_cache(tmp_path: Path):
    files = {"memory.max": f"{4 << 30}\n", "memory.current": f"{3 << 30}\n"}
    assert available_bytes(write(tmp_path, files)) == 1 << 30
    files["memory.stat"] = f"anon 5\ninactive_file {1 << 30}\n"
    assert available_bytes(write(tmp_path, files)) == 2 << 30


def test_version_1_of_control_groups_counts_too(tmp_path: Path):
    files = {
        "memory/memory.limit_in_bytes": f"{4 << 30}\n",
        "memory/memory.usage_in_bytes": f"{3 << 30}\n",
        "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {1 << 29}\n",
    }
    assert available_bytes(write(tmp_path, files)) == 3 << 29


def test_a_container_over_its_limit_has_nothing_left(tmp_path: Path):
    assert available_bytes(write(tmp_path, {"memory.max": "5", "memory.current": "9"})) == 0
