"""The products of instruction sets that this processor may not have, on emulated intrinsics."""

import ctypes
import hashlib
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock

from strata.hardware.cpu import usable_cpus
from strata.native import _core
from tests.conftest import ROOT

NATIVE, EMULATED = ROOT / "src/strata/native", ROOT / "tests/native/emulated"
# Those that take longest come first.
SOURCES = [
    *(NATIVE / f"{kind}_{isa}.cpp" for kind in ("kernels", "batch") for isa in ("avx512", "avxvnni", "amx")),
    *(NATIVE / f"{name}.cpp" for name in ("activations", "pool", "threads", "watchdog")),
    *(NATIVE / f"{name}.cpp" for name in ("pack", "packed_grids", "elementwise_avx2")),
    *sorted(EMULATED.glob("*.cpp")),
]
# The numeric contract's flags, the folder whose immintrin.h shall be found, and none of the sets to emulate.
FLAGS = [
    *("-std=c++20", "-fPIC", "-ffp-contract=off", "-mavx2", "-mf16c", "-Wno-psabi"),
    *("-I", str(EMULATED), "-I", str(NATIVE)),
]


def find_compiler() -> str | None:
    """Path of GCC or Clang, if there is one."""
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def build(compiler: str, folder: Path) -> Path:
    """The shared library in `folder`; compiled anew if a source has changed since it was made.

    Raises:
        RuntimeError: with what the compiler said.
    """
    digest = hashlib.sha256(compiler.encode())
    for source in (Path(__file__), *sorted(NATIVE.glob("*.[ch]pp")), *sorted(EMULATED.iterdir())):
        digest.update(source.read_bytes())
    library, made_from = folder / "emulated.so", folder / "made_from"
    with FileLock(folder / "lock"):  # one of pytest's workers compiles, with all cores
        if not made_from.exists() or made_from.read_text() != digest.hexdigest():
            made_from.unlink(missing_ok=True)
            with ThreadPoolExecutor(len(usable_cpus())) as threads:
                objects = list(threads.map(partial(_compile, compiler, folder), SOURCES))
            _run([compiler, "-shared", "-pthread", *objects, "-o", str(library)])
            made_from.write_text(digest.hexdigest())
    return library


def _compile(compiler: str, folder: Path, source: Path) -> str:
    to = str(folder / f"{source.stem}.o")
    # Optimised kernels would take twice as long to compile, and save less than that.
    flags = ["-O2" if source.parent == EMULATED else "-O0"]
    # With STRATA_X86, packing would ask for kernels that are tested as they are.
    flags += [] if source.stem == "pack" else ["-DSTRATA_X86"]
    _run([compiler, *FLAGS, *flags, "-c", str(source), "-o", to])
    return to


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")


class EmulatedActivations:
    """Rows float32 `[rows, num_in]`; every product quantises them."""

    def __init__(self, x: np.ndarray):
        self.x, self.rows = x, len(x)


class EmulatedMatrix:
    """A matrix in planes whose products are those of an emulated set."""

    def __init__(
        self, multiply: partial, format: str, num_out: int, num_in: int, planes: np.ndarray, scale: float
    ):
        assert scale == 1
        self.planes = planes  # kept, as C++ keeps them
        self.call = partial(multiply, format.encode(), num_out, num_in, _address(planes))

    def multiply(self, x: EmulatedActivations, out: np.ndarray) -> None:
        self.call(_address(x.x), x.rows, _address(out))


class EmulatedCore:
    """What `strata.native.matrix` wants of `_core`, with the kernels of `isa`."""

    plane_bytes, pack = staticmethod(_core.plane_bytes), staticmethod(_core.pack)
    Activations = EmulatedActivations

    def __init__(self, library: ctypes.CDLL, isa: str):
        self.library = library
        self.Matrix = partial(EmulatedMatrix, partial(library.multiply, isa.encode()))

    def set_grid(self, name: str, entries: np.ndarray) -> None:
        self.library.set_codebook(name.encode(), _address(entries))


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
