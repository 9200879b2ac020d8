"""Reading from and writing to the residual streams of gated hyper-connections (MODELS.md section 2.2).

A read is three launches where `down`, `inject` and `up` are float matrices, which in the released files they
are: the write of the block before and the scales of the norm; the products with `down` and `inject`, of
streams that are scaled afterwards; the product with `up`, the gates and their mean. Where matrices are
quantised, see `streams`.
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
    STACKED_ROWS,
    WINDOW_ROWS,
    Workspace,
    dot_block,
    last_of_tile,
    multiply_parts,
    workspace_size,
)
from strata.ops.triton.quantize import quantize_blocks

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
        sums, tiles = workspace_size(*self.down.shape, self.slice)
        return sums, max(tiles, triton.cdiv(self.width, QUANTIZED))


@triton.jit
def _write(residual, output, inject, written, norm, parts, scales, num_rows, WIDTH: tl.constexpr,
           STREAMS: tl.constexpr, EPSILON: tl.constexpr, PADDED: tl.constexpr,
           WRITE: tl.constexpr):  # fmt: skip
    """A program is a stream of a row: written to, its scale, and what is multiplied with `down`, in parts."""
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
    scale = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + EPSILON)
    tl.store(scales + row * STREAMS + stream, scale)


@triton.jit
def _activate(product, parts, num_rows, stride, STREAMS: tl.constexpr, LOW: tl.constexpr,
              PADDED: tl.constexpr):  # fmt: skip
    """A program is a row: what is multiplied with `up`, in parts, once for all of a prompt's programs."""
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    mask = k < LOW
    high, middle, low = split_bfloat16(silu(tl.load(product + row * stride + k, mask, other=0.0) / STREAMS))
    plane = tl.cast(num_rows, tl.int64) * LOW
    cells = parts + row * LOW + k
    tl.store(cells, high, mask)
    tl.store(cells + plane, middle, mask)
    tl.store(cells + 2 * plane, low, mask)


@triton.jit
def _up(residual, scales, norm, product, parts, weight, out, strengths, codes, code_scales, arrived, num_rows,
        product_stride, LOW: tl.constexpr, WIDTH: tl.constexpr, STREAMS: tl.constexpr, ROWS: tl.constexpr,
        CHANNELS: tl.constexpr, BLOCK: tl.constexpr, INJECT: tl.constexpr,
        QUANTIZE: tl.constexpr):  # fmt: skip
    """A program is CHANNELS of some rows, with the gates of all their streams, streams innermost.

    With 4 ROWS their parts are rows of one tile, see `stack_parts`. The first of a row's programs says how
    strongly the block's output is to be added.
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
    TILE: tl.constexpr = 16 if ROWS == 4 else ROWS
    row = tl.program_id(1) * ROWS + tl.arange(0, TILE)[:, None] % ROWS
    high = tl.zeros([TILE, COLUMNS], tl.float32)
    middle, lowest = high, high
    for start in range(0, LOW, BLOCK):
        k = (start + tl.arange(0, BLOCK))[None, :]
        w = tl.load(weight + gate_row[:, None] * LOW + k, k < LOW, other=0.0)
        mask = (row < num_rows) & (k < LOW)
        if parts is not None:
            plane = tl.cast(num_rows, tl.int64) * LOW
            cells = parts + row.to(tl.int64) * LOW + k
            a_high = tl.load(cells, mask, other=0.0)
            a_middle = tl.load(cells + plane, mask, other=0.0)
            a_low = tl.load(cells + 2 * plane, mask, other=0.0)
            high, middle, lowest = dot_parts(a_high, a_middle, a_low, w, high, middle, lowest)
        else:
            a = silu(tl.load(product + row.to(tl.int64) * product_stride + k, mask, other=0.0) / STREAMS)
            if ROWS == 4:
                high = dot_part(stack_parts(a, tl.arange(0, TILE)[:, None] // ROWS), w, high)
            else:
                a_high, a_middle, a_low = split_bfloat16(a)
                high, middle, lowest = dot_parts(a_high, a_middle, a_low, w, high, middle, lowest)
    gate = unstack(high, COLUMNS) if ROWS == 4 else add_parts(high, middle, lowest)
    gated = sigmoid(gate) * value
    # streams lie innermost, so neighbours are added, whatever the layout
    mean = pairwise_sum(tl.reshape(gated, [ROWS * CHANNELS, STREAMS]), ROWS * CHANNELS, STREAMS) / STREAMS
    tl.store(out + wide_rows * WIDTH + channels[None, :], tl.reshape(mean, [ROWS, CHANNELS]), is_row)
    if INJECT:
        is_owned = rows < tl.where(tl.program_id(0) == 0, num_rows, 0)
        each = tl.arange(0, STREAMS)[None, :]
        logit = tl.load(product + wide_rows * product_stride + LOW + each, is_owned[:, None], other=0.0)
        tl.store(strengths + wide_rows * STREAMS + each, 2 * sigmoid(logit / STREAMS), is_owned[:, None])
    if QUANTIZE:
        block = tl.program_id(0) * CHANNELS // 128
        tile = tl.program_id(1) * (WIDTH // 128) + block
        if last_of_tile(arrived + tile, 128 // CHANNELS):
            cells = wide_rows * WIDTH + block * 128 + tl.arange(0, 128)[None, :]
            code, scale = quantize_blocks(tl.load(out + cells, is_row, other=0.0, cache_modifier=".cg"))
            tl.store(codes + cells, code, is_row)
            tl.store(code_scales + wide_rows * (WIDTH // 128) + block, scale, is_row)


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
    parts = torch.empty(3, num_rows, streams * width, dtype=torch.bfloat16, device=residual.device)
    _write[(streams, num_rows)](
        residual, output, inject, written, weights.norm, parts, scales, num_rows, WIDTH=width,
        STREAMS=streams, EPSILON=weights.epsilon, PADDED=triton.next_power_of_2(width),
        WRITE=output is not None, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    product = multiply_parts(parts, weights.down, workspace, weights.slice, scales)
    rows, channels, block, warps = 32, 16, 64, 8
    if num_rows <= WINDOW_ROWS:
        rows, channels, block, warps = (4, 16, 128, 4) if num_rows <= STACKED_ROWS else (16, 16, 64, 4)
    x = residual.new_empty(num_rows, width)
    codes, code_scales = quantized or (x, x)
    arrived, parts = workspace.arrived, None
    if num_rows > WINDOW_ROWS:
        tiles = triton.cdiv(num_rows, rows) * triton.cdiv(width, QUANTIZED)
        arrived = torch.zeros(tiles, dtype=torch.int32, device=x.device)
        parts = torch.empty(3, num_rows, weights.low_rank, dtype=torch.bfloat16, device=x.device)
        _activate[(num_rows,)](
            product, parts, num_rows, product.stride(0), STREAMS=streams, LOW=weights.low_rank,
            PADDED=triton.next_power_of_2(weights.low_rank), num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    _up[(width // channels, triton.cdiv(num_rows, rows))](
        written, scales, weights.norm, product, parts, weights.up, x, strengths, codes, code_scales, arrived,
        num_rows, product.stride(0), LOW=weights.low_rank, WIDTH=width, STREAMS=streams, ROWS=rows,
        CHANNELS=channels, BLOCK=dot_block(weights.up, block),
        INJECT=weights.down.shape[0] > weights.low_rank, QUANTIZE=quantized is not None, num_warps=warps,
        num_stages=2, enable_fp_fusion=False,
    )  # fmt: skip
    return written, x, strengths
