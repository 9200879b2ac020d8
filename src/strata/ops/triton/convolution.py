"""Causal depthwise convolution over the rows of a step, whose past is in three places.

The sequence of a lane is the rows before its pending ones (`past`), those of its pending rows that stand,
and the step's own (see `lanes`). A program owns some channels of a lane: it computes what it needs of all
three, and only then moves the past on, which nobody else reads.
"""

import triton
import triton.language as tl

# Rows that a program computes. The first tile of a lane alone reads the past, so a tile is no shorter.
TILE = 16


@triton.jit
def sequence_row(index, taken, past, pending, x, channels, x_stride, HISTORY: tl.constexpr):
    """Address of row `index` of a lane: HISTORY past ones, `taken` pending ones, then those of `x`."""
    new = x + (index - HISTORY - taken) * x_stride
    old = tl.where(index < HISTORY, past + index * channels, pending + (index - HISTORY) * channels)
    return tl.where(index < HISTORY + taken, old, new)


@triton.jit
def convolve_row(index, taken, past, pending, x, weight, columns, mask, channels, x_stride,
                 KERNEL: tl.constexpr, DILATION: tl.constexpr):  # fmt: skip
    """Row `index`, convolved: the sum of `weight[c, j] * row[index - (KERNEL - 1 - j) * DILATION]`.

    It ascends in j, each operation rounded, as in `ops/convolution.py`.
    """
    HISTORY: tl.constexpr = (KERNEL - 1) * DILATION
    total = tl.zeros(columns.shape, tl.float32)
    for tap in tl.static_range(KERNEL):
        at = index - (KERNEL - 1 - tap) * DILATION
        row = sequence_row(at, taken, past, pending, x, channels, x_stride, HISTORY)
        factor = tl.load(weight + columns * KERNEL + tap, mask, other=0.0)
        product = tl.load(row + columns, mask, other=0.0) * factor
        if tap == 0:
            total = product
        else:
            total += product
    return total


@triton.jit
def advance(taken, count, past, pending, x, columns, mask, channels, x_stride,
            HISTORY: tl.constexpr, COMMIT: tl.constexpr):  # fmt: skip
    """Move the past on by `taken` rows and keep the `count` rows of `x` as pending; or commit those too."""
    tl.debug_barrier()  # all threads have read what is now overwritten
    committed = taken
    if COMMIT:
        committed += count
    for index in range(HISTORY):  # reads at or behind the row that it writes
        row = sequence_row(index + committed, taken, past, pending, x, channels, x_stride, HISTORY)
        tl.store(past + index * channels + columns, tl.load(row + columns, mask, other=0.0), mask)
    if not COMMIT:
        tl.debug_barrier()
        for index in range(count):
            row = tl.load(x + index * x_stride + columns, mask, other=0.0)
            tl.store(pending + index * channels + columns, row, mask)
