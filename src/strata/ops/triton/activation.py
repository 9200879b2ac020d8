"""SwiGLU in the multiplications and additions of docs/NUMERICS.md, "Inside an expert", bit for bit."""

import triton
import triton.language as tl

from strata.ops import quantized_experts as reference

_P = [tl.constexpr(float(c)) for c in reference._EXP]
_P0, _P1, _P2, _P3, _P4, _P5 = _P
_LN2_HIGH, _LN2_LOW = tl.constexpr(float(reference._LN2_HIGH)), tl.constexpr(float(reference._LN2_LOW))
_PER_LN2 = tl.constexpr(1.4426950216293335)  # float32 nearest to 1.44269504
_ROUND = tl.constexpr(float(reference._ROUND))


@triton.jit
def exponential(x):
    """exp(x) of float32, `strata.ops.quantized_experts.exponential`; needs `enable_fp_fusion=False`."""
    x = tl.where(x > 88.0, 88.0, tl.where(x < -87.0, -87.0, x))
    shifted = x * _PER_LN2 + _ROUND
    n = shifted - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = r * _P0 + _P1
    p = p * r + _P2
    p = p * r + _P3
    p = p * r + _P4
    p = p * r + _P5
    y = (p * (r * r) + r) + 1.0
    exponent = (shifted.to(tl.int32, bitcast=True) - (0x4B400000 - 127)) << 23
    return y * exponent.to(tl.float32, bitcast=True)


@triton.jit
def swiglu(gate, up):
    """`silu(gate) * up` of float32."""
    return tl.math.div_rn(gate, 1.0 + exponential(-gate)) * up
