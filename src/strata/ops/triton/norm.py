"""Root-mean-square normalisation, after an addition or not, quantised or not (see `ops/rms_norm.py`)."""

import torch
import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import kernel
from strata.ops.triton.quantize import quantize_blocks

QUANTIZED = 128


@kernel
def _rms_norm(x, y, strength, weight, total, out, codes, scales, EPSILON: tl.constexpr, WIDTH: tl.constexpr,
              BLOCK: tl.constexpr, ADD: tl.constexpr, STREAMS: tl.constexpr,
              QUANTIZE: tl.constexpr):  # fmt: skip
    """A program is a group of a row; the block is the same for any number of rows, and so is its sum.

    With STREAMS the groups are streams, to all of which the same `y` is added, `strength` times.
    """
    begin_kernel()
    row, group = tl.program_id(1).to(tl.int64), tl.program_id(0)
    start = (row * tl.num_programs(0) + group) * WIDTH
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    value = tl.load(x + start + column, mask, other=0.0)
    if STREAMS:
        more = tl.load(y + row * WIDTH + column, mask, other=0.0)
        value += tl.load(strength + row * tl.num_programs(0) + group) * more
    elif ADD:
        value += tl.load(y + start + column, mask, other=0.0)
    if ADD:
        tl.store(total + start + column, value, mask)
    scale = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + EPSILON)
    value = value * scale * tl.load(weight + group * WIDTH + column, mask, other=0.0)
    tl.store(out + start + column, value, mask)
    if QUANTIZE:
        BLOCKS: tl.constexpr = BLOCK // 128
        code, code_scale = quantize_blocks(tl.reshape(value, [BLOCKS, 128]))
        tl.store(codes + start + column, tl.reshape(code, [BLOCK]), mask)
        USED: tl.constexpr = (WIDTH + 127) // 128
        block = tl.arange(0, BLOCKS)
        first = (row * tl.num_programs(0) + group) * USED
        tl.store(scales + first + block, tl.reshape(code_scale, [BLOCKS]), block < USED)


def _launch(x, y, strength, weight, epsilon, quantized):
    rows, (groups, width) = x.shape[0], (1, *x.shape[1:])[-2:]
    if quantized is not None and groups > 1 and width % QUANTIZED:
        raise ValueError(f"groups of {width} are no whole blocks of {QUANTIZED} activations")
    out = torch.empty_like(x)
    total = torch.empty_like(x) if strength is None and y is not None else x
    codes, scales = quantized or (out, out)
    block = max(triton.next_power_of_2(width), QUANTIZED)
    warps = 1 if block <= 512 else 4 if block <= 4096 else 8
    _rms_norm[(groups, rows)](
        x, y, strength, weight, total, out, codes, scales, EPSILON=epsilon, WIDTH=width, BLOCK=block,
        ADD=y is not None, STREAMS=strength is not None, QUANTIZE=quantized is not None,
        num_warps=warps, **step_launch(),
    )  # fmt: skip
    return total, out


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    quantized: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + epsilon) * weight` over the last dimension.

    Args:
        x: float32 `[rows, width]` or `[rows, groups, width]`, contiguous.
        weight: float32 `[width]` or `[groups, width]`.
        epsilon: added to the mean square.
        quantized: int8 codes of the shape of `x` and float32 scales, one for 128 of a row, to fill in.

    Raises:
        ValueError: there are groups to be quantised and their width is no multiple of 128.
    """
    return _launch(x, None, None, weight, epsilon, quantized)[1]


def add_rms_norm(
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    quantized: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x + y`, and `rms_norm` of it. Arguments as there; `y` as `x`."""
    return _launch(x, y, None, weight, epsilon, quantized)


def write_rms_norm(
    residual: torch.Tensor,
    output: torch.Tensor,
    inject: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    quantized: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Add a block's output to each stream, in place, and `rms_norm` of each.

    Args:
        residual: float32 `[rows, streams, width]`, contiguous; written to.
        output: float32 `[rows, width]`, contiguous.
        inject: float32 `[rows, streams]`, how strongly it is added.
        weight: float32 `[streams, width]`.
        epsilon, quantized: as in `rms_norm`.
    """
    return _launch(residual, output, inject, weight, epsilon, quantized)[1]
