"""Quantised matrices out of their planes, into bytes that matrix instructions multiply (`unpacked_matmul`).

A weight times its integer sub-scale is an integer of at most 15 bits: it becomes two bytes, 256 * high + low,
so that all 128 weights of a span are summed up by matrix instructions alone. Weights without sub-scales are a
byte. Sub-minima are a byte for each weight, too: they are multiplied with the same activations.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from strata.formats.quants.planes import QUANT_PLANES
from strata.ops.triton.decode import ONES, float_scales
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.planes import TILE_ROWS, fact, tile_bytes
from strata.ops.triton.step import step_words, sub_scales

_ROWS = tl.constexpr(TILE_ROWS)
_STEPS = 4  # of 32 columns, that a program unpacks
_ALIGNMENT = 128


@dataclass(frozen=True, slots=True)
class PlaneMatrices:
    """Matrices `[num_out, num_in]` of one format.

    Attributes:
        addresses: int64 `[matrices]`, of records with a matrix's planes from byte `at` on, aligned to 64.
        grid: `quantized_matmul.codebook`.
    """

    format: str
    num_out: int
    num_in: int
    addresses: torch.Tensor
    at: int
    grid: torch.Tensor


@triton.constexpr_function
def padded_outputs(num_out: int) -> int:
    """Scales from one span of all rows to the next: a multiple, so that loads need no mask."""
    return -(-num_out // 128) * 128


@triton.constexpr_function
def begin_of(format: str, num_out: int, num_in: int, part: str) -> int:
    """Byte where a part of an unpacked matrix begins, or where all of them end.

    Int8 `[num_out, num_in]` each: weights or low bytes; where there are sub-scales, high bytes; sub-minima.
    Float32 `[spans of a row, padded num_out]` each: scales; minima.
    """
    f = QUANT_PLANES[format]
    weights, scales = num_out * num_in, num_in // f.span * padded_outputs(num_out) * 4
    sizes = {
        "low": weights,
        "high": 0 if f.sub == "none" else weights,
        "sub_minimum": weights if f.minimum == "sub" else 0,
        "scale": scales,
        "minimum": 0 if f.minimum == "none" else scales,
        "end": 0,
    }
    before = list(sizes)[: list(sizes).index(part)]
    return sum(-(-sizes[name] // _ALIGNMENT) * _ALIGNMENT for name in before)


@cache
def unpacked_bytes(format: str, num_out: int, num_in: int) -> int:
    """Memory for one matrix."""
    return begin_of(format, num_out, num_in, "end")


@triton.jit
def _scaled(words, factor):
    """The low and the high bytes of a word's weights times `factor`."""
    low = words * 0
    high = low
    for i in tl.static_range(4):
        value = ((words << (24 - 8 * i)) >> 24) * factor
        low |= (value & 255) << (8 * i)
        high |= (((value + 128) >> 8) & 255) << (8 * i)
    return low, high


@triton.jit
def _unpack_weights(
    tile, grid, step, row, out, exists, FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """Store a step's weights; `out` int32 pointers `[n, 8]`, where the low ones go."""
    words, extra = step_words(tile, grid, step, row, FORMAT, K)
    if fact(FORMAT, "sub") != "none":
        factor, least = sub_scales(tile, step, 0, row, extra, FORMAT, K)
        if fact(FORMAT, "sub_block") == 16:
            more, more_least = sub_scales(tile, step, 1, row, extra, FORMAT, K)
            first_half = tl.arange(0, 8)[None, :] < 4
            factor = tl.where(first_half, factor, more)
            least = tl.where(first_half, least, more_least)
        words, high = _scaled(words, factor)
        tl.store(out + begin_of(FORMAT, N, K, "high") // 4, high, mask=exists)
        if fact(FORMAT, "minimum") == "sub":
            tl.store(out + begin_of(FORMAT, N, K, "sub_minimum") // 4, words * 0 + least * ONES, mask=exists)
    tl.store(out, words, mask=exists)


@triton.jit
def _unpack_scales(tile, step, row, out, exists, FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Store the float scales of all spans that begin in a step; `out` float32 pointers `[n, 1]`."""
    SPAN: tl.constexpr = fact(FORMAT, "span")
    if step * 32 % SPAN == 0:
        for i in tl.static_range(max(32 // SPAN, 1)):
            span = step * 32 // SPAN + i
            at = out + span * padded_outputs(N)
            scale = float_scales(tile, span, row, FORMAT, K, "scale")
            tl.store(at + begin_of(FORMAT, N, K, "scale") // 4, scale, mask=exists)
            if fact(FORMAT, "minimum") != "none":
                scale = float_scales(tile, span, row, FORMAT, K, "minimum")
                tl.store(at + begin_of(FORMAT, N, K, "minimum") // 4, scale, mask=exists)


@kernel
def _unpack_kernel(
    addresses, at, grid, matrices, out, FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """A program is 16 rows and 32 * STEPS columns of a matrix.

    Programs are in the order of what they read and write, which is in many pages of memory otherwise.
    """
    which = tl.load(matrices + tl.program_id(2))
    if which >= 0:
        row = tl.arange(0, _ROWS)[:, None]
        tile = (tl.load(addresses + which) + at).to(tl.pointer_type(tl.uint8))
        tile = tl.multiple_of(tile, 64) + tl.program_id(1).to(tl.int64) * tile_bytes(FORMAT, K)
        n = tl.program_id(1) * _ROWS + row
        matrix = out + tl.program_id(2).to(tl.int64) * begin_of(FORMAT, N, K, "end")
        weights_at = (
            matrix.to(tl.pointer_type(tl.int32)) + n.to(tl.int64) * (K // 4) + tl.arange(0, 8)[None, :]
        )
        scales_at = matrix.to(tl.pointer_type(tl.float32)) + n
        for i in tl.static_range(STEPS):
            step = tl.program_id(0) * STEPS + i
            if step < K // 32:
                _unpack_weights(tile, grid, step, row, weights_at + step * 8, n < N, FORMAT, N, K)
                _unpack_scales(tile, step, row, scales_at, n < N, FORMAT, N, K)


def unpack(matrices: PlaneMatrices, which: torch.Tensor, out: torch.Tensor) -> None:
    """Unpack some matrices into `out`.

    Args:
        which: int32; there is nothing to do for a negative one.
        out: int8, `unpacked_bytes` for each of them.
    """
    m = matrices
    steps = cdiv(m.num_in // 32, _STEPS)
    _unpack_kernel[(steps, cdiv(m.num_out, TILE_ROWS), which.numel())](
        m.addresses, m.at, m.grid, which, out, FORMAT=m.format, N=m.num_out, K=m.num_in, STEPS=_STEPS,
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
