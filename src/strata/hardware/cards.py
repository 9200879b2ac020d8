"""The graphics cards of this machine, asked of the drivers and not of PyTorch.

NVIDIA's through NVML. A Radeon's through the amdgpu driver's files on Linux, which need no ROCm:
/sys/class/kfd (its compute topology: drivers/gpu/drm/amd/amdkfd/kfd_topology.c) and the card's PCI device
(memory, link, sensors: "GPU Driver Documentation, amdgpu").
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strata.hardware.description import Card
from strata.hardware.sysfs import read_fields, read_number, read_text

# Bytes per second of a PCIe lane in one direction, by generation: GT/s and the line's code.
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_LINK_YIELD = 0.87  # of which a copy engine gets this much: 55 of 63 GB/s measured, PCIe 5 x16
_TRANSFERS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # GT/s -> generation
_CORES_OF_SM = {"7": 64, "80": 64}  # CUDA cores of a multiprocessor by compute capability; 128 since sm_86
# Chips without memory of their own.
_APUS = {"gfx902", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103"} | {
    f"gfx115{n}" for n in range(4)
}
_ID_FILES = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")


def find_cards(root: Path = Path("/")) -> tuple[Card, ...]:
    """Every card of this machine whose driver answers, NVIDIA's first, each vendor's in its driver's order.

    Bandwidths are those of clocks, widths and generations. `root` is where /sys is.
    """
    return (*nvidia_cards(), *radeon_cards(root))


def link_bandwidth(generation: int | None, width: int | None) -> float | None:
    """Bytes per second that a copy over a PCIe link may get; None where the link is not known."""
    if generation not in _LANE or not width:
        return None
    return _LANE[generation] * width * _LINK_YIELD


def nvidia_cards() -> list[Card]:
    """NVIDIA's cards; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [_nvidia_card(pynvml, handle) for handle in handles]
    except pynvml.NVMLError:  # a driver of another version than its library
        return []
    finally:
        pynvml.nvmlShutdown()


def _nvidia_card(nvml: Any, handle: Any) -> Card:
    def ask(question: Callable[..., Any], *more: Any) -> Any:
        """The answer, or None where this card or driver has none."""
        with contextlib.suppress(nvml.NVMLError):
            return question(handle, *more) or None
        return None

    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability = "".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(handle)))
    generation = ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration)  # that card and slot can do; at rest it is less
    width = ask(nvml.nvmlDeviceGetCurrPcieLinkWidth)
    cores = ask(nvml.nvmlDeviceGetNumGpuCores)
    per_sm = _CORES_OF_SM.get(capability, _CORES_OF_SM.get(capability[0], 128))
    memory_mhz = ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM)
    bus_bits = ask(nvml.nvmlDeviceGetMemoryBusWidth)
    mhz = ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM)
    return Card(
        name=nvml.nvmlDeviceGetName(handle),
        arch=f"sm_{capability}",
        vram_bytes=memory.total,
        free_bytes=memory.free,
        bandwidth=memory_mhz * 1e6 * 2 * bus_bits / 8 if memory_mhz and bus_bits else None,
        link_bandwidth=link_bandwidth(generation, width),
        pcie_generation=generation,
        pcie_width=width,
        compute_units=cores // per_sm if cores else None,
        clock_hz=mhz * 1e6 if mhz else None,
        temperature_c=ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        power_w=_scaled(ask(nvml.nvmlDeviceGetPowerUsage), 1e-3),
        power_limit_w=_scaled(ask(nvml.nvmlDeviceGetEnforcedPowerLimit), 1e-3),
        link_load=_link_load(nvml, handle),
        # NVML writes the domain with eight digits.
        pci_address=nvml.nvmlDeviceGetPciInfo(handle).busId[-12:].lower(),
    )


def _link_load(nvml: Any, handle: Any) -> float | None:
    """Bytes per second that the card receives; NVML counts for 20 ms, in thousands."""
    with contextlib.suppress(nvml.NVMLError):
        return 1e3 * nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
    return None


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def radeon_cards(root: Path = Path("/")) -> list[Card]:
    """AMD's cards that the kernel's compute driver knows; none where there is no such driver."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    # A user who may not use a card cannot read its node's properties either: it is no card then.
    numbered = sorted(
        (path for path in nodes.glob("*") if path.name.isdecimal()), key=lambda path: int(path.name)
    )
    cards = [_radeon_card(root, node, read_fields(node / "properties")) for node in numbered]
    return [card for card in cards if card]


def _radeon_card(root: Path, node: Path, fields: dict[str, int]) -> Card | None:
    version = fields.get("gfx_target_version", 0)
    if not fields.get("simd_count") or not version:
        return None  # a processor
    arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    place = fields.get("location_id", 0)
    address = f"{fields.get('domain', 0):04x}:{place >> 8:02x}:{place >> 3 & 31:02x}.{place & 7}"
    device = root / "sys/bus/pci/devices" / address
    total, used = _radeon_memory(device, arch in _APUS)
    generation, width = _pcie_link(device)
    sensors = next(iter(sorted((device / "hwmon").glob("hwmon*"))), device / "hwmon/none")
    power = read_number(sensors / "power1_average") or read_number(sensors / "power1_input")
    mhz = fields.get("max_engine_clk_fcompute")
    return Card(
        name=_radeon_name(root, fields.get("device_id", 0), device, arch),
        arch=arch,
        vram_bytes=total,
        free_bytes=max(0, total - used),
        shares_ram=arch in _APUS,
        bandwidth=_radeon_bandwidth(node, arch),
        link_bandwidth=None if arch in _APUS else link_bandwidth(generation, width),
        pcie_generation=generation,
        pcie_width=width,
        compute_units=fields["simd_count"] // (fields.get("simd_per_cu") or 2),
        clock_hz=mhz * 1e6 if mhz else None,
        temperature_c=_scaled(read_number(sensors / "temp1_input"), 1e-3),
        power_w=_scaled(power, 1e-6),
        power_limit_w=_scaled(read_number(sensors / "power1_cap"), 1e-6),
        pci_address=address,
    )


def _radeon_memory(device: Path, is_apu: bool) -> tuple[int, int]:
    """Bytes of memory, and of these used; an APU's are its carve-out and what it may map of the machine's."""
    kinds = ("vram", "gtt") if is_apu else ("vram",)
    total = sum(read_number(device / f"mem_info_{kind}_total") or 0 for kind in kinds)
    return total, sum(read_number(device / f"mem_info_{kind}_used") or 0 for kind in kinds)


def _radeon_bandwidth(node: Path, arch: str) -> float | None:
    """From clock and width: HBM moves 2 bits a clock on each line, GDDR6 16; an APU's memory may be any."""
    bank = read_fields(node / "mem_banks/0/properties")
    if arch in _APUS or not bank.get("mem_clk_max") or not bank.get("width"):
        return None
    return bank["mem_clk_max"] * 1e6 * (2 if arch.startswith("gfx9") else 16) * bank["width"] / 8


def _pcie_link(device: Path) -> tuple[int | None, int | None]:
    """Generation and width of the narrowest link between the card and the processor.

    A Radeon sits behind a switch of its own, whose inner link is always the best: the slot's is further up.
    The generation is what both ends can do, since a resting link is slower; the width is what they agreed on.
    """
    generations, widths = [], []
    for place in (device.resolve(), *device.resolve().parents):
        speed = read_text(place / "max_link_speed").partition(" ")[0]
        width = read_number(place / "current_link_width")
        with contextlib.suppress(ValueError):
            generations += [_TRANSFERS[float(speed)]] if float(speed) in _TRANSFERS else []
        widths += [width] if width else []
    return min(generations, default=None), min(widths, default=None)


def _radeon_name(root: Path, device_id: int, device: Path, arch: str) -> str:
    """The card's name by AMD's own list or the driver's; its architecture where neither has it."""
    revision = read_text(device / "revision").removeprefix("0x").upper().zfill(2)
    for path in _ID_FILES:
        for line in read_text(root / path).splitlines():
            words = [word.strip() for word in line.split(",", 2)]
            if len(words) == 3 and words[:2] == [f"{device_id:04X}", revision]:
                return words[2]
    return read_text(device / "product_name") or f"Radeon ({arch})"
