"""Causal depthwise convolution over the rows of a step, whose past is in three places.

The sequence of a lane is the rows before its pending ones (`past`), those of its pending rows that stand,
and the step's own (see `lanes`). A program owns some channels of a lane: it computes what it needs of all
three, and only then moves the past on, which nobody else reads.
"""

import triton
import triton.language as tl

# Rows that a program computes at once. The first tile of a lane alone reads the past, so it is no shorter;
# and a lane's pending rows are one tile.
TILE = 16


@triton.jit
def load_rows(index, mask, taken, past, pending, x, columns, channels, x_stride, HISTORY: tl.constexpr):
    """Rows `index` of a lane, `[rows, columns]`: HISTORY past ones, `taken` pending ones, then those of `x`.

    Each is in one of three places, and is loaded from there only: Triton 3.7 cannot choose between pointers
    when it compiles for Radeons.
    """
    is_past, is_new = (index < HISTORY)[:, None], (index >= HISTORY + taken)[:, None]
    at = past + index[:, None] * channels + columns[None, :]
    old = tl.load(at, mask & is_past, other=0)
    at = pending + (index - HISTORY)[:, None] * channels + columns[None, :]
    waiting = tl.load(at, mask & (is_past == 0) & (is_new == 0), other=0)
    at = x + (index - HISTORY - taken)[:, None] * x_stride + columns[None, :]
    new = tl.load(at, mask & is_new, other=0)
    return tl.where(is_past, old, tl.where(is_new, new, waiting))


@triton.jit
def load_taps(weight, columns, is_column, KERNEL: tl.constexpr):
    """The KERNEL weights of columns, a tuple of `[columns]`.

    By themselves: Triton converts them for their use at once, and rows loaded between two would wait.
    """
    taps = ()
    for tap in tl.static_range(KERNEL):
        factor = tl.load(weight + columns * KERNEL + tap, is_column, other=0.0)
        taps = taps + (factor,)  # noqa: RUF005 - Triton unpacks no tuple
    return taps


@triton.jit
def convolve_rows(index, is_row, taken, past, pending, x, taps, columns, is_column, channels, x_stride,
                  KERNEL: tl.constexpr, DILATION: tl.constexpr):  # fmt: skip
    """Rows `index`, convolved: sums of `weight[c, j] * row[index - (KERNEL - 1 - j) * DILATION]`.

    They ascend in j, each operation rounded, as in `ops/convolution.py`.

    Args:
        index, is_row: `[rows]`, and which of them there are.
        taps: of `load_taps`.
        columns, is_column: `[columns]`.

    Returns:
        float32 `[rows, columns]`.
    """
    HISTORY: tl.constexpr = (KERNEL - 1) * DILATION
    mask = is_row[:, None] & is_column[None, :]
    total = tl.zeros(mask.shape, tl.float32)
    for tap in tl.static_range(KERNEL):
        at = index - (KERNEL - 1 - tap) * DILATION
        rows = load_rows(at, mask, taken, past, pending, x, columns, channels, x_stride, HISTORY)
        product = rows * taps[tap][None, :]
        if tap == 0:
            total = product
        else:
            total += product
    return total


@triton.jit
def load_advance(taken, count, past, pending, x, columns, is_column, channels, x_stride,
                 HISTORY: tl.constexpr, HISTORY_BLOCK: tl.constexpr, TILE: tl.constexpr,
                 COMMIT: tl.constexpr):  # fmt: skip
    """What `store_advance` stores: rows that are then past, and if they are not committed, pending ones."""
    committed = taken
    if COMMIT:
        committed += count
    index, row = tl.arange(0, HISTORY_BLOCK), tl.arange(0, TILE)
    mask = (index < HISTORY)[:, None] & is_column[None, :]
    moved = load_rows(
        index + committed, mask, taken, past, pending, x, columns, channels, x_stride, HISTORY
    )  # fmt: skip
    kept = moved
    if not COMMIT:
        is_pending = (row < count)[:, None] & is_column[None, :]
        kept = tl.load(x + row[:, None] * x_stride + columns[None, :], is_pending, other=0)
    return moved, kept


@triton.jit
def store_advance(loaded, count, past, pending, columns, is_column, channels,
                  HISTORY: tl.constexpr, HISTORY_BLOCK: tl.constexpr, TILE: tl.constexpr,
                  COMMIT: tl.constexpr):  # fmt: skip
    """Move the past on by `taken` rows and keep the `count` rows of `x` as pending; or commit those too."""
    index, row = tl.arange(0, HISTORY_BLOCK), tl.arange(0, TILE)
    mask = (index < HISTORY)[:, None] & is_column[None, :]
    tl.debug_barrier()  # all threads have read what is now overwritten
    tl.store(past + index[:, None] * channels + columns[None, :], loaded[0], mask)
    if not COMMIT:
        is_pending = (row < count)[:, None] & is_column[None, :]
        tl.store(pending + row[:, None] * channels + columns[None, :], loaded[1], is_pending)


@triton.jit
def advance(taken, count, past, pending, x, columns, is_column, channels, x_stride,
            HISTORY: tl.constexpr, HISTORY_BLOCK: tl.constexpr, TILE: tl.constexpr,
            COMMIT: tl.constexpr):  # fmt: skip
    """`load_advance` and `store_advance`, where nothing is stored between them."""
    loaded = load_advance(taken, count, past, pending, x, columns, is_column, channels, x_stride, HISTORY,
                          HISTORY_BLOCK, TILE, COMMIT)  # fmt: skip
    store_advance(loaded, count, past, pending, columns, is_column, channels, HISTORY, HISTORY_BLOCK, TILE,
                  COMMIT)  # fmt: skip
