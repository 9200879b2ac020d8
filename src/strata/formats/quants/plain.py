"""Unquantised floats."""

import numpy as np

from strata.formats.quants.base import QuantFormat, f32


def _bf16(blocks: np.ndarray) -> np.ndarray:
    # bfloat16 is the upper half of a float32.
    return (blocks["x"].astype(np.uint32) << 16).view(np.float32)


PLAIN = (
    QuantFormat("F32", 0, 1, np.dtype([("x", "<f4", (1,))]), lambda blocks: blocks["x"]),
    QuantFormat("F16", 1, 1, np.dtype([("x", "<f2", (1,))]), lambda blocks: f32(blocks["x"])),
    QuantFormat("BF16", 30, 1, np.dtype([("x", "<u2", (1,))]), _bf16),
)
