"""Reading from and writing to the residual streams of gated hyper-connections (MODELS.md section 2.2).

In a window a read is two launches, where `down`, `inject` and `up` are float matrices, which in the released
files they are: the write of the block before, the norm of each stream and the first two products; then the
third, the gates and their mean. Prompts do the first in three. Where matrices are quantised, see `streams`.

The sum of squares of a stream is only known when all of it has been read, and by then its products can be
too: `sum(w * x / rms(x))` is `sum(w * x) / rms(x)`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.triton.arithmetic import (
    add_parts,
    dot_part,
    dot_parts,
    pairwise_sum,
    sigmoid,
    silu,
    split_bfloat16,
    stack_parts,
    unstack,
)
from strata.ops.triton.float_matmul import (
    SLICE,
    WINDOW_ROWS,
    Workspace,
    dot_block,
    last_of_tile,
    multiply_parts,
)
from strata.ops.triton.quantize import quantize_blocks

STACKED_ROWS = 4
COLUMNS = 64  # of `down` and `inject`, that a program of a window computes
QUANTIZED = 128


@dataclass(frozen=True, slots=True)
class HyperConnectionWeights:
    """A module's weights.

    Args:
        norm: float32 `[streams * width]`.
        down: float32, float16 or bfloat16 `[low_rank (+ streams), streams * width]`; below the rows of
            `down` are those of `inject`, in a module that is written back from.
        up: as `down`, `[streams * width, low_rank]`.
        streams: a power of two.
        epsilon: of the norm.
    """

    norm: torch.Tensor
    down: torch.Tensor
    up: torch.Tensor
    streams: int
    epsilon: float

    @property
    def width(self) -> int:
        return self.norm.numel() // self.streams

    @property
    def low_rank(self) -> int:
        return self.up.shape[1]

    @property
    def slice(self) -> int:
        """Elements of a stream whose products are one sum: a stream is whole slices."""
        return min(self.width & -self.width, SLICE)

    def workspace_size(self) -> tuple[int, int]:
        """Sums and tiles of a `Workspace` for windows."""
        columns, slices = self.down.shape[0], self.norm.numel() // self.slice
        tiles = triton.cdiv(columns, COLUMNS)
        squares = tiles * self.norm.numel() // 16
        return WINDOW_ROWS * (slices * columns + squares), max(tiles, triton.cdiv(self.width, QUANTIZED))


@triton.jit
def _written(residual, output, strength, written, row, k, stream, num_rows, num_owned, WIDTH: tl.constexpr,
             STREAMS: tl.constexpr, ROWS: tl.constexpr, WRITE: tl.constexpr):  # fmt: skip
    """Elements `k` of rows `row % ROWS` of the streams, after the write; stored where `row < num_owned`."""
    rows = (row % ROWS)[:, None]
    cells = rows * (STREAMS * WIDTH) + k[None, :]
    value = tl.load(residual + cells, rows < num_rows, other=0.0)
    if WRITE:
        more = tl.load(output + rows * WIDTH + (k - stream * WIDTH)[None, :], rows < num_rows, other=0.0)
        value += strength[:, None] * more
        tl.store(written + cells, value, (row < num_owned)[:, None])
    return value


@triton.jit
def _store_low(total, rows, columns, low, strengths, num_rows, num_columns, LOW: tl.constexpr,
               STREAMS: tl.constexpr):  # fmt: skip
    """What is multiplied with `up`, in parts; and how strongly the block's output is to be added."""
    total = total / STREAMS
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    is_low = mask & (columns < LOW)[None, :]
    cells = low + rows.to(tl.int64)[:, None] * LOW + columns[None, :]
    plane = tl.cast(num_rows, tl.int64) * LOW
    high, middle, lowest = split_bfloat16(silu(total))
    tl.store(cells, high, is_low)
    tl.store(cells + plane, middle, is_low)
    tl.store(cells + 2 * plane, lowest, is_low)
    is_inject = mask & (columns >= LOW)[None, :]
    tl.store(strengths + rows[:, None] * STREAMS + (columns - LOW)[None, :], 2 * sigmoid(total), is_inject)


@triton.jit
def _down_window(residual, output, inject, written, norm, weight, low, strengths, scales, sums, arrived,
                 num_rows, num_columns, LOW: tl.constexpr, WIDTH: tl.constexpr, STREAMS: tl.constexpr,
                 EPSILON: tl.constexpr, STACKED: tl.constexpr, USED: tl.constexpr, COLUMNS: tl.constexpr,
                 SLICE: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
                 WRITE: tl.constexpr):  # fmt: skip
    """A program is a tile of columns and a slice; `num_rows` is at most USED, with STACKED at most 4."""
    SLICES: tl.constexpr = WIDTH // SLICE  # of a stream
    ROWS: tl.constexpr = 4 if STACKED else 16
    SQUARES: tl.constexpr = STREAMS * (WIDTH // BLOCK)  # sums of squares of a row
    tile, index = tl.program_id(0), tl.program_id(1)
    columns, row = tile * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, 16)
    stream = index // SLICES
    num_owned = tl.where(tile == 0, num_rows, 0)  # one program for each slice
    strength = (
        tl.load(inject + row % ROWS * STREAMS + stream, row % ROWS < num_rows, other=0.0) if WRITE else row
    )
    square_sums = sums + STREAMS * SLICES * num_rows * num_columns + tile * (num_rows * SQUARES)
    high = tl.zeros([16, COLUMNS], tl.float32)
    middle, lowest = high, high
    for start in range(index * SLICE, index * SLICE + SLICE, BLOCK):
        k = start + tl.arange(0, BLOCK)
        w = tl.load(
            weight + columns[:, None] * (STREAMS * WIDTH) + k[None, :],
            (columns < num_columns)[:, None],
            other=0.0,
        )
        value = _written(residual, output, strength, written, row, k, stream, num_rows, num_owned, WIDTH,
                         STREAMS, ROWS, WRITE)  # fmt: skip
        square = pairwise_sum(value * value, 16, BLOCK)
        tl.store(square_sums + row * SQUARES + start // BLOCK, square, row < num_rows)
        x = value * tl.load(norm + k)[None, :]
        if STACKED:
            high = dot_part(stack_parts(x, (row // 4)[:, None]), w, high)
        else:
            x_high, x_middle, x_low = split_bfloat16(x)
            high, middle, lowest = dot_parts(x_high, x_middle, x_low, w, high, middle, lowest)
    product = unstack(high, COLUMNS) if STACKED else add_parts(high, middle, lowest)
    size = num_rows * num_columns
    rows = tl.arange(0, ROWS)[:, None]
    mask = (rows < num_rows) & (columns < num_columns)[None, :]
    tl.store(sums + index * size + rows * num_columns + columns[None, :], product, mask)
    if last_of_tile(arrived + tile, STREAMS * SLICES):
        used, block = tl.arange(0, USED), tl.arange(0, BLOCKS)
        is_cell = (used < num_rows)[:, None] & (columns < num_columns)[None, :]
        cells = sums + used[:, None] * num_columns + columns[None, :]
        is_square = (used < num_rows)[:, None] & (block < WIDTH // BLOCK)[None, :]
        squares = square_sums + used[:, None] * SQUARES + block[None, :]
        total = tl.zeros([USED, COLUMNS], tl.float32)
        for group in tl.static_range(STREAMS):  # unrolled: all are loaded at once
            part = tl.zeros([USED, COLUMNS], tl.float32)
            for each in tl.static_range(group * SLICES, (group + 1) * SLICES):
                part += tl.load(cells + each * size, is_cell, other=0.0, cache_modifier=".cg")
            squared = tl.load(squares + group * (WIDTH // BLOCK), is_square, other=0.0, cache_modifier=".cg")
            scale = tl.rsqrt(pairwise_sum(squared, USED, BLOCKS) / WIDTH + EPSILON)
            tl.store(scales + used * STREAMS + group, scale, used < num_owned)
            total += part * scale[:, None]
        _store_low(total, used, columns, low, strengths, num_rows, num_columns, LOW, STREAMS)


@triton.jit
def _write_prompt(residual, output, inject, written, norm, parts, scales, num_rows, WIDTH: tl.constexpr,
                  STREAMS: tl.constexpr, EPSILON: tl.constexpr, PADDED: tl.constexpr,
                  WRITE: tl.constexpr):  # fmt: skip
    """A program is a stream of a row: written to, its scale, and what is multiplied with `down`."""
    stream, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, PADDED)
    mask = column < WIDTH
    k = stream * WIDTH + column
    value = tl.load(residual + row * (STREAMS * WIDTH) + k, mask, other=0.0)
    if WRITE:
        strength = tl.load(inject + row * STREAMS + stream)
        value += strength * tl.load(output + row * WIDTH + column, mask, other=0.0)
        tl.store(written + row * (STREAMS * WIDTH) + k, value, mask)
    high, middle, low = split_bfloat16(value * tl.load(norm + k, mask, other=0.0))
    plane = tl.cast(num_rows, tl.int64) * (STREAMS * WIDTH)
    cells = parts + row * (STREAMS * WIDTH) + k
    tl.store(cells, high, mask)
    tl.store(cells + plane, middle, mask)
    tl.store(cells + 2 * plane, low, mask)
    square = pairwise_sum(tl.reshape(value * value, [1, PADDED]), 1, PADDED)
    scale = tl.rsqrt(square / WIDTH + EPSILON)
    tl.store(scales + row * STREAMS + stream + tl.arange(0, 1), scale)


@triton.jit
def _low_prompt(product, low, strengths, num_rows, num_columns, LOW: tl.constexpr, STREAMS: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """A program is a row."""
    rows, columns = tl.program_id(0) + tl.arange(0, 1), tl.arange(0, BLOCK)
    cells = rows.to(tl.int64)[:, None] * num_columns + columns[None, :]
    total = tl.load(product + cells, (columns < num_columns)[None, :], other=0.0)
    _store_low(total, rows, columns, low, strengths, num_rows, num_columns, LOW, STREAMS)


@triton.jit
def _up(residual, scales, norm, low, weight, out, codes, code_scales, arrived, num_rows, LOW: tl.constexpr,
        WIDTH: tl.constexpr, STREAMS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
        BLOCK: tl.constexpr, QUANTIZE: tl.constexpr):  # fmt: skip
    """A program is CHANNELS of some rows, with the gates of all their streams, streams innermost.

    With 4 ROWS their parts are rows of one tile, see `stack_parts`.
    """
    COLUMNS: tl.constexpr = CHANNELS * STREAMS
    channels = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row, wide_rows = (rows < num_rows)[:, None], rows.to(tl.int64)[:, None]
    column = tl.arange(0, COLUMNS)
    stream = column % STREAMS
    gate_row = stream * WIDTH + tl.program_id(0) * CHANNELS + column // STREAMS
    value = tl.load(residual + wide_rows * (STREAMS * WIDTH) + gate_row[None, :], is_row, other=0.0)
    value = value * tl.load(scales + rows[:, None] * STREAMS + stream[None, :], is_row, other=0.0)
    value = value * tl.load(norm + gate_row)[None, :]
    plane = tl.cast(num_rows, tl.int64) * LOW
    stacked = tl.arange(0, 16)[:, None]
    TILE: tl.constexpr = 16 if ROWS == 4 else ROWS
    high = tl.zeros([TILE, COLUMNS], tl.float32)
    middle, lowest = high, high
    for start in range(0, LOW, BLOCK):
        k = (start + tl.arange(0, BLOCK))[None, :]
        w = tl.load(weight + gate_row[:, None] * LOW + k, k < LOW, other=0.0)
        if ROWS == 4:
            is_part = (stacked % 4 < num_rows) & (stacked < 12) & (k < LOW)
            a = tl.load(low + stacked // 4 * plane + stacked % 4 * LOW + k, is_part, other=0.0)
            high = dot_part(a, w, high)
        else:
            at, mask = low + wide_rows * LOW + k, is_row & (k < LOW)
            a_high, a_middle = tl.load(at, mask, other=0.0), tl.load(at + plane, mask, other=0.0)
            a_low = tl.load(at + 2 * plane, mask, other=0.0)
            high, middle, lowest = dot_parts(a_high, a_middle, a_low, w, high, middle, lowest)
    product = unstack(high, COLUMNS) if ROWS == 4 else add_parts(high, middle, lowest)
    gated = sigmoid(product) * value
    # streams lie innermost, so neighbours are added, whatever the layout
    mean = pairwise_sum(tl.reshape(gated, [ROWS * CHANNELS, STREAMS]), ROWS * CHANNELS, STREAMS) / STREAMS
    tl.store(out + wide_rows * WIDTH + channels[None, :], tl.reshape(mean, [ROWS, CHANNELS]), is_row)
    if QUANTIZE:
        block = tl.program_id(0) * CHANNELS // 128
        tile = tl.program_id(1) * (WIDTH // 128) + block
        if last_of_tile(arrived + tile, 128 // CHANNELS):
            cells = wide_rows * WIDTH + block * 128 + tl.arange(0, 128)[None, :]
            code, scale = quantize_blocks(tl.load(out + cells, is_row, other=0.0, cache_modifier=".cg"))
            tl.store(codes + cells, code, is_row)
            tl.store(code_scales + wide_rows * (WIDTH // 128) + block, scale, is_row)


def _first_products(residual, weights, workspace, output, inject, written, low, strengths, scales):
    """The write and the products with `down` and `inject`: fills in the last four."""
    num_rows, streams, width = residual.shape
    num_columns = weights.down.shape[0]
    sizes = {"WIDTH": width, "STREAMS": streams, "EPSILON": weights.epsilon, "WRITE": output is not None}
    if num_rows <= WINDOW_ROWS:
        workspace.require(*weights.workspace_size())
        block = min(dot_block(weights.down, 128 if num_rows <= STACKED_ROWS else 64), weights.slice)
        _down_window[(triton.cdiv(num_columns, COLUMNS), weights.norm.numel() // weights.slice)](
            residual, output, inject, written, weights.norm, weights.down, low, strengths, scales,
            workspace.sums, workspace.arrived, num_rows, num_columns, LOW=weights.low_rank, **sizes,
            STACKED=num_rows <= STACKED_ROWS, USED=triton.next_power_of_2(num_rows), COLUMNS=COLUMNS,
            SLICE=weights.slice, BLOCK=block, BLOCKS=triton.next_power_of_2(width // block), num_warps=4,
            num_stages=2, enable_fp_fusion=False,
        )  # fmt: skip
        return
    parts = torch.empty(3, num_rows, streams * width, dtype=torch.bfloat16, device=residual.device)
    _write_prompt[(streams, num_rows)](
        residual, output, inject, written, weights.norm, parts, scales, num_rows, **sizes,
        PADDED=triton.next_power_of_2(width), num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    product = residual.new_empty(num_rows, num_columns)
    multiply_parts(parts, weights.down, product, weights.slice, scales)
    _low_prompt[(num_rows,)](
        product, low, strengths, num_rows, num_columns, LOW=weights.low_rank, STREAMS=streams,
        BLOCK=triton.next_power_of_2(num_columns), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def read(
    residual: torch.Tensor,
    weights: HyperConnectionWeights,
    workspace: Workspace,
    output: torch.Tensor | None = None,
    inject: torch.Tensor | None = None,
    quantized: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write the output of the block before, then read the input of the next.

    Args:
        residual: float32 `[rows, streams, width]`, contiguous; not changed.
        weights: of the module.
        workspace: of `weights.workspace_size()`, for up to 16 rows.
        output: float32 `[rows, width]` to write first, `inject` times; None where there is nothing.
        inject: float32 `[rows, streams]`, as an earlier `read` returned it.
        quantized: int8 codes and float32 scales of the input, to fill in; where 128 divides the width.

    Returns:
        The streams written to (`residual` itself without `output`), a block's input float32 `[rows, width]`,
        and float32 `[rows, streams]`, how strongly its output is to be added to each stream (of no use in a
        module without `inject`).
    """
    num_rows, streams, width = residual.shape
    written = residual if output is None else torch.empty_like(residual)
    strengths, scales = residual.new_empty(num_rows, streams), residual.new_empty(num_rows, streams)
    low = torch.empty(3, num_rows, weights.low_rank, dtype=torch.bfloat16, device=residual.device)
    _first_products(residual, weights, workspace, output, inject, written, low, strengths, scales)
    is_window = num_rows <= WINDOW_ROWS
    rows, channels, block = (32, 32, 64)
    if is_window:
        rows, channels, block = (4, 16, 128) if num_rows <= STACKED_ROWS else (16, 16, 64)
    x = residual.new_empty(num_rows, width)
    codes, code_scales = quantized or (x, x)
    arrived = workspace.arrived
    if quantized is not None and not is_window:
        tiles = triton.cdiv(num_rows, rows) * (width // QUANTIZED)
        arrived = torch.zeros(tiles, dtype=torch.int32, device=x.device)
    _up[(width // channels, triton.cdiv(num_rows, rows))](
        written, scales, weights.norm, low, weights.up, x, codes, code_scales, arrived, num_rows,
        LOW=weights.low_rank, WIDTH=width, STREAMS=streams, ROWS=rows, CHANNELS=channels,
        BLOCK=dot_block(weights.up, block), QUANTIZE=quantized is not None,
        num_warps=4 if is_window else 8, num_stages=2, enable_fp_fusion=False,
    )  # fmt: skip
    return written, x, strengths
