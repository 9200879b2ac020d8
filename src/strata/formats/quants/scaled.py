"""One float16 scale per block, and for the `_1` kinds a minimum: ggml's first formats, and Q2_0.

Layouts: ggml `ggml-common.h`. Q2_0 (type 42) holds the weights {-1, 0, 1, 2} * d, four to a byte.
"""

import numpy as np

from strata.formats.quants.base import QuantFormat, column, f32, unpack


def _five_bits(blocks: np.ndarray) -> np.ndarray:
    return unpack(blocks["qs"], 4, 16) | unpack(blocks["qh"], 1, 1) << np.uint8(4)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return f32(blocks["qs"]) * column(blocks["d"])


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return column(blocks["d"]) * (f32(unpack(blocks["qs"], 4, 16)) - np.float32(8))


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return column(blocks["d"]) * f32(unpack(blocks["qs"], 4, 16)) + column(blocks["m"])


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    return column(blocks["d"]) * (f32(_five_bits(blocks)) - np.float32(16))


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    return column(blocks["d"]) * f32(_five_bits(blocks)) + column(blocks["m"])


def _q2_0(blocks: np.ndarray) -> np.ndarray:
    return column(blocks["d"]) * (f32(unpack(blocks["qs"], 2, 1)) - np.float32(1))


_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
_Q5_0 = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
_Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])

SCALED = (
    QuantFormat("Q4_0", 2, 32, np.dtype([("d", "<f2"), ("qs", "u1", 16)]), _q4_0),
    QuantFormat("Q4_1", 3, 32, _Q4_1, _q4_1),
    QuantFormat("Q5_0", 6, 32, _Q5_0, _q5_0),
    QuantFormat("Q5_1", 7, 32, _Q5_1, _q5_1),
    QuantFormat("Q8_0", 8, 32, np.dtype([("d", "<f2"), ("qs", "i1", 32)]), _q8_0),
    QuantFormat("Q2_0", 42, 64, np.dtype([("d", "<f2"), ("qs", "u1", 16)]), _q2_0),
)
