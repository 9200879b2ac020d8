"""Experts of floats (F32, F16, BF16, F8_E4M3 in planes): docs/NUMERICS.md, "Matrices of floats", to the bit.

The contract's one sum in ascending order leaves nothing to share among threads but outputs: a program has a
tile of 16 and one entry. Few models have such experts, so that this is plain rather than fast.
"""

import torch
import triton
import triton.language as tl

from strata.ops.triton.activation import swiglu
from strata.ops.triton.expert_records import ExpertShape
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.planes import TILE_ROWS, fact, plane_offset, tile_bytes

_ROWS = tl.constexpr(TILE_ROWS)
_SOME = tl.constexpr(16)  # weights of a row that are loaded together


@triton.jit
def _weights(tile, at, there, FORMAT: tl.constexpr):
    """Elements `at` of the plane of weights as float32, 0 where `there` is false."""
    if FORMAT == "F32":
        return tl.load(tile.to(tl.pointer_type(tl.float32)) + at, mask=there, other=0.0)
    elif FORMAT == "F16":
        return tl.load(tile.to(tl.pointer_type(tl.float16)) + at, mask=there, other=0.0).to(tl.float32)
    elif FORMAT == "BF16":
        half = tl.load(tile.to(tl.pointer_type(tl.uint16)) + at, mask=there, other=0)
        return (half.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:  # E4M3: no infinities, 0x7F and 0xFF are NaN
        byte = tl.load(tile + at, mask=there, other=0).to(tl.int32)
        exponent, mantissa = (byte >> 3) & 15, byte & 7
        normal = ((exponent + 120) << 23 | mantissa << 20).to(tl.float32, bitcast=True)
        size = tl.where(exponent == 0, mantissa.to(tl.float32) * 0.001953125, normal)
        size = tl.where((byte & 127) == 127, float("nan"), size)
        return tl.where(byte >= 128, -size, size)


@kernel
def _float_kernel(
    addresses, begin, x, ids, host_entry, y, y_width, y_column, num_out, slots,
    FORMAT: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(num_out, _ROWS)  # an axis for each would end at 65,535 entries
    entry, tile_index = tl.program_id(0) // tiles, (tl.program_id(0) % tiles).to(tl.int64)
    who = tl.load(ids + entry).to(tl.int64)
    if (who >= 0) & (tl.load(host_entry + entry) < 0):
        address = tl.load(addresses + who) + begin + tile_index * tile_bytes(FORMAT, K)
        tile = address.to(tl.pointer_type(tl.uint8))
        row = tl.arange(0, _ROWS)
        x_at = x + (entry // slots).to(tl.int64) * K
        SCALED: tl.constexpr = fact(FORMAT, "scale") == "f32"
        BLOCK: tl.constexpr = 128 if SCALED else (K + _SOME - 1) // _SOME * _SOME
        total = tl.zeros((_ROWS,), tl.float32)
        for block in range(0, (K + BLOCK - 1) // BLOCK):
            part = tl.zeros((_ROWS,), tl.float32)
            for some in range(block * BLOCK, min(block * BLOCK + BLOCK, K), _SOME):
                k = some + tl.arange(0, _SOME)[:, None]
                weights = _weights(tile, k * _ROWS + row[None, :], k < K, FORMAT)
                products = weights * tl.load(x_at + k, mask=k < K, other=0.0)
                bits = products.to(tl.int32, bitcast=True)  # picking integers changes no bit of them
                for i in tl.static_range(_SOME):
                    one = tl.sum(tl.where(k == some + i, bits, 0), axis=0)
                    part = part + one.to(tl.float32, bitcast=True)
            if SCALED:
                scales = (tile + plane_offset(FORMAT, K, "scale")).to(tl.pointer_type(tl.float32))
                total = total + part * tl.load(scales + block * _ROWS + row)
            else:
                total = part
        n = tile_index * _ROWS + row
        tl.store(y + entry.to(tl.int64) * y_width + y_column + n, total, mask=n < num_out)


@kernel
def _swiglu_kernel(hidden, out, ff, BLOCK: tl.constexpr):
    blocks = tl.cdiv(ff, BLOCK)
    entry = (tl.program_id(0) // blocks).to(tl.int64)
    n = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(hidden + entry * 2 * ff + n, mask=n < ff, other=0.0)
    up = tl.load(hidden + entry * 2 * ff + ff + n, mask=n < ff, other=0.0)
    tl.store(out + entry * ff + n, swiglu(gate, up), mask=n < ff)


def compute_float_experts(
    shape: ExpertShape,
    addresses: torch.Tensor,
    x: torch.Tensor,
    ids: torch.Tensor,
    host_entry: torch.Tensor,
) -> torch.Tensor:
    """`expert(x[row])` of every entry that this card computes, for experts whose three matrices are floats.

    Args:
        addresses: int64 `[experts]`, of each expert's record in memory that the card reads, aligned to 64.
        x: float32 `[rows, width]`.
        ids: int32 or int64 `[rows, slots]`; an unused row has -1 in all slots.
        host_entry: int32 `[rows, slots]`; negative where this card computes the entry.

    Returns:
        float32 `[rows * slots, width]`, for `combine_experts`; entries computed elsewhere hold anything.
    """
    entries, slots, ff = ids.numel(), ids.shape[1], shape.ff
    memory = torch.empty(entries * max(2 * ff, shape.width), dtype=torch.float32, device=x.device)
    hidden = memory[: entries * 2 * ff].view(entries, 2 * ff)
    activations = torch.empty(entries, ff, dtype=torch.float32, device=x.device)
    y = memory[: entries * shape.width].view(entries, shape.width)  # when `hidden` is not needed any more

    def multiply(format, num_out, num_in, begin, rows, out, column, slots):
        _float_kernel[(cdiv(num_out, TILE_ROWS) * entries,)](
            addresses, begin, rows, ids, host_entry, out, out.shape[1], column, num_out, slots,
            FORMAT=format, K=num_in, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip

    multiply(shape.gate, ff, shape.width, 0, x, hidden, 0, slots)
    multiply(shape.up, ff, shape.width, shape.up_at, x, hidden, ff, slots)
    _swiglu_kernel[(cdiv(ff, 128) * entries,)](
        hidden, activations, ff, BLOCK=128, num_warps=1, enable_fp_fusion=False
    )
    multiply(shape.down, shape.width, ff, shape.down_at, activations, y, 0, 1)
    return y
