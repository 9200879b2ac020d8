"""The products of instruction sets that few machines have, on intrinsics written in C++ (native/emulated)."""

import ctypes

import pytest

from strata.native import _core, matrix
from tests.helpers.emulated_core import EmulatedCore, build, find_compiler
from tests.native.test_matmul import (  # noqa: F401 - pytest runs them here with the `isa` below
    test_a_batch_larger_than_a_cache_gives_the_bits_of_the_reference,
    test_every_row_count_gives_the_bits_of_the_reference,
    test_extreme_codes_do_not_overflow,
    test_unusual_numbers,
)

pytestmark = pytest.mark.timeout(900)  # the first of them compiles: about a minute of a core


@pytest.fixture(scope="session")
def emulated_kernels(pytestconfig) -> ctypes.CDLL:
    if "avx2" not in _core.isas():
        pytest.skip("the kernels of other sets use AVX2 too")
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    return ctypes.CDLL(str(build(compiler, pytestconfig.cache.mkdir("emulated"))))


@pytest.fixture(params=["avx_vnni", "avx512", "amx"])
def isa(request, emulated_kernels, monkeypatch):
    monkeypatch.setattr(matrix, "_core", EmulatedCore(emulated_kernels, request.param))
    monkeypatch.setattr(matrix, "load_codebook", matrix.load_codebook.__wrapped__)
    return request.param
