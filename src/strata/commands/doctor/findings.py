"""What would go wrong on a machine, and what helps: pure functions of the facts."""

from collections.abc import Iterator
from dataclasses import dataclass

from strata.commands.doctor.facts import Facts
from strata.hardware.description import Card

_GIB = 2**30
# Triton has had no RDNA2 since 3.9, and no gfx906 before 3.8.
_RDNA2 = ("gfx1030", "gfx1031", "gfx1032", "gfx1034", "gfx1035", "gfx1036")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong or slow, and the fix."""

    problem: str
    fix: str


def findings(facts: Facts) -> list[Finding]:
    """Everything found, what matters most first."""
    looks = (_processor, _build, _card_unseen, _architecture, _triton, _link, _pinned, _page_file, _container)
    return [finding for look in looks for finding in look(facts)]


def _processor(facts: Facts) -> Iterator[Finding]:
    if facts.native_error:
        yield Finding(
            f"the kernels for the processor are not built ({facts.native_error}): experts compute slowly",
            "install GCC or Clang (Windows: Visual Studio's build tools), delete .venv, run ./strata again",
        )


def _build(facts: Facts) -> Iterator[Finding]:
    """A card of one vendor beside a PyTorch for none, or for the other."""
    for vendor, built_for, name in (("NVIDIA", facts.torch.cuda, "cuda"), ("AMD", facts.torch.hip, "rocm")):
        if _cards(facts, vendor) and not built_for and not facts.torch.sees_card:
            yield Finding(
                f"PyTorch {facts.torch.version} is not built for {vendor}'s cards, so the card is not used",
                f"./strata --torch {name} serve",
            )


def _card_unseen(facts: Facts) -> Iterator[Finding]:
    """The right PyTorch, which still does not find the card."""
    elsewhere = {"cuda": _cards(facts, "AMD"), "hip": _cards(facts, "NVIDIA")}  # `_build` says that
    if facts.torch.sees_card or elsewhere["hip" if facts.torch.hip else "cuda"]:
        return
    if facts.torch.hip and facts.system == "linux" and facts.kfd == (True, False):
        yield Finding(
            "this user may not use /dev/kfd, so PyTorch does not find the Radeon",
            "sudo usermod -aG render,video $USER, then log in again",
        )
    elif facts.torch.hip and facts.system == "linux" and not facts.kfd[0]:
        yield Finding(
            "there is no /dev/kfd: the amdgpu driver is not loaded, or a container does not have the device",
            "modprobe amdgpu; in a container: --device=/dev/kfd --device=/dev/dri",
        )
    elif facts.torch.cuda and _cards(facts, "NVIDIA"):
        yield Finding(
            f"PyTorch's CUDA {facts.torch.cuda} does not start on this card's driver",
            "update NVIDIA's driver; in a container: --gpus all",
        )
    elif facts.torch.cuda:
        yield Finding(
            "no NVIDIA card or driver answers, so models run on the processor",
            "install NVIDIA's driver if there is a card; in a container: --gpus all",
        )


def _architecture(facts: Facts) -> Iterator[Finding]:
    """Cards that the installed PyTorch has no kernels for."""
    if not facts.torch.archs:
        return
    for card in facts.hardware.cards:
        ours = (card.vendor == "AMD") == bool(facts.torch.hip)
        if ours and not _has_kernels(card, facts.torch.archs):
            yield Finding(
                f"PyTorch {facts.torch.version} has no kernels for {card.name} ({card.arch})",
                f"install a build that lists {card.arch}: ./strata --torch-index URL serve",
            )


def _has_kernels(card: Card, archs: tuple[str, ...]) -> bool:
    """NVIDIA's kernels run on later cards of their generation, and `compute_` code on all later ones."""
    if card.vendor == "AMD":
        return card.arch in archs
    number = int(card.arch.removeprefix("sm_"))
    built = [
        (kind, int(digits))
        for kind, _, digits in (arch.partition("_") for arch in archs)
        if digits.isdecimal()
    ]
    return any(n <= number and (kind == "compute" or n // 10 == number // 10) for kind, n in built)


def _triton(facts: Facts) -> Iterator[Finding]:
    """Cards that Triton does not compile for."""
    version = facts.torch.triton
    for card in facts.hardware.cards:
        if version is None:
            yield Finding(
                f"Triton is not installed, and {card.name} computes with its kernels",
                "CUDA and ROCm builds of PyTorch bring it; on Windows: pip install triton-windows",
            )
            return
        release = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdecimal())
        if (card.arch in _RDNA2 and release >= (3, 9)) or (card.arch == "gfx906" and release < (3, 8)):
            wanted = "3.7" if card.arch in _RDNA2 else "3.9"
            yield Finding(
                f"Triton {version} cannot compile for {card.name} ({card.arch})",
                f"use a PyTorch whose Triton is {wanted}",
            )
        if card.vendor == "NVIDIA" and int(card.arch.removeprefix("sm_")) < 80:
            yield Finding(
                f"{card.name} ({card.arch}): Triton does not use its tensor cores, so prompts are slow",
                "nothing; answers are as fast as its memory",
            )


def _link(facts: Facts) -> Iterator[Finding]:
    for card in facts.hardware.cards:
        if card.link_bandwidth is not None and card.link_bandwidth < 10e9:
            yield Finding(
                f"{card.name} is on PCIe {card.pcie_generation} with {card.pcie_width} lanes, about "
                f"{card.link_bandwidth / 1e9:.0f} GB/s: experts that are not on the card come slowly",
                "put it into the slot next to the processor, and look for lane sharing in the board's manual",
            )


def _pinned(facts: Facts) -> Iterator[Finding]:
    """A limit on memory that cards may read: experts beyond it are copied twice."""
    pinnable, ram = facts.hardware.ram.pinnable_bytes, facts.hardware.ram.total_bytes
    if not facts.hardware.cards or pinnable is None or pinnable > 0.8 * ram:
        return
    shown = f"only {pinnable / _GIB:.0f} of {ram / _GIB:.0f} GiB of memory can be registered with a card"
    if facts.wsl:
        yield Finding(shown + " under WSL", "give WSL more in %UserProfile%\\.wslconfig: [wsl2] memory=...")
    elif facts.system == "win32":
        yield Finding(shown + " on Windows", "nothing; the rest of the experts compute on the processor")
    else:
        pages, setting = int(0.9 * ram) // 4096, "/sys/module/ttm/parameters/pages_limit"
        yield Finding(
            shown + " (ttm.pages_limit)",
            f"boot with ttm.pages_limit={pages}, or until then: echo {pages} | sudo tee {setting}",
        )


def _page_file(facts: Facts) -> Iterator[Finding]:
    """Windows promises memory against the page file, a card's own memory too."""
    vram = sum(card.vram_bytes for card in facts.hardware.cards if not card.shares_ram)
    enough = (vram + 16 * _GIB) / _GIB
    if facts.system == "win32" and facts.swap_bytes < vram + 8 * _GIB:
        yield Finding(
            f"the page file of {facts.swap_bytes / _GIB:.0f} GiB is small: Windows counts the card's memory "
            "against it, and loading ends with `paging file is too small`",
            f"let Windows manage its size, or set {enough:.0f} GiB (System, Advanced, Performance)",
        )


def _container(facts: Facts) -> Iterator[Finding]:
    """Limits of a control group: fine if meant."""
    if facts.hardware.ram.total_bytes < facts.physical_ram:
        yield Finding(
            f"this container or service may use {facts.hardware.ram.total_bytes / _GIB:.1f} of "
            f"{facts.physical_ram / _GIB:.0f} GiB of memory",
            "raise it if that was not meant: --memory of docker, MemoryMax of systemd",
        )
    if facts.cpu_quota is not None and facts.cpu_quota < facts.cpus:
        yield Finding(
            f"this container or service may use {facts.cpu_quota:g} of {facts.cpus} CPUs' time",
            "raise it if that was not meant: --cpus of docker, CPUQuota of systemd",
        )


def _cards(facts: Facts, vendor: str) -> list[Card]:
    return [card for card in facts.hardware.cards if card.vendor == vendor]
