"""Cards that a person may name to see what a model would do on one, from the vendors' data sheets."""

from strata.errors import StrataError
from strata.hardware.description import Card

GIB = 1 << 30
DESKTOP = 512 << 20  # bytes of VRAM that are taken when nothing much runs

# name: (arch, GiB, GB/s, PCIe generation, lanes, compute units, GHz)
_SHEETS = {
    "rtx 3060": ("sm_86", 12, 360, 4, 16, 28, 1.78),
    "rtx 3080": ("sm_86", 10, 760, 4, 16, 68, 1.71),
    "rtx 3090": ("sm_86", 24, 936, 4, 16, 82, 1.70),
    "rtx 4060": ("sm_89", 8, 272, 4, 8, 24, 2.46),
    "rtx 4060 ti 16g": ("sm_89", 16, 288, 4, 8, 34, 2.54),
    "rtx 4070": ("sm_89", 12, 504, 4, 16, 46, 2.48),
    "rtx 4080": ("sm_89", 16, 717, 4, 16, 76, 2.51),
    "rtx 4090": ("sm_89", 24, 1008, 4, 16, 128, 2.52),
    "rtx 5060 ti 16g": ("sm_120", 16, 448, 5, 8, 36, 2.57),
    "rtx 5070": ("sm_120", 12, 672, 5, 16, 48, 2.51),
    "rtx 5070 ti": ("sm_120", 16, 896, 5, 16, 70, 2.45),
    "rtx 5080": ("sm_120", 16, 960, 5, 16, 84, 2.62),
    "rtx 5090": ("sm_120", 32, 1792, 5, 16, 170, 2.41),
    "v100 16g": ("sm_70", 16, 900, 3, 16, 80, 1.53),
    "rx 6800": ("gfx1030", 16, 512, 4, 16, 60, 2.10),
    "rx 6900 xt": ("gfx1030", 16, 512, 4, 16, 80, 2.25),
    "rx 7800 xt": ("gfx1101", 16, 624, 4, 16, 60, 2.43),
    "rx 7900 xtx": ("gfx1100", 24, 960, 4, 16, 96, 2.50),
    "rx 9060 xt 16g": ("gfx1200", 16, 320, 5, 16, 32, 3.13),
    "rx 9070 xt": ("gfx1201", 16, 640, 5, 16, 64, 2.97),
    "r9700": ("gfx1201", 32, 640, 5, 16, 64, 2.92),
}
KNOWN_CARDS = tuple(_SHEETS)
# What a bare size stands for: a card of it that many have.
_OF_SIZE = {
    "8g": "rtx 4060",
    "12g": "rtx 5070",
    "16g": "rtx 5060 ti 16g",
    "24g": "rtx 3090",
    "32g": "rtx 5090",
}


def known_card(text: str) -> Card:
    """A card by its name (`rtx 4090`, `RX-9070-XT`) or its size (`16g`).

    Raises:
        StrataError: there is none of that name; lists those there are.
    """
    name = " ".join(text.lower().replace("-", " ").replace("_", " ").split())
    name = _OF_SIZE.get(name, name)
    if name not in _SHEETS:
        raise StrataError(f"--card {text}: known are {', '.join([*_OF_SIZE, *_SHEETS])}")
    arch, size, bandwidth, generation, width, units, clock = _SHEETS[name]
    return Card(
        name=name.upper(),
        arch=arch,
        vram_bytes=size * GIB,
        free_bytes=size * GIB - DESKTOP,
        bandwidth=bandwidth * 1e9,
        pcie_generation=generation,
        pcie_width=width,
        compute_units=units,
        clock_hz=clock * 1e9,
    )
