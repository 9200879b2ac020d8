"""This machine's description and its measurements, and limits of machines that are not here."""

import mmap
import os
from pathlib import Path

import psutil
import pytest

from strata.hardware.bandwidth import disk_bandwidth, memory_bandwidth
from strata.hardware.description import Card
from strata.hardware.machine import cpu_name, is_wsl, pinnable_bytes, this_machine

RADEON = Card(name="x", arch="gfx1100", vram_bytes=1, free_bytes=1)
GEFORCE = Card(name="x", arch="sm_89", vram_bytes=1, free_bytes=1)


def write(root: Path, name: str, text: object) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_this_machine(tmp_path):
    hardware = this_machine(tmp_path, "avx2")
    assert hardware.cpu.cores >= 1 and hardware.cpu.name and hardware.cpu.isa == "avx2"
    assert 0 < hardware.ram.available_bytes <= hardware.ram.total_bytes
    assert hardware.disk.path == str(tmp_path) and hardware.disk.free_bytes > 0
    assert this_machine().disk is None


def test_the_processors_name(tmp_path):
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD Ryzen 9 7950X\nmodel\t\t: 97")
    assert cpu_name(tmp_path) == "AMD Ryzen 9 7950X"
    assert cpu_name(tmp_path / "nowhere")


def test_amdgpu_limits_what_a_radeon_may_register(tmp_path):
    assert pinnable_bytes((RADEON,), tmp_path, "linux") is None
    write(tmp_path, "sys/module/ttm/parameters/pages_limit", 1000)
    assert pinnable_bytes((RADEON,), tmp_path, "linux") == 1000 * mmap.PAGESIZE
    assert pinnable_bytes((GEFORCE,), tmp_path, "linux") is None


def test_windows_and_wsl_let_half_of_the_memory_be_registered(tmp_path):
    half = psutil.virtual_memory().total // 2
    assert pinnable_bytes((GEFORCE,), tmp_path, "win32") == half
    assert not is_wsl(tmp_path)
    write(tmp_path, "proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2")
    assert is_wsl(tmp_path) and pinnable_bytes((GEFORCE,), tmp_path, "linux") == half


@pytest.mark.parametrize("num_threads", [1, 3])
def test_memory_has_a_bandwidth(num_threads):
    assert 1e8 < memory_bandwidth(num_threads, 24 << 20) < 1e13


def test_a_disk_is_read_past_the_cache_and_left_as_it_was(tmp_path):
    found = disk_bandwidth(tmp_path, 16 << 20)
    if hasattr(os, "O_DIRECT") and found:
        assert 1e5 < found[0] < 1e12 and 1 < found[1] < 1e8
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OSError):
        disk_bandwidth(tmp_path / "nowhere")
