"""What the doctor knows of a machine, gathered in one place so that its findings can be tested without it."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from strata.hardware.cpu import cpu_quota
from strata.hardware.description import Hardware
from strata.hardware.machine import is_wsl, this_machine


@dataclass(frozen=True, slots=True)
class Torch:
    """The PyTorch that is installed.

    Attributes:
        version: with its local part, `2.13.0+rocm7.14`.
        cuda, hip: the version it was built for; None if not.
        sees_card: whether it can use one.
        archs: that it has kernels for, `sm_89` or `gfx1100`.
        triton: the version of Triton beside it; None without one.
    """

    version: str
    cuda: str | None = None
    hip: str | None = None
    sees_card: bool = False
    archs: tuple[str, ...] = ()
    triton: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the doctor looks at.

    Attributes:
        hardware: this machine.
        torch: what is installed.
        native_error: why the kernels for the processor are not there; "" if they are.
        system: `sys.platform`.
        wsl: Linux under Windows.
        kfd: whether AMD's compute device exists, and whether this user may use it.
        physical_ram: the machine's memory, whatever the container may take.
        swap_bytes: of the page file or swap partitions.
        cpus: logical processors of the machine.
        cpu_quota: CPUs whose time a container may use; None without a limit.
    """

    hardware: Hardware
    torch: Torch
    native_error: str = ""
    system: str = "linux"
    wsl: bool = False
    kfd: tuple[bool, bool] = (False, False)
    physical_ram: int = 0
    swap_bytes: int = 0
    cpus: int = 1
    cpu_quota: float | None = None


def gather(folder: Path) -> Facts:
    """The facts of the machine at hand; `folder` is where models are."""
    isa, native_error = native_isa()
    kfd = Path("/dev/kfd")
    return Facts(
        hardware=this_machine(folder, isa),
        torch=installed_torch(),
        native_error=native_error,
        system=sys.platform,
        wsl=is_wsl(),
        kfd=(kfd.exists(), os.access(kfd, os.R_OK | os.W_OK)),
        physical_ram=psutil.virtual_memory().total,
        swap_bytes=psutil.swap_memory().total,
        cpus=psutil.cpu_count() or 1,
        cpu_quota=cpu_quota(),
    )


def native_isa() -> tuple[str, str]:
    """The instruction set of the processor's kernels, or "" and why they are not there."""
    try:
        from strata.native import isa
    except ImportError as error:
        return "", str(error)
    return isa(), ""


def installed_torch() -> Torch:
    """Ask PyTorch about itself."""
    import torch

    try:
        import triton
    except ImportError:
        triton = None
    return Torch(
        version=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        sees_card=torch.cuda.is_available(),
        archs=tuple(torch.cuda.get_arch_list()),
        triton=triton and triton.__version__,
    )
