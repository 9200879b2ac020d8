"""A driver that Triton takes for a card: kernels are compiled and loaded for it, and launches do nothing."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime.driver import driver
from triton.tools.disasm import get_sass

from strata.ops.triton.proof.assembly import Assembly, read_amdgcn, read_ptx
from strata.ops.triton.proof.targets import Target

_MAX_THREADS = 1024  # of a workgroup


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel that a launch has compiled."""

    name: str
    num_warps: int
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

    def get_current_target(self) -> Any:
        return self.target.triton

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *arguments: None


@contextmanager
def pretend(target: Target) -> Iterator[list[Compiled]]:
    """Launches inside go to a card that is not there; the list gets each kernel that they compile.

    A process can pretend to be one card only: Triton keeps compiled kernels by device number.
    """
    compiled: list[Compiled] = []

    def loaded(module: int, function: int, name: str, files: dict[str, str], hash_: str) -> None:
        compiled.append(_read(name, {Path(path).suffix: Path(path) for path in files.values()}, target))

    active = driver._active
    driver.set_active(FakeDriver(target))
    knobs.runtime.kernel_load_end_hook.add(loaded)
    try:
        yield compiled
    finally:
        knobs.runtime.kernel_load_end_hook.remove(loaded)
        driver._active = active


def _read(name: str, files: dict[str, Path], target: Target) -> Compiled:
    """Read what Triton's cache holds of a kernel, by the files' suffixes."""
    metadata = json.loads(files[".json"].read_text())
    shared, num_warps = metadata["shared"], metadata["num_warps"]
    if target.is_radeon:
        return Compiled(name, num_warps, read_amdgcn(files[".amdgcn"].read_text(), target, shared, num_warps))
    cubin = files[".cubin"].read_bytes()
    ptx = files[".ptx"].read_text()
    return Compiled(
        name, num_warps, read_ptx(ptx, get_sass(cubin), _resources(cubin), target, shared, num_warps)
    )


def _resources(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
