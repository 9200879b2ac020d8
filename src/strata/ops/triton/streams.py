"""The steps of a hyper-connection between its products, for where those are quantised.

`hyper_connection.read` does it all in two launches where matrices are floats. With quantised ones a read is
`norm.write_rms_norm`, the product with `down`, `mix_down`, the product with `up`, `read_streams`.
"""

import torch
import triton
import triton.language as tl

from strata.ops.triton.arithmetic import sigmoid, silu
from strata.ops.triton.quantize import quantize_blocks


@triton.jit
def _write_streams(residual, output, inject, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
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
        residual, output, inject, out, WIDTH=width, BLOCK=block, num_warps=4, enable_fp_fusion=False
    )
    return out


@triton.jit
def _mix_down(down, inject, codes, scales, strengths, down_stride, inject_stride, LOW: tl.constexpr,
              STREAMS: tl.constexpr, BLOCKS: tl.constexpr):  # fmt: skip
    """A program is a row."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    column = block[:, None] * 128 + tl.arange(0, 128)[None, :]
    low = silu(tl.load(down + row * down_stride + column, column < LOW, other=0.0) / STREAMS)
    code, scale = quantize_blocks(low)
    tl.store(codes + row * LOW + column, code, column < LOW)
    USED: tl.constexpr = (LOW + 127) // 128
    tl.store(scales + row * USED + block[:, None], scale, block[:, None] < USED)
    stream = tl.arange(0, STREAMS)
    logit = tl.load(inject + row * inject_stride + stream)
    tl.store(strengths + row * STREAMS + stream, 2 * sigmoid(logit / STREAMS))


def mix_down(
    down: torch.Tensor, inject: torch.Tensor
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """What is multiplied with `up`, and how strongly the block's output is added to each stream.

    Args:
        down: float32 `[rows, low_rank]`, product with `down`; rows may lie apart.
        inject: float32 `[rows, streams]`, product with `inject`; rows may lie apart.

    Returns:
        `silu(down / streams)` as int8 codes `[rows, low_rank]` and float32 scales `[rows, blocks]`, and
        `2 * sigmoid(inject / streams)` float32 `[rows, streams]`.
    """
    (rows, low_rank), streams = down.shape, inject.shape[1]
    blocks = triton.cdiv(low_rank, 128)
    codes = torch.empty(rows, low_rank, dtype=torch.int8, device=down.device)
    scales, strengths = down.new_empty(rows, blocks), down.new_empty(rows, streams)
    _mix_down[(rows,)](
        down, inject, codes, scales, strengths, down.stride(0), inject.stride(0), LOW=low_rank,
        STREAMS=streams, BLOCKS=triton.next_power_of_2(blocks), num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return (codes, scales), strengths


@triton.jit
def _read_streams(normalized, gate, out, codes, scales, WIDTH: tl.constexpr, STREAMS: tl.constexpr,
                  QUANTIZE: tl.constexpr):  # fmt: skip
    """A program is 128 channels of a row."""
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
    _read_streams[(triton.cdiv(width, 128), rows)](
        normalized, gate, out, codes, scales, WIDTH=width, STREAMS=streams,
        QUANTIZE=quantized is not None, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out
