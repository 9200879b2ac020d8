"""Reading from and writing to the residual streams of gated hyper-connections (MODELS.md section 2.2).

A read is two launches where `down`, `inject` and `up` are float matrices, which in the released files they
are: the write of the block before, the norm of each stream and the first two products; then the third, the
gates and their mean. Where they are quantised, the steps between their products are launches of their own.

The sum of squares of a stream is only known when all of it has been read, and by then its products can be
too: `sum(w * x / rms(x))` is `sum(w * x) / rms(x)`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.triton.arithmetic import pairwise_sum, sigmoid, silu, split_dot
from strata.ops.triton.float_matmul import WINDOW_ROWS, Workspace, dot_block, last_of_tile
from strata.ops.triton.quantize import quantize_blocks

CHANNELS = 16  # of the width, that a program of the second launch computes in all streams
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
        """Elements of a stream whose products are one sum: at most 512, and a stream is whole slices."""
        return min(self.width & -self.width, 512)

    def workspace_size(self) -> tuple[int, int]:
        """Sums and tiles of a `Workspace` for windows."""
        columns, slices = self.down.shape[0], self.norm.numel() // self.slice
        tiles = triton.cdiv(columns, 16)
        return slices * WINDOW_ROWS * (columns + tiles), max(tiles, triton.cdiv(self.width, QUANTIZED))


@triton.jit
def _slice_product(residual, output, inject, written, norm, weight, rows, columns, index, num_owned,
                   num_rows, num_columns, WIDTH: tl.constexpr, STREAMS: tl.constexpr, ROWS: tl.constexpr,
                   COLUMNS: tl.constexpr, SLICE: tl.constexpr, BLOCK: tl.constexpr,
                   WRITE: tl.constexpr):  # fmt: skip
    """Slice `index` of the streams: written to, squared and summed, and multiplied with `weight`.

    The program stores what it wrote for rows below `num_owned`.
    """
    high = tl.zeros([ROWS, COLUMNS], tl.float32)
    middle, low = high, high
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    is_row = (rows < num_rows)[:, None]
    stream = index * SLICE // WIDTH
    if WRITE:
        strength = tl.load(inject + rows * STREAMS + stream, rows < num_rows, other=0.0)[:, None]
    for start in range(index * SLICE, index * SLICE + SLICE, BLOCK):
        k = start + tl.arange(0, BLOCK)
        cells = rows[:, None] * (STREAMS * WIDTH) + k[None, :]
        value = tl.load(residual + cells, is_row, other=0.0)
        if WRITE:
            channel = k - stream * WIDTH
            value += strength * tl.load(output + rows[:, None] * WIDTH + channel[None, :], is_row, other=0.0)
            tl.store(written + cells, value, (rows < num_owned)[:, None])
        squares += value * value
        w = tl.load(
            weight + columns[:, None] * (STREAMS * WIDTH) + k[None, :],
            (columns < num_columns)[:, None],
            other=0.0,
        )
        high, middle, low = split_dot(value * tl.load(norm + k)[None, :], w, high, middle, low)
    return (low + middle) + high, pairwise_sum(squares, ROWS, BLOCK)


@triton.jit
def _down(residual, output, inject, written, norm, weight, low, strengths, scales, sums, arrived, num_rows,
          num_columns, LOW: tl.constexpr, WIDTH: tl.constexpr, STREAMS: tl.constexpr, EPSILON: tl.constexpr,
          ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr, BLOCK: tl.constexpr,
          WRITE: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """A program is a tile of rows and columns, and in a window (SPLIT) a slice of them."""
    SLICES: tl.constexpr = WIDTH // SLICE  # of a stream
    tile = tl.program_id(0)
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    mask = is_row[:, None] & (columns < num_columns)[None, :]
    cells = sums + rows[:, None] * num_columns + columns[None, :]
    squares = sums + STREAMS * SLICES * num_rows * num_columns + tile * (STREAMS * SLICES) * num_rows + rows
    num_owned = tl.where(tile == 0, num_rows, 0)  # one program for each row and slice
    is_last = True
    if SPLIT:
        index = tl.program_id(2)
        part, square = _slice_product(residual, output, inject, written, norm, weight, rows, columns, index,
                                      num_owned, num_rows, num_columns, WIDTH, STREAMS, ROWS, COLUMNS, SLICE,
                                      BLOCK, WRITE)  # fmt: skip
        tl.store(cells + index * num_rows * num_columns, part, mask)
        tl.store(squares + index * num_rows, square, is_row)
        is_last = last_of_tile(arrived + tile, STREAMS * SLICES)
    if is_last:
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for stream in range(STREAMS):
            part = tl.zeros([ROWS, COLUMNS], tl.float32)
            square = tl.zeros([ROWS], tl.float32)
            for index in range(stream * SLICES, (stream + 1) * SLICES):
                if SPLIT:
                    part += tl.load(
                        cells + index * num_rows * num_columns, mask, other=0.0, cache_modifier=".cg"
                    )
                    square += tl.load(squares + index * num_rows, is_row, other=0.0, cache_modifier=".cg")
                else:
                    more, squared = _slice_product(
                        residual, output, inject, written, norm, weight, rows, columns, index, num_owned,
                        num_rows, num_columns, WIDTH, STREAMS, ROWS, COLUMNS, SLICE, BLOCK,
                        WRITE)  # fmt: skip
                    part += more
                    square += squared
            scale = tl.rsqrt(square / WIDTH + EPSILON)
            tl.store(scales + rows * STREAMS + stream, scale, rows < num_owned)
            total += part * scale[:, None]
        total = total / STREAMS
        is_low = (columns < LOW)[None, :]
        tl.store(low + rows[:, None] * LOW + columns[None, :], silu(total), mask & is_low)
        tl.store(
            strengths + rows[:, None] * STREAMS + (columns - LOW)[None, :],
            2 * sigmoid(total),
            mask & (is_low == 0),
        )


@triton.jit
def _up(residual, scales, norm, low, weight, out, codes, code_scales, arrived, num_rows, LOW: tl.constexpr,
        WIDTH: tl.constexpr, STREAMS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
        BLOCK: tl.constexpr, QUANTIZE: tl.constexpr):  # fmt: skip
    """A program is CHANNELS of some rows, with the gates of all their streams, streams innermost."""
    COLUMNS: tl.constexpr = CHANNELS * STREAMS
    channels = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row = (rows < num_rows)[:, None]
    column = tl.arange(0, COLUMNS)
    stream = column % STREAMS
    gate_row = stream * WIDTH + tl.program_id(0) * CHANNELS + column // STREAMS
    high = tl.zeros([ROWS, COLUMNS], tl.float32)
    middle, lowest = high, high
    for start in range(0, LOW, BLOCK):
        k = start + tl.arange(0, BLOCK)
        a = tl.load(low + rows[:, None] * LOW + k[None, :], is_row & (k < LOW)[None, :], other=0.0)
        w = tl.load(weight + gate_row[:, None] * LOW + k[None, :], (k < LOW)[None, :], other=0.0)
        high, middle, lowest = split_dot(a, w, high, middle, lowest)
    gate = sigmoid((lowest + middle) + high)
    value = tl.load(residual + rows[:, None] * (STREAMS * WIDTH) + gate_row[None, :], is_row, other=0.0)
    value = value * tl.load(scales + rows[:, None] * STREAMS + stream[None, :], is_row, other=0.0)
    value = value * tl.load(norm + gate_row)[None, :]
    # streams lie innermost, so neighbours are added, whatever the layout
    mean = (
        pairwise_sum(tl.reshape(gate * value, [ROWS * CHANNELS, STREAMS]), ROWS * CHANNELS, STREAMS) / STREAMS
    )
    tl.store(out + rows[:, None] * WIDTH + channels[None, :], tl.reshape(mean, [ROWS, CHANNELS]), is_row)
    if QUANTIZE:
        block = tl.program_id(0) * CHANNELS // 128
        tile = tl.program_id(1) * (WIDTH // 128) + block
        if last_of_tile(arrived + tile, 128 // CHANNELS):
            cells = rows[:, None] * WIDTH + block * 128 + tl.arange(0, 128)[None, :]
            code, scale = quantize_blocks(tl.load(out + cells, is_row, other=0.0, cache_modifier=".cg"))
            tl.store(codes + cells, code, is_row)
            tl.store(code_scales + rows[:, None] * (WIDTH // 128) + block, scale, is_row)


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
        residual: float32 `[rows, streams, width]`; not changed.
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
    low, strengths, scales = (residual.new_empty(num_rows, n) for n in (weights.low_rank, streams, streams))
    is_window = num_rows <= WINDOW_ROWS
    rows, columns = (16, 16) if is_window else (32, 64)
    num_columns = weights.down.shape[0]
    grid = (triton.cdiv(num_columns, columns), triton.cdiv(num_rows, rows))
    if is_window:
        workspace.require(*weights.workspace_size())
        grid += (weights.norm.numel() // weights.slice,)
    _down[grid](
        residual, output, inject, written, weights.norm, weights.down, low, strengths, scales,
        workspace.sums, workspace.arrived, num_rows, num_columns, LOW=weights.low_rank, WIDTH=width,
        STREAMS=streams, EPSILON=weights.epsilon, ROWS=rows, COLUMNS=columns, SLICE=weights.slice,
        BLOCK=min(dot_block(weights.down), weights.slice), WRITE=output is not None, SPLIT=is_window,
        num_warps=4 if is_window else 8,
        num_stages=2, enable_fp_fusion=False,
    )  # fmt: skip
    x = residual.new_empty(num_rows, width)
    codes, code_scales = quantized or (x, x)
    arrived = workspace.arrived
    if quantized is not None and not is_window:
        arrived = torch.zeros(
            triton.cdiv(num_rows, rows) * (width // QUANTIZED), dtype=torch.int32, device=x.device
        )
    _up[(width // CHANNELS, triton.cdiv(num_rows, rows))](
        written, scales, weights.norm, low, weights.up, x, codes, code_scales, arrived, num_rows,
        LOW=weights.low_rank, WIDTH=width, STREAMS=streams, ROWS=rows, CHANNELS=CHANNELS,
        BLOCK=dot_block(weights.up), QUANTIZE=quantized is not None, num_warps=4 if is_window else 8,
        num_stages=2, enable_fp_fusion=False,
    )  # fmt: skip
    return written, x, strengths
