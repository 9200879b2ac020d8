"""Descriptions of machines as JSON."""

import json

import pytest

from strata.hardware.description import Card, Cpu, DescriptionError, Disk, Hardware, Ram

GIB = 2**30
PC = Hardware(
    cpu=Cpu(name="Ryzen 9 7950X", cores=16, isa="avx512", memory_bandwidth=62e9),
    ram=Ram(total_bytes=64 * GIB, available_bytes=60 * GIB, pinnable_bytes=32 * GIB),
    cards=(
        Card(
            name="Radeon RX 9070 XT", arch="gfx1201", vram_bytes=16 * GIB, free_bytes=15 * GIB, pcie_width=16
        ),
        Card(name="GeForce RTX 4060", arch="sm_89", vram_bytes=8 * GIB, free_bytes=0, bandwidth=272e9),
    ),
    disk=Disk(path="/models", free_bytes=GIB, read_bandwidth=7e9),
    measured=True,
)
SMALL = Hardware(cpu=Cpu(name="", cores=1), ram=Ram(total_bytes=0, available_bytes=0))


@pytest.mark.parametrize("hardware", [PC, SMALL])
def test_json_there_and_back(hardware):
    assert Hardware.from_json(hardware.to_json()) == hardware


def test_what_is_unknown_may_be_left_out():
    text = '{"cpu": {"name": "x", "cores": 4}, "ram": {"total_bytes": 9, "available_bytes": 8}}'
    hardware = Hardware.from_json(text)
    assert hardware.cards == () and hardware.disk is None and hardware.cpu.memory_bandwidth is None


def test_vendors():
    assert [card.vendor for card in PC.cards] == ["AMD", "NVIDIA"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["cards", 0, "arch"], "rtx4090", r"regex .* - at `\$.cards\[0\].arch`"),
        (["cards", 1, "vram_bytes"], -1, r">= 0 - at `\$.cards\[1\].vram_bytes`"),
        (["cards", 0, "vram"], 1, r"unknown field `vram` - at `\$.cards\[0\]`"),
        (["cpu", "cores"], 0, r">= 1 - at `\$.cpu.cores`"),
        (["cpu", "memory_bandwidth"], "fast", r"Expected `float \| null`, got `str` - at"),
    ],
)
def test_a_wrong_description_is_refused_by_field(path, value, message):
    data = json.loads(PC.to_json())
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(DescriptionError, match=message):
        Hardware.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "{}", "{"])
def test_no_description_at_all(text):
    with pytest.raises(DescriptionError, match="description of hardware: "):
        Hardware.from_json(text)
