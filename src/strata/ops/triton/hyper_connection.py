"""Reading from and writing to the residual streams of gated hyper-connections (MODELS.md section 2.2).

A read is two launches for a window: the write of the block before, the scales of the norm, and the products
with `down` and `inject`, of streams that are scaled afterwards; the product with `up`, the gates and their
mean. A prompt's writes come first, by themselves. Matrices are floats; for quantised ones see `streams`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.triton.arithmetic import (
    add_parts,
    dot_parts,
    has_matrix_units,
    pairwise_sum,
    sigmoid,
    silu,
    split_bfloat16,
    unstack,
)
from strata.ops.triton.capability import (
    loads_to_shared_memory,
    loads_together,
    multiplies_by_warp_groups,
    warps,
)
from strata.ops.triton.dependent_launch import launch_dependents, prefetch, step_launch, wait_for_earlier
from strata.ops.triton.float_matmul import (
    SLICE,
    STACKED_ROWS,
    WINDOW_COLUMNS,
    WINDOW_ROWS,
    add_products,
    add_slices,
    dot_block,
    last_of_tile,
    load_columns,
    load_parts,
    multiply_parts,
    prefetch_slice,
    store_slice,
    window_block,
    window_options,
    workspace_size,
)
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.quantize import quantize_blocks
from strata.ops.triton.workspace import Workspace

QUANTIZED = 128
_CHANNELS = 16  # of a program of `_up`, each with all streams


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
        """Sums and tiles of a `Workspace` for windows: squares come last, and the tile that adds them up."""
        sums, tiles = workspace_size(*self.down.shape, self.slice)
        squares = WINDOW_ROWS * self.norm.numel() // self.slice
        return sums + squares, max(tiles + 1, cdiv(self.width, QUANTIZED))


@triton.jit
def _written(residual, output, strength, row, stream, k, mask, WIDTH: tl.constexpr, STREAMS: tl.constexpr,
             WRITE: tl.constexpr):  # fmt: skip
    """Elements `k` of a row's streams, which lie in `stream`; with `strength` times the output."""
    value = tl.load(residual + row * (STREAMS * WIDTH) + k, mask, other=0.0)
    if WRITE:
        value += strength * tl.load(output + row * WIDTH + (k - stream * WIDTH), mask, other=0.0)
    return value


@triton.jit
def _write_slice(residual, output, inject, written, squares, num_rows, index, WIDTH: tl.constexpr,
                 STREAMS: tl.constexpr, SLICE: tl.constexpr, WRITE: tl.constexpr):  # fmt: skip
    """Write to a slice of all rows' streams, and sum up its squares, float32 `[rows, slices]`."""
    SLICES: tl.constexpr = STREAMS * WIDTH // SLICE
    k = index * SLICE + tl.arange(0, SLICE)
    stream = index * SLICE // WIDTH
    for row in range(num_rows):
        strength = tl.load(inject + row * STREAMS + stream) if WRITE else 0.0
        value = _written(residual, output, strength, row, stream, k, k >= 0, WIDTH, STREAMS, WRITE)
        if WRITE:
            tl.store(written + row * (STREAMS * WIDTH) + k, value)
        tl.store(squares + row * SLICES + index, tl.sum(value * value, 0))


@kernel
def _mix(residual, output, inject, norm, down, written, scales, out, sums, squares, arrived, num_rows,
         num_columns, WIDTH: tl.constexpr, STREAMS: tl.constexpr, EPSILON: tl.constexpr, WRITE: tl.constexpr,
         STACKED: tl.constexpr, USED: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr,
         BLOCK: tl.constexpr):  # fmt: skip
    """A program is a slice of the streams and a tile of columns of `down`, or behind those, the write.

    Of the streams' products `out` float32 `[streams, rows, columns]` is not scaled yet: the scales come last.
    """
    launch_dependents()
    SLICES: tl.constexpr = WIDTH // SLICE
    tile, index = tl.program_id(0), tl.program_id(1)
    first = tl.minimum(tile * COLUMNS, num_columns - 1)  # behind the last tile there is nothing of `down`
    prefetch_slice(down, first, num_columns, index, COLUMNS, STREAMS * WIDTH, SLICE)
    prefetch(norm + index * SLICE, SLICE)
    wait_for_earlier()
    if tile == tl.num_programs(0) - 1:
        _write_slice(residual, output, inject, written, squares, num_rows, index, WIDTH, STREAMS, SLICE,
                     WRITE)  # fmt: skip
        if last_of_tile(arrived + tile, STREAMS * SLICES):
            row, stream = tl.arange(0, USED)[:, None], tl.arange(0, STREAMS)[None, :]
            cells = squares + (row * STREAMS + stream) * SLICES
            total = add_slices(cells, (row < num_rows) & (stream >= 0), 1, SLICES)
            tl.store(scales + row * STREAMS + stream, tl.rsqrt(total / WIDTH + EPSILON), row < num_rows)
    else:
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        row = tl.arange(0, USED if STACKED else 16)[:, None]
        high = tl.zeros([16, COLUMNS], tl.float32)
        middle, low = high, high
        stream, is_row = index // SLICES, row < num_rows
        strength = tl.load(inject + row * STREAMS + stream, is_row, other=0.0) if WRITE else 0.0
        for start in range(index * SLICE, index * SLICE + SLICE, BLOCK):
            k = (start + tl.arange(0, BLOCK))[None, :]
            x = _written(residual, output, strength, row, stream, k, is_row, WIDTH, STREAMS, WRITE)
            x = x * tl.load(norm + k)
            w = load_columns(down, tile * COLUMNS, start, num_columns, COLUMNS, STREAMS * WIDTH, BLOCK)
            high, middle, low = add_products(x, w, high, middle, low, STACKED)
        size = num_rows * num_columns
        store_slice(high, middle, low, sums + index * size, columns, num_rows, num_columns, STACKED)
        if last_of_tile(arrived + tile, STREAMS * SLICES):
            # All streams at once: what is loaded behind a store would be waited for by itself.
            each = tl.arange(0, STREAMS * USED)[:, None]
            mask = (each % USED < num_rows) & (columns < num_columns)[None, :]
            cells = each % USED * num_columns + columns[None, :]
            total = add_slices(sums + each // USED * (SLICES * size) + cells, mask, size, SLICES)
            tl.store(out + each // USED * size + cells, total, mask)


@kernel
def _split(residual, output, inject, written, norm, parts, scales, num_rows, WIDTH: tl.constexpr,
           STREAMS: tl.constexpr, SLICE: tl.constexpr, EPSILON: tl.constexpr,
           WRITE: tl.constexpr):  # fmt: skip
    """A program is a stream of a prompt's row: written to, its scale, and what is multiplied, in parts."""
    stream, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    plane = tl.cast(num_rows, tl.int64) * (STREAMS * WIDTH)
    squares = tl.zeros([1], tl.float32)
    strength = tl.load(inject + row * STREAMS + stream) if WRITE else 0.0
    for start in range(0, WIDTH, SLICE):
        k = stream * WIDTH + start + tl.arange(0, SLICE)
        value = _written(residual, output, strength, row, stream, k, k >= 0, WIDTH, STREAMS, WRITE)
        cells = row * (STREAMS * WIDTH) + k
        if WRITE:
            tl.store(written + cells, value)
        high, middle, low = split_bfloat16(value * tl.load(norm + k))
        tl.store(parts + cells, high)
        tl.store(parts + plane + cells, middle)
        tl.store(parts + 2 * plane + cells, low)
        squares += tl.sum(value * value, 0)
    tl.store(scales + row * STREAMS + stream + tl.arange(0, 1), tl.rsqrt(squares / WIDTH + EPSILON))


@triton.jit
def _scaled(product, scales, row, k, mask, num_rows, stride, STREAMS: tl.constexpr):  # fmt: skip
    """Products of a window's rows with `down`: those of the streams, each scaled, and added."""
    total = tl.zeros(mask.shape, tl.float32)
    for stream in tl.static_range(STREAMS):
        scale = tl.load(scales + row * STREAMS + stream, row < num_rows, other=0.0)
        total += tl.load(product + (stream * num_rows + row) * stride + k, mask, other=0.0) * scale
    return total


@triton.jit
def _low(product, scales, row, k, num_rows, stride, LOW: tl.constexpr, STREAMS: tl.constexpr):
    """`_scaled` elements of the low rank, zeros where there is none."""
    return _scaled(product, scales, row, k, (row < num_rows) & (k < LOW), num_rows, stride, STREAMS)


@triton.jit
def _gate_weights(weight, gate_row, start, LOW: tl.constexpr, BLOCK: tl.constexpr):
    """Elements `start` on of rows of `up`, `[rows, BLOCK]`; loaded as by `load_columns`."""
    k = start + tl.arange(0, BLOCK)[:, None]
    return tl.trans(tl.load(weight + (gate_row * LOW)[None, :] + k, k < LOW, other=0.0))


@kernel
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


@kernel
def _up(residual, scales, norm, product, parts, weight, out, strengths, codes, code_scales, arrived, num_rows,
        product_stride, LOW: tl.constexpr, WIDTH: tl.constexpr, STREAMS: tl.constexpr, ROWS: tl.constexpr,
        USED: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, INJECT: tl.constexpr,
        QUANTIZE: tl.constexpr):  # fmt: skip
    """A program is CHANNELS of some rows, with the gates of all their streams, streams innermost.

    With 4 ROWS, of which there are USED, their parts are rows of one tile, see `stack_parts`. The first of a
    row's programs says how strongly the block's output is to be added.
    """
    launch_dependents()
    COLUMNS: tl.constexpr = CHANNELS * STREAMS
    channels = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row, wide_rows = (rows < num_rows)[:, None], rows.to(tl.int64)[:, None]
    column = tl.arange(0, COLUMNS)
    stream = column % STREAMS
    gate_row = stream * WIDTH + tl.program_id(0) * CHANNELS + column // STREAMS
    if parts is None:
        prefetch(weight + gate_row * LOW, LOW)
        prefetch(norm + tl.arange(0, STREAMS) * WIDTH + tl.program_id(0) * CHANNELS, CHANNELS)
    wait_for_earlier()
    # All that is read is asked for before any of it is used; in one layout, for what only is loaded Triton
    # converts at once.
    value = tl.load(residual + wide_rows * (STREAMS * WIDTH) + gate_row[None, :], is_row, other=0.0)
    factor = tl.load(norm + wide_rows * 0 + gate_row[None, :], is_row, other=0.0)
    row_scale = tl.zeros([ROWS, COLUMNS], tl.float32)
    for index in tl.static_range(STREAMS):
        scale_of = tl.load(scales + rows[:, None] * STREAMS + index, is_row, other=0.0)
        row_scale = tl.where(stream[None, :] == index, scale_of, row_scale)
    each = tl.arange(0, STREAMS)[None, :]
    is_logit = is_row & (each < tl.where(tl.program_id(0) == 0, STREAMS, 0))
    logit = tl.zeros([ROWS, STREAMS], tl.float32)
    if INJECT:
        if parts is not None:
            logit = tl.load(product + wide_rows * product_stride + LOW + each, is_logit, other=0.0)
        else:
            logit = _scaled(
                product, scales, rows[:, None], LOW + each, is_logit, num_rows, product_stride, STREAMS
            )
    TILE: tl.constexpr = 16 if ROWS == 4 else ROWS
    high = tl.zeros([TILE, COLUMNS], tl.float32)
    middle, lowest = high, high
    if parts is not None:
        w_rows, k = weight + gate_row[:, None] * LOW, tl.arange(0, BLOCK)[None, :]
        plane = tl.cast(num_rows, tl.int64) * LOW
        a_rows, is_column = parts + wide_rows * LOW, (gate_row >= 0)[:, None]
        for start in range(0, LOW, BLOCK):
            a_high, a_middle, a_low, w = load_parts(a_rows, w_rows, plane, start + k, is_row, is_column, LOW)
            high, middle, lowest = dot_parts(a_high, a_middle, a_low, w, high, middle, lowest)
    else:
        row = tl.program_id(1) * ROWS + tl.arange(0, USED)[:, None]
        WHOLE: tl.constexpr = LOW // BLOCK * BLOCK
        if WHOLE < LOW:
            REST: tl.constexpr = max(triton.next_power_of_2(LOW - WHOLE), min(BLOCK, 32))
            rest = WHOLE + tl.arange(0, REST)[None, :]
            last = _low(product, scales, row, rest, num_rows, product_stride, LOW, STREAMS)
            w_last = _gate_weights(weight, gate_row, WHOLE, LOW, REST)
        for start in range(0, WHOLE, BLOCK):
            k = start + tl.arange(0, BLOCK)[None, :]
            a = _low(product, scales, row, k, num_rows, product_stride, LOW, STREAMS)
            w = _gate_weights(weight, gate_row, start, LOW, BLOCK)
            high, middle, lowest = add_products(silu(a / STREAMS), w, high, middle, lowest, ROWS == 4)
        if WHOLE < LOW:
            high, middle, lowest = add_products(silu(last / STREAMS), w_last, high, middle, lowest, ROWS == 4)
    gate = unstack(high, COLUMNS) if ROWS == 4 else add_parts(high, middle, lowest)
    gated = sigmoid(gate) * (value * row_scale * factor)
    # streams lie innermost, so neighbours are added, whatever the layout
    mean = pairwise_sum(tl.reshape(gated, [ROWS * CHANNELS, STREAMS]), ROWS * CHANNELS, STREAMS) / STREAMS
    tl.store(out + wide_rows * WIDTH + channels[None, :], tl.reshape(mean, [ROWS, CHANNELS]), is_row)
    if INJECT:
        tl.store(strengths + wide_rows * STREAMS + each, 2 * sigmoid(logit / STREAMS), is_logit)
    if QUANTIZE:
        block = tl.program_id(0) * CHANNELS // 128
        tile = tl.program_id(1) * (WIDTH // 128) + block
        if last_of_tile(arrived + tile, 128 // CHANNELS):
            cells = wide_rows * WIDTH + block * 128 + tl.arange(0, 128)[None, :]
            code, scale = quantize_blocks(tl.load(out + cells, is_row, other=0.0, cache_modifier=".cg"))
            tl.store(codes + cells, code, is_row)
            tl.store(code_scales + wide_rows * (WIDTH // 128) + block, scale, is_row)


def _prompt_shape() -> tuple[int, int, int]:
    """Rows and threads of a prompt's program of `_up`, and `num_stages`."""
    if multiplies_by_warp_groups():
        return 64, 128, 3
    return (32 if has_matrix_units() else 16), 256, 3 if loads_to_shared_memory() else 1


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
        residual: float32 `[rows, streams, width]`, contiguous. More than 16 rows are written to in place,
            which saves memory; of a window, programs read what others would write.
        weights: of the module.
        workspace: of `weights.workspace_size()`, for up to 16 rows.
        output: float32 `[rows, width]` to write first, `inject` times; None where there is nothing.
        inject: float32 `[rows, streams]`, as an earlier `read` returned it.
        quantized: int8 codes and float32 scales of the input, to fill in; where 128 divides the width.

    Returns:
        The streams written to (`residual` itself in place or without `output`), a block's input float32
        `[rows, width]`, and float32 `[rows, streams]`, how strongly its output is to be added to each stream
        (of no use in a module without `inject`).
    """
    num_rows, streams, width = residual.shape
    window = num_rows <= WINDOW_ROWS
    written = torch.empty_like(residual) if window and output is not None else residual
    strengths, scales = residual.new_empty(num_rows, streams), residual.new_empty(num_rows, streams)
    multiply = _multiply_window if window else _multiply_prompt
    product = multiply(residual, output, inject, written, scales, weights, workspace)
    rows, threads, stages = (16, 128, 2) if window else _prompt_shape()
    used, block = rows, dot_block(weights.up, 64)
    if num_rows <= STACKED_ROWS:
        rows, block, used = 4, window_block(weights.up), triton.next_power_of_2(num_rows)
    x = residual.new_empty(num_rows, width)
    codes, code_scales = quantized or (x, x)
    arrived, parts = workspace.arrived, None
    if not window:
        arrived = workspace.prompt_arrived(cdiv(num_rows, rows) * cdiv(width, QUANTIZED))
        parts = torch.empty(3, num_rows, weights.low_rank, dtype=torch.bfloat16, device=x.device)
        _activate[(num_rows,)](
            product, parts, num_rows, product.stride(0), STREAMS=streams, LOW=weights.low_rank,
            PADDED=triton.next_power_of_2(weights.low_rank), num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    _up[(width // _CHANNELS, cdiv(num_rows, rows))](
        written, scales, weights.norm, product, parts, weights.up, x, strengths, codes, code_scales, arrived,
        num_rows, product.stride(-2), LOW=weights.low_rank, WIDTH=width, STREAMS=streams, ROWS=rows,
        USED=used, CHANNELS=_CHANNELS, BLOCK=block, INJECT=weights.down.shape[0] > weights.low_rank,
        QUANTIZE=quantized is not None, num_warps=4 if window else warps(threads),
        num_stages=min(weights.low_rank // block, stages) or 1,
        **(loads_together() if window else {}), **step_launch(),
    )  # fmt: skip
    return written, x, strengths


def _multiply_window(residual, output, inject, written, scales, weights, workspace) -> torch.Tensor:
    """Fill in `written` and `scales`; returns products with `down`, float32 `[streams, rows, columns]`."""
    (num_rows, streams, width), num_columns = residual.shape, weights.down.shape[0]
    workspace.require(*weights.workspace_size())
    slices = streams * width // weights.slice
    squares = workspace.sums[slices * WINDOW_ROWS * num_columns :]
    product = residual.new_empty(streams, num_rows, num_columns)
    _mix[(cdiv(num_columns, WINDOW_COLUMNS) + 1, slices)](
        residual, output, inject, weights.norm, weights.down, written, scales, product, workspace.sums,
        squares, workspace.arrived, num_rows, num_columns, WIDTH=width, STREAMS=streams,
        EPSILON=weights.epsilon, WRITE=output is not None,
        **window_options(weights.down, weights.slice, num_rows),
    )  # fmt: skip
    return product


def _multiply_prompt(residual, output, inject, written, scales, weights, workspace) -> torch.Tensor:
    """Fill in `written` and `scales`; returns products with `down`, float32 `[rows, columns]`."""
    num_rows, streams, width = residual.shape
    parts = torch.empty(3, num_rows, streams * width, dtype=torch.bfloat16, device=residual.device)
    _split[(streams, num_rows)](
        residual, output, inject, written, weights.norm, parts, scales, num_rows, WIDTH=width,
        STREAMS=streams, SLICE=weights.slice, EPSILON=weights.epsilon, WRITE=output is not None, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    product = residual.new_empty(num_rows, weights.down.shape[0])
    multiply_parts(parts, weights.down, product, weights.slice, scales)
    return product
