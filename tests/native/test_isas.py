"""Which instruction sets are offered."""

import ctypes
from pathlib import Path

import pytest

from strata.cost import CORE_BYTES, CORE_PRODUCTS
from strata.native import _core

CPUINFO = Path("/proc/cpuinfo")
# Best first, with what the processor must have.
AVX512 = {"avx512bw", "avx512vl", "avx512_vnni", "avx512vbmi", "avx512_bitalg"}
NEEDS = {
    "amx": {*AVX512, "amx_int8"},
    "avx512": AVX512,
    "avx_vnni": {"avx_vnni", "avx2", "f16c"},
    "avx2": {"avx2", "f16c"},
}


def may_use_tiles() -> bool:
    """Whether Linux lets this process use AMX: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)."""
    return ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0


@pytest.mark.skipif(not CPUINFO.exists(), reason="only Linux tells the flags of the processor")
def test_all_sets_of_the_processor_are_offered_and_no_others():
    lines = (line.split() for line in CPUINFO.read_text().splitlines())
    flags = next((set(words) for words in lines if words[:1] == ["flags"]), set())
    if not may_use_tiles():
        flags.discard("amx_int8")
    assert _core.isas() == [*(name for name, needs in NEEDS.items() if needs <= flags), "portable"]


def test_plans_know_the_speed_of_every_set():
    assert {*NEEDS, "portable"} <= CORE_BYTES.keys() & CORE_PRODUCTS.keys()
