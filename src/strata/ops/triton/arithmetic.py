"""What several kernels compute with: activation functions, and sums whose order no layout can change.

`tl.sum` adds in the order in which the compiler has spread a tile over threads, which may change with the
number of rows in the tile. A row must come out in the same bits in a window as in a prompt: where tiles hold
several rows, sums over a row are made by `pairwise_sum`, and products with matrices by `split_dot`.
"""

import triton
import triton.language as tl
from triton.language import core

from strata.ops.triton.intrinsics import INTERPRETED


@triton.jit
def sigmoid(x):
    """`1 / (1 + exp(-x))`."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def silu(x):
    """`x / (1 + exp(-x))`."""
    return x / (1 + tl.exp(-x))


@triton.jit
def softplus(x):
    """`log(1 + exp(x))`; beyond 20, `x`."""
    return tl.where(x > 20, x, tl.log(1 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def pairwise_sum(x, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Sums `[ROWS]` over the second dimension of `[ROWS, WIDTH]`: neighbours first, then neighbours of those.

    WIDTH is a power of two below 2**10.
    """
    for level in tl.static_range(10):
        if (WIDTH >> level) > 1:
            left, right = tl.split(tl.reshape(x, [ROWS, WIDTH >> (level + 1), 2]))
            x = left + right
    return tl.reshape(x, [ROWS])


@core.extern
def _multiplies_bfloat16(_semantic=None):
    """Whether the target's matrix units take bfloat16: NVIDIA from Ampere, Radeon from RDNA3, CDNA.

    Elsewhere Triton would make it of scalar instructions, slower than float32 is there, or fail.
    """
    arch = str(getattr(_semantic.builder.options, "arch", "") or "")
    return core.constexpr(arch not in ("sm70", "sm72", "sm75", "gfx906") and not arch.startswith("gfx10"))


@triton.jit
def split_bfloat16(x):
    """Three bfloat16 whose sum is the float32 `x`: 24 bits of mantissa are three times 8."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def split_dot(x, w, high, middle, low):
    """Add `x @ w.T` to the sum of three accumulators, in float32 accuracy, the same for any number of rows.

    Each float32 is taken as the sum of bfloat16 parts: products of parts are exact, and matrix units add them
    in an order that does not depend on the other rows of a tile. What was multiplied with the high parts of
    `x` adds to `high`, and so on. Where there are no such units it is all multiplied in float32, into `high`.

    Args:
        x: float32 `[rows, k]`.
        w: float32, float16 or bfloat16 `[columns, k]`.
        high, middle, low: float32 `[rows, columns]`.

    Returns:
        The accumulators; the product is `(low + middle) + high`.
    """
    if INTERPRETED:
        high, middle, low = _split_dot(x, w, high, middle, low)
    else:
        UNITS: tl.constexpr = _multiplies_bfloat16()
        if UNITS:
            high, middle, low = _split_dot(x, w, high, middle, low)
        else:
            high = tl.dot(x, tl.trans(w.to(tl.float32)), high, input_precision="ieee")
    return high, middle, low


@triton.jit
def _split_dot(x, w, high, middle, low):
    x_high, x_middle, x_low = split_bfloat16(x)
    if w.dtype == tl.bfloat16:
        high, middle, low = _dots(x_high, x_middle, x_low, w, high, middle, low)
    else:
        w_high, w_middle, w_low = split_bfloat16(w.to(tl.float32))
        high, middle, low = _dots(x_high, x_middle, x_low, w_high, high, middle, low)
        high, middle, low = _dots(x_high, x_middle, x_low, w_middle, high, middle, low)
        if w.dtype == tl.float32:  # float16 has 11 bits: two parts hold it
            high, middle, low = _dots(x_high, x_middle, x_low, w_low, high, middle, low)
    return high, middle, low


@triton.jit
def _dots(x_high, x_middle, x_low, w, high, middle, low):
    w = tl.trans(w)
    return tl.dot(x_high, w, high), tl.dot(x_middle, w, middle), tl.dot(x_low, w, low)
