"""Between the products of a feed-forward layer."""

import torch
import triton.language as tl

from strata.ops.triton.activation import swiglu as _swiglu
from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.quantize import quantize_blocks

BLOCK = 128  # activations that share a scale


@kernel
def _swiglu_kernel(gate, up, out, codes, scales, gate_stride, up_stride, LENGTH: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """A program is a block of a row."""
    begin_kernel()
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = block * BLOCK + tl.arange(0, BLOCK)
    mask = column < LENGTH
    y = _swiglu(
        tl.load(gate + row * gate_stride + column, mask, other=0.0),
        tl.load(up + row * up_stride + column, mask, other=0.0),
    )
    tl.store(out + row * LENGTH + column, y, mask)
    code, scale = quantize_blocks(y)
    tl.store(codes + row * LENGTH + column, code, mask)
    tl.store(scales + row * ((LENGTH + BLOCK - 1) // BLOCK) + block + tl.arange(0, 1), scale)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """`silu(gate) * up`, float32 and quantised for the product that follows.

    Args:
        gate, up: float32 `[rows, length]`; rows may lie apart.

    Returns:
        float32 `[rows, length]`, and its int8 codes and float32 scales `[rows, ceil(length / 128)]`.
    """
    rows, length = gate.shape
    blocks = cdiv(length, BLOCK)
    out = gate.new_empty(rows, length)
    codes = torch.empty(rows, length, dtype=torch.int8, device=gate.device)
    scales = gate.new_empty(rows, blocks)
    _swiglu_kernel[(blocks, rows)](
        gate, up, out, codes, scales, gate.stride(0), up.stride(0), LENGTH=length, BLOCK=BLOCK,
        num_warps=1, **step_launch(),
    )  # fmt: skip
    return out, (codes, scales)
