"""Quantised weights as the integers and floats that the numeric contract names (docs/NUMERICS.md).

`integer_decode` is the readable reference of what the kernels compute with; the product of its parts is
`QuantFormat.dequantize` up to rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from strata.errors import UnsupportedModelError
from strata.formats.quants import FORMATS
from strata.formats.quants.base import f32, unpack
from strata.formats.quants.grid import _EVEN_SIGNS, _SIGNS, _seven_bit_signs, grid
from strata.formats.quants.k import _six_bit_scales
from strata.formats.quants.scaled import _five_bits
from strata.formats.quants.table import _E2M1_DOUBLED, _E8M0, _NONLINEAR, _UE4M3

Parts = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class IntegerMatrix:
    """A weight is `scales * subscales * codes`, plus `minima` or minus `minima * sub_minima`.

    Args:
        codes: int32 `[num_out, num_in]`.
        scales: float32 `[num_out, num_in / scale block]`.
        subscales: int32 `[num_out, num_in / sub-block]`, or None for all ones.
        minima: float32, shaped as `scales`, or None.
        sub_minima: int32, shaped as `subscales`, or None: then `minima` are added, not subtracted.
    """

    codes: np.ndarray
    scales: np.ndarray
    subscales: np.ndarray | None
    minima: np.ndarray | None
    sub_minima: np.ndarray | None


def _linear(codes: Callable[[np.ndarray], np.ndarray], offset: int) -> Callable[[np.ndarray], Parts]:
    return lambda b: {"codes": codes(b).astype(np.int32) - offset, "scales": f32(b["d"])}


def _with_minimum(codes: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], Parts]:
    return lambda b: {"codes": codes(b), "scales": f32(b["d"]), "minima": f32(b["m"])}


def _four_bits(b: np.ndarray) -> np.ndarray:
    return unpack(b["qs"], 4, 16)


def _q2_k(b: np.ndarray) -> Parts:
    return {
        "codes": unpack(b["qs"], 2, 32), "scales": f32(b["d"]), "subscales": b["scales"] & 15,
        "minima": f32(b["dmin"]), "sub_minima": b["scales"] >> 4,
    }  # fmt: skip


def _q3_k(b: np.ndarray) -> Parts:
    packed = b["scales"]
    subscales = unpack(packed[:, :8], 4, 8) | unpack(packed[:, 8:], 2, 4) << np.uint8(4)
    codes = unpack(b["qs"], 2, 32) | unpack(b["hmask"], 1, 32) << np.uint8(2)
    subscales = subscales.astype(np.int32) - 32
    return {"codes": codes.astype(np.int32) - 4, "scales": f32(b["d"]), "subscales": subscales}


def _q45_k(b: np.ndarray) -> Parts:
    subscales, sub_minima = _six_bit_scales(b["scales"])
    codes = unpack(b["qs"], 4, 32)
    if "qh" in b.dtype.names:
        codes = codes | unpack(b["qh"], 1, 32) << np.uint8(4)
    return {
        "codes": codes, "scales": f32(b["d"]), "subscales": subscales,
        "minima": f32(b["dmin"]), "sub_minima": sub_minima,
    }  # fmt: skip


def _q6_k(b: np.ndarray) -> Parts:
    codes = unpack(b["ql"], 4, 64) | unpack(b["qh"], 2, 32) << np.uint8(4)
    return {"codes": codes.astype(np.int32) - 32, "scales": f32(b["d"]), "subscales": b["scales"]}


def _iq4_xs(b: np.ndarray) -> Parts:
    high = (b["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.int32)
    subscales = (unpack(b["scales_l"], 4, 1) | high << 4) - 32
    return {"codes": _NONLINEAR[_four_bits(b)], "scales": f32(b["d"]), "subscales": subscales}


def _grid_parts(d: np.ndarray, factor: float, subscales: np.ndarray, codes: np.ndarray) -> Parts:
    """`factor` is a power of two, so that the scale stays exact; stored sub-scales s stand for 2 s + 1."""
    scales = f32(d) * np.float32(factor)
    return {"codes": codes, "scales": scales, "subscales": 2 * subscales.astype(np.int32) + 1}


def _iq2_xxs(b: np.ndarray) -> Parts:
    groups = b["groups"]
    codes = grid("IQ2_XXS")[groups["qs"]] * _seven_bit_signs(groups["signs"])
    return _grid_parts(b["d"], 1 / 8, groups["signs"] >> 28, codes)


def _iq2_xs(b: np.ndarray) -> Parts:
    codes = grid("IQ2_XS")[b["qs"] & 511] * _EVEN_SIGNS[b["qs"] >> 9]
    return _grid_parts(b["d"], 1 / 8, unpack(b["scales"], 4, 1), codes)


def _iq2_s(b: np.ndarray) -> Parts:
    index = b["qs"] | unpack(b["qh"], 2, 1).astype(np.uint16) << 8
    return _grid_parts(b["d"], 1 / 8, unpack(b["scales"], 4, 1), grid("IQ2_S")[index] * _SIGNS[b["signs"]])


def _iq3_xxs(b: np.ndarray) -> Parts:
    magnitudes = grid("IQ3_XXS")[b["qs"]].reshape(b.size, 8, 4, 8)
    return _grid_parts(b["d"], 1 / 4, b["signs"] >> 28, magnitudes * _seven_bit_signs(b["signs"]))


def _iq3_s(b: np.ndarray) -> Parts:
    index = b["qs"] | unpack(b["qh"], 1, 1).astype(np.uint16) << 8
    magnitudes = grid("IQ3_S")[index].reshape(b.size, 32, 8)
    return _grid_parts(b["d"], 1, unpack(b["scales"], 4, 1), magnitudes * _SIGNS[b["signs"]])


def _iq1_s(b: np.ndarray) -> Parts:
    qh = b["qh"]
    index = b["qs"].reshape(-1, 8, 4) | (qh[:, :, None] >> np.array([0, 3, 6, 9], dtype=np.uint16) & 7) << 8
    codes = 8 * grid("IQ1_S")[index] + np.where(qh >> 15, -1, 1)[:, :, None, None]
    return _grid_parts(b["d"], 1 / 8, qh >> 12 & 7, codes)


def _iq1_m(b: np.ndarray) -> Parts:
    packed, high = b["scales"], unpack(b["qh"], 4, 1)
    d = (packed >> 12 << np.array([0, 4, 8, 12], dtype=np.uint16)).sum(axis=1, dtype=np.uint16)
    subscales = packed[:, :, None] >> np.array([0, 3, 6, 9], dtype=np.uint16) & 7
    index = b["qs"] | (high & 7).astype(np.uint16) << 8
    codes = 8 * grid("IQ1_S")[index] + np.where(high >> 3, -1, 1)[:, :, None]
    return _grid_parts(d.view(np.float16), 1 / 8, subscales, codes)


_DECODERS: dict[str, Callable[[np.ndarray], Parts]] = {
    "Q8_0": _linear(lambda b: b["qs"], 0),
    "Q4_0": _linear(_four_bits, 8),
    "Q4_1": _with_minimum(_four_bits),
    "Q5_0": _linear(_five_bits, 16),
    "Q5_1": _with_minimum(_five_bits),
    "Q2_0": _linear(lambda b: unpack(b["qs"], 2, 1), 1),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q45_k,
    "Q5_K": _q45_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _linear(lambda b: _NONLINEAR[_four_bits(b)], 0),
    "IQ4_XS": _iq4_xs,
    "MXFP4": lambda b: {"codes": _E2M1_DOUBLED[_four_bits(b)], "scales": _E8M0[b["e"]]},
    "NVFP4": lambda b: {"codes": _E2M1_DOUBLED[unpack(b["qs"], 4, 8)], "scales": _UE4M3[b["d"]]},
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}

INTEGER_FORMATS = tuple(_DECODERS)


def integer_decode(format: str, blocks: np.ndarray, num_out: int, num_in: int) -> IntegerMatrix:
    """Split GGUF blocks, uint8 of any shape, of a matrix `[num_out, num_in]` into integers and scales."""
    if format not in _DECODERS:
        raise UnsupportedModelError(
            f"quant format {format} has no integer form; known: {', '.join(_DECODERS)}"
        )
    parts = _DECODERS[format](np.ascontiguousarray(blocks).reshape(-1).view(FORMATS[format].layout))

    def part(name: str, dtype: type) -> np.ndarray | None:
        return parts[name].reshape(num_out, -1).astype(dtype) if name in parts else None

    codes = parts["codes"].reshape(num_out, num_in).astype(np.int32)
    scales = parts["scales"].reshape(num_out, -1)
    return IntegerMatrix(
        codes, scales, part("subscales", np.int32), part("minima", np.float32), part("sub_minima", np.int32)
    )
