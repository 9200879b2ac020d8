"""What several kernels compute with: activation functions, and sums whose order no layout can change.

`tl.sum` adds in the order in which the compiler has spread a tile over threads, which may change with the
number of rows in the tile. A row must come out in the same bits in a window as in a prompt: where tiles hold
several rows, sums over a row are made by `pairwise_sum`, and products with matrices by `dot_parts`.
"""

import triton
import triton.language as tl
from triton.language import core

from strata.ops.triton.intrinsics import INTERPRETED
from strata.ops.triton.kernel import current_target


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

    WIDTH is a power of two up to 2**10.
    """
    for level in tl.static_range(10):
        if (WIDTH >> level) > 1:
            left, right = tl.split(tl.reshape(x, [ROWS, WIDTH >> (level + 1), 2]))
            x = left + right
    return tl.reshape(x, [ROWS])


def _takes_bfloat16(arch: str) -> bool:
    """Whether a target's matrix units take bfloat16: NVIDIA from Ampere, Radeon from RDNA3, CDNA.

    Elsewhere Triton would make it of scalar instructions, slower than float32 is there, or fail.
    """
    return arch not in ("sm70", "sm72", "sm75", "gfx906") and not arch.startswith("gfx10")


def has_matrix_units() -> bool:
    """Whether the card at hand (in Triton's interpreter: the one that it stands for) multiplies bfloat16."""
    if INTERPRETED:
        return True
    arch = current_target().arch
    return _takes_bfloat16(arch if isinstance(arch, str) else f"sm{arch}")


@core.extern
def _multiplies_bfloat16(_semantic=None):
    return core.constexpr(_takes_bfloat16(str(getattr(_semantic.builder.options, "arch", "") or "")))


@triton.jit
def split_bfloat16(x):
    """Three bfloat16 whose sum is the float32 `x`: 24 bits of mantissa are three times 8."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def dot_part(x, w, total):
    """Add `x @ w.T` in float32 accuracy, in an order that does not depend on the other rows of a tile.

    Parts of float32 are bfloat16; their products are exact, and matrix units add them up. Where `w` is
    bfloat16 the order does not depend on how many elements are multiplied at once either, else it does.

    Args:
        x: bfloat16 `[rows, k]`, a part of the activations.
        w: float32, float16 or bfloat16 `[columns, k]`.
        total: float32 `[rows, columns]`.
    """
    if INTERPRETED:
        total = _dot_part(x, w, total)
    else:
        UNITS: tl.constexpr = _multiplies_bfloat16()
        if UNITS:
            total = _dot_part(x, w, total)
        else:
            total = tl.dot(x.to(tl.float32), tl.trans(w.to(tl.float32)), total, input_precision="ieee")
    return total


@triton.jit
def _dot_part(x, w, total):
    if w.dtype == tl.bfloat16:
        total = tl.dot(x, tl.trans(w), total)
    else:
        high, middle, low = split_bfloat16(w.to(tl.float32))
        total = tl.dot(x, tl.trans(high), total)
        total = tl.dot(x, tl.trans(middle), total)
        if w.dtype == tl.float32:  # float16 has 11 bits: two parts hold it
            total = tl.dot(x, tl.trans(low), total)
    return total


@triton.jit
def dot_parts(x_high, x_middle, x_low, w, high, middle, low):
    """`dot_part` of the three parts of activations; of their sums `add_parts` makes the product."""
    return dot_part(x_high, w, high), dot_part(x_middle, w, middle), dot_part(x_low, w, low)


@triton.jit
def add_parts(high, middle, low):
    """`(low + middle) + high`.

    Not by `+`: what is added to a product that began at zero, the compiler lets the product begin with.
    """
    one = tl.full(low.shape, 1.0, tl.float32)
    return tl.fma(tl.fma(low, one, middle), one, high)


@triton.jit
def stack_parts(x):
    """For up to four rows: their parts as rows of one tile, so that one `dot_part` does for three.

    Args:
        x: float32 `[rows, k]`, 1, 2 or 4 rows.

    Returns:
        bfloat16 `[16, k]`: the rows' low parts, repeated up to 4 rows, from 0 on, middle parts from 4, high
        ones from 8, zeros from 12. So NVIDIA's matrix units leave what `unstack` adds in one warp: of sums
        of products with it `unstack` makes the product.
    """
    ROWS: tl.constexpr = x.shape[0]
    K: tl.constexpr = x.shape[1]
    if ROWS > 1:
        x = tl.reshape(tl.broadcast_to(x[None, None], [4, 4 // ROWS, ROWS, K]), [16, K])
    high, middle, low = split_bfloat16(x)
    # Not by `tl.join`, behind which Triton multiplies in another order of k.
    part = tl.arange(0, 16)[:, None] // 4
    stacked = tl.where(part == 0, low, tl.where(part == 1, middle, high))
    return tl.where(part == 3, tl.zeros_like(stacked), stacked)


@triton.jit
def unstack(total, COLUMNS: tl.constexpr):
    """The product float32 `[4, COLUMNS]`, of sums `[16, COLUMNS]` of stacked parts, as `dot_parts` has it."""
    # What stands beside the high part is no zero that would take its sign.
    is_none = tl.arange(0, 16)[:, None] >= 12
    parts = tl.reshape(tl.where(is_none, -0.0, total), [2, 2, 4, COLUMNS])
    return tl.sum(tl.sum(parts, 1), 0)
