"""Codebook formats: each index names 4 or 8 weights at once from a grid; signs and scales are separate.

Layouts: ggml `ggml-common.h`. The grids come from the gguf package, where they are kept packed, and
are expanded at first use.
"""

from functools import cache

import numpy as np

from strata.formats.quants.base import QuantFormat, column, f32, unpack

# _SIGNS[byte, j] = -1 where bit j is set, else 1.
_SIGNS = np.where(np.arange(256)[:, None] >> np.arange(8) & 1, np.float32(-1), np.float32(1))
# Seven stored sign bits; the eighth makes the number of negative weights even.
_EVEN_SIGNS = _SIGNS[[i | (i.bit_count() & 1) << 7 for i in range(128)]]
_IQ1_DELTA = np.array([0.125, -0.125], dtype=np.float32)


@cache
def grid(name: str) -> np.ndarray:
    """The codebook of a format as float32 `[entries, weights per entry]`."""
    from gguf import quants

    source = getattr(quants, name)
    source.init_grid()
    return np.ascontiguousarray(source.grid.reshape(source.grid_shape), dtype=np.float32)


def _scaled(scales: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """`scales` float32 `[n, s]` times `weights` float32, 256 for each of n blocks -> `[n, 256]`."""
    n, s = scales.shape
    weights = weights.reshape(n, s, -1)
    weights *= scales[:, :, None]
    return weights.reshape(n, 256)


def _iq2_scales(blocks: np.ndarray) -> np.ndarray:
    return column(blocks["d"]) * (np.float32(0.5) + f32(unpack(blocks["scales"], 4, 1))) * np.float32(0.25)


def _seven_bit_signs(words: np.ndarray) -> np.ndarray:
    """Four groups of seven sign bits in each uint32 `[n, 8]` -> float32 `[n, 8, 4, 8]`."""
    return _EVEN_SIGNS[words[:, :, None] >> np.array([0, 7, 14, 21], dtype=np.uint32) & np.uint32(127)]


def _iq2_xxs(blocks: np.ndarray) -> np.ndarray:
    groups = blocks["groups"]
    scales = column(blocks["d"]) * (np.float32(0.5) + f32(groups["signs"] >> 28)) * np.float32(0.25)
    return _scaled(scales, grid("IQ2_XXS")[groups["qs"]] * _seven_bit_signs(groups["signs"]))


def _iq2_xs(blocks: np.ndarray) -> np.ndarray:
    codes = blocks["qs"]
    return _scaled(_iq2_scales(blocks), grid("IQ2_XS")[codes & 511] * _EVEN_SIGNS[codes >> 9])


def _iq2_s(blocks: np.ndarray) -> np.ndarray:
    codes = blocks["qs"] | unpack(blocks["qh"], 2, 1).astype(np.uint16) << 8
    return _scaled(_iq2_scales(blocks), grid("IQ2_S")[codes] * _SIGNS[blocks["signs"]])


def _iq3_xxs(blocks: np.ndarray) -> np.ndarray:
    words = blocks["signs"]
    scales = column(blocks["d"]) * (np.float32(0.5) + f32(words >> 28)) * np.float32(0.5)
    weights = grid("IQ3_XXS")[blocks["qs"]].reshape(blocks.size, 8, 4, 8)
    return _scaled(scales, weights * _seven_bit_signs(words))


def _iq3_s(blocks: np.ndarray) -> np.ndarray:
    codes = blocks["qs"] | unpack(blocks["qh"], 1, 1).astype(np.uint16) << 8
    scales = column(blocks["d"]) * f32(1 + 2 * unpack(blocks["scales"], 4, 1))
    weights = grid("IQ3_S")[codes].reshape(blocks.size, 32, 8)
    return _scaled(scales, weights * _SIGNS[blocks["signs"]])


def _iq1_s(blocks: np.ndarray) -> np.ndarray:
    qh = blocks["qh"]
    high = (qh[:, :, None] >> np.array([0, 3, 6, 9], dtype=np.uint16) & 7) << 8
    codes = blocks["qs"].reshape(-1, 8, 4) | high
    scales = column(blocks["d"]) * f32(2 * (qh >> 12 & 7) + 1)
    return _scaled(scales, grid("IQ1_S")[codes] + _IQ1_DELTA[qh >> 15][:, :, None, None])


def _iq1_m(blocks: np.ndarray) -> np.ndarray:
    packed = blocks["scales"]
    # The float16 scale lies in the top four bits of the four words, lowest nibble first.
    nibbles = packed >> 12 << np.array([0, 4, 8, 12], dtype=np.uint16)
    d = nibbles.sum(axis=1, dtype=np.uint16).view(np.float16)
    scales = (packed[:, :, None] >> np.array([0, 3, 6, 9], dtype=np.uint16) & 7).reshape(-1, 16)
    high = unpack(blocks["qh"], 4, 1)
    codes = blocks["qs"] | (high & 7).astype(np.uint16) << 8
    weights = grid("IQ1_S")[codes] + _IQ1_DELTA[high >> 3][:, :, None]
    return _scaled(column(d) * f32(2 * scales + 1), weights)


_IQ2_XXS = np.dtype([("d", "<f2"), ("groups", [("qs", "u1", 4), ("signs", "<u4")], 8)])
_IQ2_XS = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
_IQ2_S = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)])
_IQ3_XXS = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])
_IQ3_S = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])
_IQ1_S = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
_IQ1_M = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])

GRID = (
    QuantFormat("IQ2_XXS", 16, 256, _IQ2_XXS, _iq2_xxs),
    QuantFormat("IQ2_XS", 17, 256, _IQ2_XS, _iq2_xs),
    QuantFormat("IQ3_XXS", 18, 256, _IQ3_XXS, _iq3_xxs),
    QuantFormat("IQ1_S", 19, 256, _IQ1_S, _iq1_s),
    QuantFormat("IQ3_S", 21, 256, _IQ3_S, _iq3_s),
    QuantFormat("IQ2_S", 22, 256, _IQ2_S, _iq2_s),
    QuantFormat("IQ1_M", 29, 256, _IQ1_M, _iq1_m),
)
