"""Cards that are not here: amdgpu's files as the kernel writes them, and an NVIDIA driver that answers."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from strata.hardware.cards import find_cards, link_bandwidth, nvidia_cards, radeon_cards

GIB = 2**30
NODES = "sys/class/kfd/kfd/topology/nodes"


def write(root: Path, files: Mapping[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def fields(**numbers: int) -> str:
    return "\n".join(f"{name} {number}" for name, number in numbers.items())


def pci_device(root: Path, path: str, links: list[tuple[str, int]], files: Mapping[str, object]) -> None:
    """A device below its bridges: the best speed and the width of each, from the root port to the device."""
    place = root / "sys/devices/pci0000:00"
    for name, (speed, width) in zip(path.split("/"), links, strict=True):
        place = place / name
        write(place, {"max_link_speed": f"{speed} GT/s PCIe", "current_link_width": width})
    write(place, files)
    listed = root / "sys/bus/pci/devices"
    listed.mkdir(parents=True, exist_ok=True)
    os.symlink(place, listed / place.name)


CPU_NODE = fields(cpu_cores_count=16, simd_count=0, mem_banks_count=1, gfx_target_version=0)


@pytest.fixture
def rx_7900_xtx(tmp_path: Path) -> Path:
    """A 7900 XTX in a PCIe 3 slot of 8 lanes; its own switch is PCIe 4 of 16."""
    node = fields(
        cpu_cores_count=0, simd_count=192, simd_per_cu=2, max_waves_per_simd=16, wave_front_size=32,
        gfx_target_version=110000, vendor_id=4098, device_id=0x744C, location_id=0x0300, domain=0,
        drm_render_minor=128, max_engine_clk_fcompute=2482,
    )  # fmt: skip
    files = {
        f"{NODES}/0/properties": CPU_NODE,
        f"{NODES}/1/properties": node,
        f"{NODES}/1/mem_banks/0/properties": fields(
            heap_type=1, size_in_bytes=24 * GIB, flags=0, width=384, mem_clk_max=1249
        ),
        "usr/share/libdrm/amdgpu.ids": "# List of AMDGPU IDs\n1.0.0\n"
        "744C,\tC8,\tAMD Radeon RX 7900 XTX\n744C,\tCC,\tAMD Radeon RX 7900 XT",
    }
    write(tmp_path, files)
    device = {
        "revision": "0xc8",
        "mem_info_vram_total": 24 * GIB,
        "mem_info_vram_used": GIB,
        "mem_info_gtt_total": 32 * GIB,
        "hwmon/hwmon4/temp1_input": 41000,
        "hwmon/hwmon4/power1_average": 23000000,
        "hwmon/hwmon4/power1_cap": 339000000,
    }
    links = [("8.0", 8), ("16.0", 8), ("16.0", 16), ("16.0", 16)]
    pci_device(tmp_path, "0000:00:01.1/0000:01:00.0/0000:02:00.0/0000:03:00.0", links, device)
    return tmp_path


def test_a_radeon(rx_7900_xtx):
    (card,) = radeon_cards(rx_7900_xtx)
    assert (card.name, card.arch, card.vendor) == ("AMD Radeon RX 7900 XTX", "gfx1100", "AMD")
    assert (card.vram_bytes, card.free_bytes, card.shares_ram) == (24 * GIB, 23 * GIB, False)
    assert card.bandwidth == pytest.approx(959e9, rel=0.001)  # 20 Gbit/s on 384 lines
    assert (card.pcie_generation, card.pcie_width) == (3, 8)
    assert card.link_bandwidth == pytest.approx(6.9e9, rel=0.01)
    assert (card.compute_units, card.clock_hz) == (96, 2.482e9)
    assert (card.temperature_c, card.power_w, card.power_limit_w) == (41, 23, 339)
    assert card.pci_address == "0000:03:00.0"


def test_an_apu_has_the_machines_memory(tmp_path):
    node = fields(
        simd_count=80, simd_per_cu=2, gfx_target_version=110501, device_id=0x1586, location_id=0xC300
    )
    write(tmp_path, {f"{NODES}/1/properties": node})
    bank = fields(heap_type=1, width=256, mem_clk_max=1000)
    write(tmp_path, {f"{NODES}/1/mem_banks/0/properties": bank})
    memory = {"mem_info_vram_total": GIB, "mem_info_vram_used": GIB // 2}
    memory |= {"mem_info_gtt_total": 62 * GIB, "mem_info_gtt_used": GIB}
    pci_device(tmp_path, "0000:00:08.1/0000:c3:00.0", [("16.0", 16)] * 2, memory)
    (card,) = radeon_cards(tmp_path)
    assert (card.name, card.arch, card.shares_ram) == ("Radeon (gfx1151)", "gfx1151", True)
    assert (card.vram_bytes, card.free_bytes) == (63 * GIB, 63 * GIB - GIB // 2 - GIB)
    assert card.bandwidth is None and card.link_bandwidth is None


def test_cards_come_in_the_drivers_order_and_hbm_is_slower_by_the_clock(tmp_path):
    for number in (10, 2):
        node = fields(simd_count=240, simd_per_cu=4, gfx_target_version=90006, location_id=number << 8)
        write(tmp_path, {f"{NODES}/{number}/properties": node})
        bank = fields(width=4096, mem_clk_max=1000)
        write(tmp_path, {f"{NODES}/{number}/mem_banks/0/properties": bank})
    cards = radeon_cards(tmp_path)
    assert [card.pci_address for card in cards] == ["0000:02:00.0", "0000:0a:00.0"]
    assert {card.arch for card in cards} == {"gfx906"} and cards[0].bandwidth == 1024e9
    assert cards[0].vram_bytes == 0 and cards[0].pcie_generation is None  # amdgpu's files are not there


def test_a_node_that_may_not_be_read_is_no_card(rx_7900_xtx):
    (rx_7900_xtx / NODES / "1/properties").unlink()
    assert radeon_cards(rx_7900_xtx) == []


def test_a_machine_without_cards(tmp_path):
    assert radeon_cards(tmp_path) == []


class Unsupported(Exception):
    pass


class FakeNvml(SimpleNamespace):
    """NVML of one RTX 4090 as a driver answers; whatever is named in `missing` is not supported."""

    NVMLError = Unsupported
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    answers: ClassVar = {
        "Name": "NVIDIA GeForce RTX 4090",
        "CudaComputeCapability": (8, 9),
        "MemoryInfo": SimpleNamespace(total=24 * GIB, free=22 * GIB),
        "PciInfo": SimpleNamespace(busId="00000000:0B:00.0"),
        "CurrPcieLinkWidth": 16,
        "MaxPcieLinkGeneration": 4,
        "NumGpuCores": 16384,
        "MemoryBusWidth": 384,
        "Temperature": 45,
        "PowerUsage": 31500,
        "EnforcedPowerLimit": 450000,
    }

    def __init__(self, *missing: str):
        super().__init__(missing=missing, closed=False)

    def nvmlInit(self):
        if "Init" in self.missing:
            raise Unsupported

    def nvmlShutdown(self):
        self.closed = True

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def __getattr__(self, name):
        question = name.removeprefix("nvmlDeviceGet")
        if question == name:
            raise AttributeError(name)

        def answer(handle, *more):
            if question in self.missing:
                raise Unsupported
            if question == "MaxClockInfo":
                return {self.NVML_CLOCK_SM: 3105, self.NVML_CLOCK_MEM: 10501}[more[0]]
            if question == "PcieThroughput":
                return {self.NVML_PCIE_UTIL_TX_BYTES: 7, self.NVML_PCIE_UTIL_RX_BYTES: 2_100_000}[more[0]]
            return self.answers[question]

        return answer


@pytest.fixture
def nvml(monkeypatch):
    def use(*missing: str) -> FakeNvml:
        fake = FakeNvml(*missing)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return use


def test_a_geforce(nvml, tmp_path):
    fake = nvml()
    (card,) = find_cards(tmp_path)
    assert (card.name, card.arch, card.vendor) == ("NVIDIA GeForce RTX 4090", "sm_89", "NVIDIA")
    assert (card.vram_bytes, card.free_bytes) == (24 * GIB, 22 * GIB)
    assert card.bandwidth == pytest.approx(1008e9, rel=0.001)
    assert card.link_bandwidth == pytest.approx(27.4e9, rel=0.01)
    assert (card.compute_units, card.clock_hz) == (128, 3.105e9)
    assert (card.temperature_c, card.power_w, card.power_limit_w) == (45, 31.5, 450)
    assert card.pci_address == "0000:0b:00.0"
    assert card.link_load == 2.1e9
    assert fake.closed


def test_what_a_card_does_not_tell_is_none(nvml):
    nvml(
        "Temperature",
        "PowerUsage",
        "MaxPcieLinkGeneration",
        "MemoryBusWidth",
        "NumGpuCores",
        "PcieThroughput",
    )
    (card,) = nvidia_cards()
    assert card.link_load is None
    unknown = (card.temperature_c, card.power_w, card.link_bandwidth, card.bandwidth, card.compute_units)
    assert unknown == (None,) * 5 and card.power_limit_w == 450


@pytest.mark.parametrize("missing", ["Init", "MemoryInfo"])
def test_no_driver_no_card(nvml, missing):
    nvml(missing)
    assert nvidia_cards() == []


def test_links():
    assert link_bandwidth(5, 16) == pytest.approx(55e9, rel=0.01)  # measured so on an H200
    assert (
        link_bandwidth(None, 16) is None and link_bandwidth(4, None) is None and link_bandwidth(9, 1) is None
    )


def test_this_machine_can_be_asked():
    assert all(card.vram_bytes > 0 for card in find_cards())
