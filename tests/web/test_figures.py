"""Numbers and words that the monitor shows."""

import numpy as np
import pytest

from strata.engine.messages import ExpertLayout
from strata.web.figures import number, size
from strata.web.heatmap import FULL, describe, levels, relative_use


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
        "10 experts in 2 layers, all in RAM. 20 % of them take 80 % of the recent choices; the busiest is "
        "expert 3 of layer 3, 4.5 × the average."
    )
