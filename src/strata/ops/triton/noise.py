"""Logarithms, exponentials and the noise of sampling in float64, made of its four operations.

Triton has no float64 `log` that every card takes. These are within two units of the last place; what they
are compared with (`engine/sampling.py`, numpy) is within one.
"""

import triton
import triton.language as tl


@triton.jit
def log(x):
    """Natural logarithm of float64 `x`, positive and not subnormal."""
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).to(tl.float64, bitcast=True)
    is_high = mantissa > 1.4142135623730951
    mantissa = tl.where(is_high, mantissa * 0.5, mantissa)
    exponent = (exponent + is_high.to(tl.int64)).to(tl.float64)
    # log(m) = 2 artanh((m - 1) / (m + 1)), which is below 0.172
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = square * (1.0 / 21.0) + (1.0 / 19.0)
    series = series * square + (1.0 / 17.0)
    series = series * square + (1.0 / 15.0)
    series = series * square + (1.0 / 13.0)
    series = series * square + (1.0 / 11.0)
    series = series * square + (1.0 / 9.0)
    series = series * square + (1.0 / 7.0)
    series = series * square + (1.0 / 5.0)
    series = series * square + (1.0 / 3.0)
    return exponent * 0.6931471805599453 + (2.0 * s + 2.0 * s * square * series)


@triton.jit
def exp(x):
    """Exponential of float64 `x` from -700 to 700."""
    turns = tl.floor(x * 1.4426950408889634 + 0.5)
    x = (x - turns * 0.6931471803691238) - turns * 1.9082149292705877e-10
    series = x * (1.0 / 13.0) + 1.0
    series = series * x * (1.0 / 12.0) + 1.0
    series = series * x * (1.0 / 11.0) + 1.0
    series = series * x * (1.0 / 10.0) + 1.0
    series = series * x * (1.0 / 9.0) + 1.0
    series = series * x * (1.0 / 8.0) + 1.0
    series = series * x * (1.0 / 7.0) + 1.0
    series = series * x * (1.0 / 6.0) + 1.0
    series = series * x * (1.0 / 5.0) + 1.0
    series = series * x * (1.0 / 4.0) + 1.0
    series = series * x * (1.0 / 3.0) + 1.0
    series = series * x * (1.0 / 2.0) + 1.0
    series = series * x + 1.0
    return series * ((turns.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def random_word(seed, position, token):
    """uint32: Philox4x32-10's word 0 for the counter (token, position, 0, 0), see `engine/philox.py`."""
    zero = token.to(tl.uint32) * 0
    word, _, _, _ = tl.philox(seed, token.to(tl.uint32), zero + position.to(tl.uint32), zero, zero)
    return word


@triton.jit
def gumbel(word):
    """Gumbel noise, float64: -log(-log((word + 1/2) / 2**32))."""
    return -log(-log((word.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)))


@triton.jit
def rough_gumbel(word):
    """The same in float32, within 1e-4: to find out which few need the other."""
    upper = word >= 0x80000000
    u = (word.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    v = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * (1.0 / 4294967296.0)  # 1 - u, exact where u is near 1
    near_one = tl.where(v < 0.01, v * (1.0 + v * (0.5 + v * 0.33333333)), -tl.log(1.0 - tl.minimum(v, 0.6)))
    return -tl.log(tl.where(upper, near_one, -tl.log(u)))
