"""A driver that Triton takes for a card: kernels are compiled and loaded for it, and launches do nothing."""

import hashlib
import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime.driver import driver

from strata.ops.triton.proof.assembly import Assembly, read_amdgcn, read_ptx
from strata.ops.triton.proof.targets import Target

_MAX_THREADS = 1024  # of a workgroup
_LOCATION = re.compile(r"\s*loc\(.*\)$|^#loc.*$", re.MULTILINE)
_CODE_OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")
# Triton keeps compiled kernels by device number: each launch gets a card of its own.
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel that a launch has compiled.

    Attributes:
        name: of its function.
        num_warps: of a workgroup.
        code: digest of Triton's first representation, without line numbers, and of options.
        assembly: what became of it.
    """

    name: str
    num_warps: int
    code: str
    assembly: Assembly


class _Utils:
    """What Triton asks a driver's C part for."""

    def __init__(self, target: Target):
        self.target = target

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": self.target.shared_limit,
            "max_num_regs": 65536,
            "multiprocessor_count": 64,
            "warpSize": self.target.wave,
        }

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        return 1, 1, 0, 0, _MAX_THREADS  # module, function, registers, spills, threads

    def unload_module(self, module: int) -> None:
        pass


class FakeDriver:
    """The part of `triton.backends.driver.DriverBase` that compiling and launching use."""

    def __init__(self, target: Target):
        self.target = target
        self.utils = _Utils(target)
        self.number = next(_numbers)

    def get_current_target(self) -> Any:
        return self.target.triton

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *arguments: None


@contextmanager
def pretend(target: Target) -> Iterator[list[Compiled]]:
    """Launches inside go to a card that is not there; the list gets each kernel that they compile."""
    compiled: list[Compiled] = []

    def loaded(module: int, function: int, name: str, files: dict[str, str], hash_: str) -> None:
        compiled.append(_read(name, tuple(sorted(files.values())), target))

    active = driver._active
    driver.set_active(FakeDriver(target))
    knobs.runtime.kernel_load_end_hook.add(loaded)
    try:
        yield compiled
    finally:
        knobs.runtime.kernel_load_end_hook.remove(loaded)
        driver._active = active


@cache
def _read(name: str, paths: tuple[str, ...], target: Target) -> Compiled:
    """Read what Triton's cache holds of a kernel."""
    files = {Path(path).suffix: Path(path) for path in paths}
    metadata = json.loads(files[".json"].read_text())
    shared, num_warps = metadata["shared"], metadata["num_warps"]
    code = _digest(files[".ttir"].read_text(), metadata)
    if target.is_radeon:
        assembly = read_amdgcn(files[".amdgcn"].read_text(), target, shared, num_warps)
    else:
        ptx = files[".ptx"].read_text()
        if metadata["launch_pdl"] and "griddepcontrol.wait" not in ptx:
            raise RuntimeError(f"{name} is launched as a dependent kernel, but does not call begin_kernel")
        assembly = read_ptx(ptx, _resources(files[".cubin"]), target, shared, num_warps)
    return Compiled(name, num_warps, code, assembly)


def _digest(ttir: str, metadata: dict[str, Any]) -> str:
    options = [metadata.get(name) for name in _CODE_OPTIONS]
    return hashlib.sha256(f"{_LOCATION.sub('', ttir)}{options}".encode()).hexdigest()[:16]


def _resources(cubin: Path) -> str:
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
