"""Four-bit codes that index a fixed table of sixteen values: IQ4_NL, IQ4_XS, MXFP4, NVFP4.

Layouts: ggml `ggml-common.h`. MXFP4 is the OCP Microscaling specification 1.0 (a power of two per 32
weights); NVFP4 has an unsigned E4M3 scale per 16. Both tables hold doubled E2M1 values, so both
scales are halved. NVFP4's scale for the whole tensor is a tensor of its own in GGUF, not applied here.
"""

import numpy as np

from strata.formats.quants.base import QuantFormat, column, f32, unpack

_NONLINEAR = f32(np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]))
_E2M1_DOUBLED = f32(np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]))


def _halved_e8m0() -> np.ndarray:
    """2 ** (e - 128) for each byte; the two smallest are subnormal in float32."""
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


def _halved_ue4m3() -> np.ndarray:
    """Half the value of each unsigned E4M3 byte (bias 7, top bit ignored); 0x7F means zero in ggml."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    # Subnormals have no implicit one and the exponent of the smallest normal.
    value = np.ldexp((mantissa + np.where(exponent, 8, 0)).astype(np.float32), np.maximum(exponent, 1) - 11)
    value[0x7F] = 0
    return value.astype(np.float32)


_E8M0 = _halved_e8m0()
_UE4M3 = _halved_ue4m3()


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return column(blocks["d"]) * _NONLINEAR[unpack(blocks["qs"], 4, 16)]


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    n = blocks.size
    high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scales = unpack(blocks["scales_l"], 4, 1) | high << np.uint8(4)
    scales = column(blocks["d"]) * (f32(scales) - np.float32(32))
    values = _NONLINEAR[unpack(blocks["qs"], 4, 16)].reshape(n, 8, 32)
    return (scales[:, :, None] * values).reshape(n, 256)


def _mxfp4(blocks: np.ndarray) -> np.ndarray:
    return _E8M0[blocks["e"]][:, None] * _E2M1_DOUBLED[unpack(blocks["qs"], 4, 16)]


def _nvfp4(blocks: np.ndarray) -> np.ndarray:
    n = blocks.size
    values = _E2M1_DOUBLED[unpack(blocks["qs"], 4, 8)].reshape(n, 4, 16)
    return (_UE4M3[blocks["d"]][:, :, None] * values).reshape(n, 64)


_IQ4_XS = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])

TABLE = (
    QuantFormat("IQ4_NL", 20, 32, np.dtype([("d", "<f2"), ("qs", "u1", 16)]), _iq4_nl),
    QuantFormat("IQ4_XS", 23, 256, _IQ4_XS, _iq4_xs),
    QuantFormat("MXFP4", 39, 32, np.dtype([("e", "u1"), ("qs", "u1", 16)]), _mxfp4),
    QuantFormat("NVFP4", 40, 64, np.dtype([("d", "u1", 4), ("qs", "u1", 32)]), _nvfp4),
)
