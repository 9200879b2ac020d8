"""Hyper-connections whose `down` and `up` are quantised: products are the processor's, to the bit.

A read is five launches: the write of the block before with the norm; the product with `down`, of a window as
terms; their sums, activated and quantised; the product with `up`; the gates and their mean. Where matrices
are floats, see `hyper_connection`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.triton.arithmetic import sigmoid, silu
from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.float_matmul import WINDOW_ROWS, float_matmul, workspace_size
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.norm import rms_norm, write_rms_norm
from strata.ops.triton.quantize import quantize_blocks
from strata.ops.triton.quantized_matmul import (
    PlaneMatrix,
    multiply_own_tiles,
    product_terms,
    quantized_matmul,
)
from strata.ops.triton.tile_product import ordered_sum
from strata.ops.triton.workspace import Workspace


@dataclass(frozen=True, slots=True)
class QuantizedHyperConnection:
    """A module's weights.

    Args:
        norm: float32 `[streams, width]`; 128 divides the width.
        down: `[low_rank (and more rows), streams * width]`.
        up: `[streams * width, low_rank]`.
        inject: its first row in `down`, or a float matrix `[streams, streams * width]`; None in a module that
            is not written back from.
        epsilon: of the norm.
    """

    norm: torch.Tensor
    down: PlaneMatrix
    up: PlaneMatrix
    inject: torch.Tensor | int | None
    epsilon: float

    @property
    def width(self) -> int:
        return self.norm.shape[1]

    def workspace_size(self) -> tuple[int, int]:
        """Sums and tiles of a `Workspace` for windows."""
        return workspace_size(*self.inject.shape) if isinstance(self.inject, torch.Tensor) else (0, 0)


@kernel
def _write_streams(residual, output, inject, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    begin_kernel()
    row, stream = tl.program_id(1).to(tl.int64), tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    start = row * tl.num_programs(0) + stream
    strength = tl.load(inject + start)
    more = strength * tl.load(output + row * WIDTH + column, mask, other=0.0)
    cells = start * WIDTH + column
    tl.store(out + cells, tl.load(residual + cells, mask, other=0.0) + more, mask)


def write_streams(residual: torch.Tensor, output: torch.Tensor, inject: torch.Tensor) -> torch.Tensor:
    """Add a block's output to each stream: where the streams themselves are asked for next.

    Args:
        residual: float32 `[rows, streams, width]`, contiguous.
        output: float32 `[rows, width]`, contiguous.
        inject: float32 `[rows, streams]`, as a read returned it.
    """
    rows, streams, width = residual.shape
    out = torch.empty_like(residual)
    block = triton.next_power_of_2(width)
    _write_streams[(streams, rows)](
        residual, output, inject, out, WIDTH=width, BLOCK=block, num_warps=4, **step_launch()
    )
    return out


@kernel
def _mix_down(terms, logits, codes, scales, strengths, row_stride, term_stride, logits_stride, num_columns,
              first_logit, LOW: tl.constexpr, STREAMS: tl.constexpr, TERMS: tl.constexpr, SOME: tl.constexpr,
              AMONG: tl.constexpr):  # fmt: skip
    """A program is 128 columns of a row. With AMONG, the logits are among the columns."""
    begin_kernel()
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = block * 128 + tl.arange(0, 128)
    total = ordered_sum(terms, row * row_stride + column, term_stride, column < num_columns, TERMS, SOME)
    if block * 128 < LOW:
        low = tl.where(column < LOW, silu(total / STREAMS), 0.0)[None, :]
        code, scale = quantize_blocks(low)
        tl.store(codes + row * LOW + column[None, :], code, column[None, :] < LOW)
        USED: tl.constexpr = (LOW + 127) // 128
        tl.store(scales + row * USED + block + tl.zeros([1, 1], tl.int32), scale)
    if AMONG:
        stream = column - first_logit
        mask = (stream >= 0) & (stream < STREAMS)
        tl.store(strengths + row * STREAMS + stream, 2 * sigmoid(total / STREAMS), mask)
    elif logits is not None:
        stream = tl.arange(0, STREAMS)
        mask = block + stream * 0 == 0
        logit = tl.load(logits + row * logits_stride + stream, mask, other=0.0)
        tl.store(strengths + row * STREAMS + stream, 2 * sigmoid(logit / STREAMS), mask)


def mix_down(
    terms: torch.Tensor, low_rank: int, streams: int, inject: torch.Tensor | int | None
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """What is multiplied with `up`, and how strongly the block's output is added to each stream.

    Args:
        terms: float32 `[rows, terms, columns]`, contiguous, which are added up to products with `down`.
        low_rank: the first columns are those of `down`.
        streams: a power of two.
        inject: its products: the first of their columns, or float32 `[rows, streams]`, of which rows may lie
            apart; None in a module without.

    Returns:
        `silu(down / streams)` as int8 codes `[rows, low_rank]` and float32 scales `[rows, blocks]`, and
        `2 * sigmoid(inject / streams)` float32 `[rows, streams]` (of no use without `inject`).
    """
    rows, count, columns = terms.shape
    codes = torch.empty(rows, low_rank, dtype=torch.int8, device=terms.device)
    scales, strengths = terms.new_empty(rows, cdiv(low_rank, 128)), terms.new_empty(rows, streams)
    logits = inject if isinstance(inject, torch.Tensor) else None
    among = isinstance(inject, int)
    _mix_down[(cdiv(columns, 128), rows)](
        terms, logits, codes, scales, strengths, count * columns, columns,
        0 if logits is None else logits.stride(0), columns, inject if among else 0, LOW=low_rank,
        STREAMS=streams, TERMS=count, SOME=min(32, triton.next_power_of_2(count)), AMONG=among, num_warps=1,
        **step_launch(),
    )  # fmt: skip
    return (codes, scales), strengths


@kernel
def _read_streams(normalized, gate, out, codes, scales, WIDTH: tl.constexpr, STREAMS: tl.constexpr,
                  QUANTIZE: tl.constexpr):  # fmt: skip
    """A program is 128 channels of a row."""
    begin_kernel()
    row, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    column = block * 128 + tl.arange(0, 128)[None, :]
    mask = column < WIDTH
    total = tl.zeros([1, 128], tl.float32)
    for stream in tl.static_range(STREAMS):
        cells = (row * STREAMS + stream) * WIDTH + column
        value = sigmoid(tl.load(gate + cells, mask, other=0.0)) * tl.load(normalized + cells, mask, other=0.0)
        if stream == 0:
            total = value
        else:
            total += value
    total = total / STREAMS
    tl.store(out + row * WIDTH + column, total, mask)
    if QUANTIZE:
        code, scale = quantize_blocks(total)
        tl.store(codes + row * WIDTH + column, code, mask)
        tl.store(scales + row * tl.num_programs(0) + block + tl.zeros([1, 1], tl.int32), scale)


def read_streams(
    normalized: torch.Tensor, gate: torch.Tensor, quantized: tuple[torch.Tensor, torch.Tensor] | None = None
) -> torch.Tensor:
    """A block's input, `mean over streams of sigmoid(gate) * normalized`, summed in the order of the streams.

    Args:
        normalized: float32 `[rows, streams, width]`, contiguous.
        gate: float32 `[rows, streams * width]`, contiguous.
        quantized: int8 codes `[rows, width]` and float32 scales `[rows, blocks]` of it, to fill in.

    Returns:
        float32 `[rows, width]`.
    """
    rows, streams, width = normalized.shape
    out = normalized.new_empty(rows, width)
    codes, scales = quantized or (out, out)
    _read_streams[(cdiv(width, 128), rows)](
        normalized, gate, out, codes, scales, WIDTH=width, STREAMS=streams,
        QUANTIZE=quantized is not None, num_warps=1, **step_launch(),
    )  # fmt: skip
    return out


def read(
    residual: torch.Tensor,
    weights: QuantizedHyperConnection,
    workspace: Workspace,
    output: torch.Tensor | None = None,
    inject: torch.Tensor | None = None,
    quantized: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `hyper_connection.read`; the streams are written to in place."""
    rows, streams, width = residual.shape
    codes = torch.empty(rows, streams * width, dtype=torch.int8, device=residual.device)
    scales = residual.new_empty(rows, streams * width // 128)
    norm = (weights.norm, weights.epsilon, (codes, scales))
    if output is None or inject is None:
        normalized = rms_norm(residual, *norm)
    else:
        normalized = write_rms_norm(residual, output.contiguous(), inject, *norm)
    logits = weights.inject
    if isinstance(logits, torch.Tensor):
        logits = float_matmul(normalized.flatten(1), logits, workspace)
    window = rows <= WINDOW_ROWS
    if window:
        (terms,) = product_terms([weights.down], codes, scales)
    else:
        terms = quantized_matmul(weights.down, codes, scales, workspace=workspace)[:, None]
    low, strengths = mix_down(terms, weights.up.num_in, streams, logits)
    if window:
        gate = residual.new_empty(rows, weights.up.num_out)
        multiply_own_tiles(weights.up, *low, gate)
    else:
        gate = quantized_matmul(weights.up, *low, workspace=workspace)
    return residual, read_streams(normalized, gate, quantized), strengths
