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
    return {
        "codes": codes.astype(np.int32) - 4, "scales": f32(b["d"]), "subscales": subscales.astype(np.int32) - 32,
    }  # fmt: skip


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
