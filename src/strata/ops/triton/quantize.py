"""Activations in blocks of 128 as int8 codes and float32 scales: docs/NUMERICS.md, "The product", 1."""

import torch
import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.planes import ACTIVATION_BLOCK

_BLOCK = tl.constexpr(ACTIVATION_BLOCK)
_LARGEST = tl.constexpr(3.4028234663852886e38)  # of float32's numbers
_ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: a sum with it is rounded to an integer, half to even


@triton.jit
def quantize_blocks(x):
    """Blocks of activations, float32 `[..., 128]`, zeros where a block is shorter: the end of any kernel.

    Returns:
        int8 codes of the same shape and float32 scales `[..., 1]`.
    """
    size = tl.abs(x)
    axis: tl.constexpr = len(x.shape) - 1
    largest = tl.max(size, axis=axis, keep_dims=True)
    # A NaN passes through no maximum, and an infinity must not reach the division.
    odd = tl.max(tl.where(size <= _LARGEST, 0, 1), axis=axis, keep_dims=True) > 0
    scale = tl.math.div_rn(largest, tl.full(largest.shape, 127.0, tl.float32))
    usable = (scale > 0) & (odd == 0)
    quotient = tl.math.div_rn(x, tl.broadcast_to(tl.where(usable, scale, 1.0), x.shape))
    rounded = (quotient + _ROUND) - _ROUND
    rounded = tl.minimum(tl.maximum(rounded, -127.0), 127.0)
    codes = tl.where(usable, rounded, 0.0).to(tl.int8)
    return codes, tl.where(odd, float("nan"), scale)


@kernel
def _quantize_kernel(x, codes, scales, num_in, num_blocks, BLOCKS: tl.constexpr):
    begin_kernel()
    row = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    k = block[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    values = tl.load(x + row * num_in + k, mask=k < num_in, other=0.0)
    code, scale = quantize_blocks(values)
    tl.store(codes + row * num_in + k, code, mask=k < num_in)
    where = block[:, None]
    tl.store(scales + row * num_blocks + where, scale, mask=where < num_blocks)


def quantize_activations(
    x: torch.Tensor, out: tuple[torch.Tensor, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise float32 `[rows, num_in]`, contiguous, `num_in` a multiple of 4.

    Returns:
        int8 codes `[rows, num_in]` and float32 scales `[rows, ceil(num_in / 128)]`, or `out` with them.
    """
    rows, num_in = x.shape
    num_blocks = -(-num_in // ACTIVATION_BLOCK)
    if out is None:
        codes = torch.empty(rows, num_in, dtype=torch.int8, device=x.device)
        out = codes, torch.empty(rows, num_blocks, dtype=torch.float32, device=x.device)
    if rows:
        blocks = 2
        grid = (cdiv(num_blocks, blocks), rows)
        _quantize_kernel[grid](x, *out, num_in, num_blocks, BLOCKS=blocks, num_warps=2, **step_launch())
    return out
