"""Numbers and words that the monitor shows."""

import numpy as np
import pytest

from strata.engine.messages import ExpertLayout
from strata.serve.status_schemas import CardReport
from strata.web.figures import number, size
from strata.web.heatmap import FULL, describe, levels, relative_use
from strata.web.monitor import describe_card


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0, "0"), (3, "3"), (0.417, "0.42"), (7.0, "7.0"), (48.25, "48.2"), (1204.4, "1,204")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 KiB"),
        (512 << 10, "512 KiB"),
        (5 << 20, "5.0 MiB"),
        (73 << 30, "73.0 GiB"),
        (2 << 40, "2,048 GiB"),
    ],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


def test_use_is_relative_to_the_layers_average() -> None:
    recent = np.array([[0, 1, 3, 0], [5, 5, 5, 5], [0, 0, 0, 0]], dtype=np.float32)
    shares = relative_use(recent)
    assert shares.tolist() == [[0, 1, 3, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert levels(np.array([[0, FULL / 4, FULL, 2 * FULL]])).tolist() == [[0, 128, 255, 255]]


def test_the_map_in_words() -> None:
    layout = ExpertLayout([1, 3], 5, 1, "RAM")
    assert describe(layout, np.zeros((2, 5))) == "10 experts in 2 layers, all in RAM. None was used yet."
    shares = relative_use(np.array([[8, 1, 1, 0, 0], [0, 0, 0, 9, 1]], dtype=np.float32))
    assert describe(layout, shares) == (
        "10 experts in 2 layers, all in RAM. 20 % of all take 80 % of the recent choices; the busiest is "
        "expert 3 of layer 3, 4.5 × the average."
    )


def test_the_map_says_how_many_are_in_vram() -> None:
    layout, held = ExpertLayout([1, 3], 5, 1, "VRAM and RAM"), np.arange(10).reshape(2, 5) % 3 == 0
    assert describe(layout, np.zeros((2, 5)), held) == (
        "10 experts in 2 layers, all in RAM, 4 of 10 in VRAM too. None was used yet."
    )
    assert "in VRAM too. Answers found 80 % of those that they used there. None" in (
        describe(layout, np.zeros((2, 5)), held, hits=8, misses=2)
    )


def test_a_card_in_words() -> None:
    card = CardReport(name="A", arch="sm_89", vram_bytes=24 << 30, free_bytes=18 << 30)
    assert describe_card(card) == "6.0 GiB of 24.0 GiB VRAM in use"
    sensors = {"temperature_c": 61.6, "power_w": 180.2, "pcie_generation": 4, "pcie_width": 16}
    told = describe_card(card.model_copy(update=sensors | {"power_limit_w": 300.0}))
    assert told == "6.0 GiB of 24.0 GiB VRAM in use · 62 °C · 180 W of 300 W · PCIe 4 x16"
    assert describe_card(card.model_copy(update={"link_load": 2.1e9})).endswith("in use · 2.1 GB/s to it")
