"""This machine's description."""

import mmap
import platform
import shutil
import sys
from pathlib import Path

import msgspec
import psutil

from strata.hardware.bandwidth import disk_bandwidth, memory_bandwidth
from strata.hardware.cards import find_cards
from strata.hardware.cpu import usable_cpus
from strata.hardware.description import Card, Cpu, Disk, Hardware, Ram
from strata.hardware.memory import available_bytes, total_bytes
from strata.hardware.sysfs import read_number, read_text


def this_machine(folder: Path | None = None, isa: str = "", root: Path = Path("/")) -> Hardware:
    """What this machine is, without measuring anything.

    Args:
        folder: where models are; no disk is described when not given.
        isa: what `strata.native.isa()` says; this room knows nothing of it.
        root: where /proc and /sys are.
    """
    cards = find_cards(root)
    return Hardware(
        cpu=Cpu(name=cpu_name(root), cores=len(usable_cpus()), isa=isa),
        ram=Ram(
            total_bytes=total_bytes(),
            available_bytes=available_bytes(),
            pinnable_bytes=pinnable_bytes(cards, root),
        ),
        cards=cards,
        disk=Disk(path=str(folder), free_bytes=shutil.disk_usage(folder).free) if folder else None,
    )


def measured(hardware: Hardware) -> Hardware:
    """The same machine with its memory's and its disk's bandwidth tried out; seconds. Cards stay as they are.

    Raises:
        OSError: nothing can be written where models are.
    """
    memory = memory_bandwidth(hardware.cpu.cores)
    disk = hardware.disk
    if disk and (found := disk_bandwidth(Path(disk.path))):
        disk = msgspec.structs.replace(disk, read_bandwidth=found[0], page_reads_per_second=found[1])
    cpu = msgspec.structs.replace(hardware.cpu, memory_bandwidth=memory)
    return msgspec.structs.replace(hardware, cpu=cpu, disk=disk, measured=True)


def cpu_name(root: Path = Path("/")) -> str:
    """As the processor calls itself; its kind where it does not."""
    for line in read_text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def is_wsl(root: Path = Path("/")) -> bool:
    """Whether this Linux is Windows' own."""
    return "microsoft" in read_text(root / "proc/sys/kernel/osrelease").lower()


def pinnable_bytes(cards: tuple[Card, ...], root: Path = Path("/"), system: str = sys.platform) -> int | None:
    """How much memory may be registered with a card; None where nothing limits it.

    Windows and WSL allow half of the memory. On Linux amdgpu's memory manager has a limit of its own, in
    pages: half of the memory unless `ttm.pages_limit` says otherwise. NVIDIA's driver has none.
    """
    if system == "win32" or is_wsl(root):
        return psutil.virtual_memory().total // 2
    pages = read_number(root / "sys/module/ttm/parameters/pages_limit")
    if pages and any(card.vendor == "AMD" for card in cards):
        return pages * mmap.PAGESIZE
    return None
