"""Free memory inside containers and services, on faked control groups."""

from pathlib import Path

import psutil
import pytest

from strata.hardware.memory import available_bytes, total_bytes

GIB = 1 << 30
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
V1 = "40 36 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = type("Memory", (), {"total": 16 * GIB, "available": 8 * GIB})()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def write(root: Path, mount: str, cgroup: str, files: dict[str, object]) -> Path:
    """A tree of /proc and /sys; names of `files` are those below /sys/fs/cgroup."""
    texts = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (texts | {"proc/self/mountinfo": mount, "proc/self/cgroup": cgroup}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def test_the_machine_decides_where_no_limit_is_set(tmp_path: Path):
    assert (total_bytes(tmp_path), available_bytes(tmp_path)) == (16 * GIB, 8 * GIB)
    root = write(tmp_path, V2, "0::/", {"memory.max": "max", "memory.current": 5})
    assert (total_bytes(root), available_bytes(root)) == (16 * GIB, 8 * GIB)


def test_a_container_gets_what_is_left_of_its_limit_and_its_file_cache(tmp_path: Path):
    files: dict[str, object] = {"memory.max": 4 * GIB, "memory.current": 3 * GIB}
    root = write(tmp_path, V2, "0::/", files)
    assert (total_bytes(root), available_bytes(root)) == (4 * GIB, GIB)
    write(tmp_path, V2, "0::/", files | {"memory.stat": f"anon 5\ninactive_file {GIB}"})
    assert available_bytes(root) == 2 * GIB


def test_a_service_has_the_limit_of_its_own_group(tmp_path: Path):
    """`systemd-run -p MemoryMax=3G`: the limit is below the mount, which has none."""
    service = "system.slice/run-7.service"
    files = {f"{service}/memory.max": 3 * GIB, f"{service}/memory.current": GIB}
    root = write(tmp_path, V2, f"0::/{service}", files)
    assert (total_bytes(root), available_bytes(root)) == (3 * GIB, 2 * GIB)


def test_the_tightest_group_counts_and_each_has_its_own_use(tmp_path: Path):
    files = {
        "user.slice/memory.max": 6 * GIB,
        "user.slice/memory.current": 5 * GIB,  # of other programs too
        "user.slice/shell.scope/memory.max": 4 * GIB,
        "user.slice/shell.scope/memory.current": GIB,
    }
    root = write(tmp_path, V2, "0::/user.slice/shell.scope", files)
    assert (total_bytes(root), available_bytes(root)) == (4 * GIB, GIB)


def test_memory_beyond_which_a_group_is_slowed_down_is_no_memory(tmp_path: Path):
    files = {"memory.max": "max", "memory.high": 2 * GIB, "memory.current": GIB}
    assert available_bytes(write(tmp_path, V2, "0::/", files)) == GIB


@pytest.mark.parametrize("group", ["", "docker/abc/"])
def test_version_1_of_control_groups_counts_too(tmp_path: Path, group: str):
    files = {
        "memory/memory.limit_in_bytes": 9223372036854771712,  # none
        "memory/memory.usage_in_bytes": 12 * GIB,
        f"memory/{group}memory.limit_in_bytes": 4 * GIB,
        f"memory/{group}memory.usage_in_bytes": 3 * GIB,
        f"memory/{group}memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}",
    }
    root = write(tmp_path, V1, f"4:memory:/{group.strip('/')}\n0::/", files)
    assert (total_bytes(root), available_bytes(root)) == (4 * GIB, 3 * GIB // 2)


def test_a_container_over_its_limit_has_nothing_left(tmp_path: Path):
    assert available_bytes(write(tmp_path, V2, "0::/", {"memory.max": 5, "memory.current": 9})) == 0
