"""K-quants: 256 weights, a float16 scale per block and a small integer scale per 16 or 32 weights.

Layouts: ggml `ggml-common.h`. A weight is `(d * scale) * code - (dmin * minimum)`, in this order of rounding.
"""

import numpy as np

from strata.formats.quants.base import QuantFormat, column, f32, unpack


def _by_sub_block(scales: np.ndarray, codes: np.ndarray, minima: np.ndarray | None = None) -> np.ndarray:
    """`scale * code - minimum`: scales, minima float32 `[n, s]`, codes `[n, 256]` -> float32 `[n, 256]`."""
    n, s = scales.shape
    values = f32(codes).reshape(n, s, -1)
    values *= scales[:, :, None]
    if minima is not None:
        values -= minima[:, :, None]
    return values.reshape(n, 256)


def _six_bit_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and minima of Q4_K and Q5_K: uint8 `[n, 12]` -> two uint8 `[n, 8]`.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits. Bytes 8-11 hold the low
    nibbles of scales 4-7 (low) and minima 4-7 (high), whose upper two bits top the bytes 0-7.
    """
    low_scales, low_minima, nibbles = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = (nibbles & 0x0F) | (low_scales >> 2) & 0x30
    minima = (nibbles >> 4) | (low_minima >> 2) & 0x30
    return np.hstack([low_scales & 0x3F, scales]), np.hstack([low_minima & 0x3F, minima])


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    scales = column(blocks["d"]) * f32(blocks["scales"] & 0x0F)
    minima = column(blocks["dmin"]) * f32(blocks["scales"] >> 4)
    return _by_sub_block(scales, unpack(blocks["qs"], 2, 32), minima)


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    packed = blocks["scales"]
    scales = unpack(packed[:, :8], 4, 8) | unpack(packed[:, 8:], 2, 4) << np.uint8(4)
    codes = unpack(blocks["qs"], 2, 32) | unpack(blocks["hmask"], 1, 32) << np.uint8(2)
    scales = column(blocks["d"]) * (f32(scales) - np.float32(32))
    return _by_sub_block(scales, codes.view(np.int8) - np.int8(4))


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    scales, minima = _six_bit_scales(blocks["scales"])
    codes = unpack(blocks["qs"], 4, 32)
    return _by_sub_block(column(blocks["d"]) * f32(scales), codes, column(blocks["dmin"]) * f32(minima))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    scales, minima = _six_bit_scales(blocks["scales"])
    codes = unpack(blocks["qs"], 4, 32) | unpack(blocks["qh"], 1, 32) << np.uint8(4)
    return _by_sub_block(column(blocks["d"]) * f32(scales), codes, column(blocks["dmin"]) * f32(minima))


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    codes = unpack(blocks["ql"], 4, 64) | unpack(blocks["qh"], 2, 32) << np.uint8(4)
    return _by_sub_block(column(blocks["d"]) * f32(blocks["scales"]), codes.view(np.int8) - np.int8(32))


_Q2_K = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
_Q3_K = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
_Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
_Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
_Q6_K = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])

K = (
    QuantFormat("Q2_K", 10, 256, _Q2_K, _q2_k),
    QuantFormat("Q3_K", 11, 256, _Q3_K, _q3_k),
    QuantFormat("Q4_K", 12, 256, _Q4_K, _q4_k),
    QuantFormat("Q5_K", 13, 256, _Q5_K, _q5_k),
    QuantFormat("Q6_K", 14, 256, _Q6_K, _q6_k),
)
