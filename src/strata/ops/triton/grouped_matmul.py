"""Products of many rows with quantised matrices, for prompts: integer matrix instructions, the same bits.

Integers are exact in any order, so 32 weights of a row are a `tl.dot`; sub-scales, spans and their order are
the contract's. Rows are sorted by matrix, and a program has rows of one matrix only.

Where a matrix has many rows, its weights are unpacked to bytes first: `unpacked_matmul`.
"""

import torch
import triton
import triton.language as tl

from strata.ops.triton.capability import warps
from strata.ops.triton.decode import float_scales
from strata.ops.triton.intrinsics import INTERPRETED
from strata.ops.triton.planes import ACTIVATION_BLOCK, TILE_ROWS, fact, tile_bytes
from strata.ops.triton.sorted_rows import SortedRows, rows_of_block
from strata.ops.triton.step import step_bytes, step_sums
from strata.ops.triton.unpack import unpacked_bytes
from strata.ops.triton.unpacked_matmul import unpacked_matmul

_ROWS = tl.constexpr(TILE_ROWS)
_BLOCK = tl.constexpr(ACTIVATION_BLOCK)
_OUTPUTS = 64
_UNPACK_FROM = 16  # rows of a matrix; fewer are multiplied with planes as soon as with bytes


@triton.jit
def _span_sums(tile, grid, a_at, span, row, k, FORMAT: tl.constexpr, K: tl.constexpr, HALF: tl.constexpr):
    """Integer sums of a span, and of its minima: int32 `[rows, n]`; `HALF` of a step is the span, or -1."""
    STEPS: tl.constexpr = max(fact(FORMAT, "span") // 32, 1)
    sums = tl.zeros((a_at.shape[0], tile.shape[0]), tl.int32)
    minima = tl.zeros((a_at.shape[0], tile.shape[0]), tl.int32)
    for i in range(STEPS):
        step = span * STEPS + i if HALF < 0 else span // 2
        weights, extra = step_bytes(tile, grid, step, row, FORMAT, K)
        a = tl.load(a_at + step * 32)
        some, some_minima = step_sums(a, weights, extra, tile, step, row, k, FORMAT, K, HALF)
        sums += some
        if fact(FORMAT, "minimum") != "none":
            minima += some_minima
    return sums, minima


@triton.jit
def _grouped_kernel(
    addresses, at, grid, codes, scales, order, matrix, begin, end, y, y_width, y_column, num_out, slots,
    FORMAT: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """A program is a block of rows and OUTPUTS of their matrix."""
    block = tl.program_id(0)
    which = tl.load(matrix + block)
    if which >= 0:
        exists, entry, row_of_x = rows_of_block(order, begin, end, block, slots, ROWS)
        n = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        base = (tl.load(addresses + which) + at).to(tl.pointer_type(tl.uint8))
        base = tl.multiple_of(base, 64)
        last = (num_out + _ROWS - 1) // _ROWS - 1
        tile = base + (tl.minimum(n // _ROWS, last).to(tl.int64) * tile_bytes(FORMAT, K))[:, None]
        row = (n % _ROWS)[:, None]
        k = tl.arange(0, 32)[None, :]
        a_at = codes + row_of_x[:, None] * K + k
        x_at = scales + row_of_x * ((K + _BLOCK - 1) // _BLOCK)
        SPAN: tl.constexpr = fact(FORMAT, "span")
        MINIMUM: tl.constexpr = fact(FORMAT, "minimum")
        TWO: tl.constexpr = 2 if SPAN == 16 else 1
        total = tl.zeros((ROWS, OUTPUTS), tl.float32)
        for some in range(0, K // SPAN, TWO):
            for i in tl.static_range(TWO):
                span = some + i
                sums, minima = _span_sums(tile, grid, a_at, span, row, k, FORMAT, K, i if TWO == 2 else -1)
                x_scale = tl.load(x_at + span * SPAN // _BLOCK)[:, None]
                w_scale = tl.trans(float_scales(tile, span, row, FORMAT, K, "scale"))
                total = total + sums.to(tl.float32) * w_scale * x_scale
                if MINIMUM != "none":
                    least = tl.trans(float_scales(tile, span, row, FORMAT, K, "minimum"))
                    term = minima.to(tl.float32) * least * x_scale
                    total = total - term if MINIMUM == "sub" else total + term
        where = entry.to(tl.int64)[:, None] * y_width + (y_column + n)[None, :]
        tl.store(y + where, total, mask=exists[:, None] & (n < num_out)[None, :])


def has_integer_dot() -> bool:
    """Whether Triton has matrix or dot instructions for int8 on the card at hand: not before Ampere."""
    if INTERPRETED:
        return True
    target = triton.runtime.driver.active.get_current_target()
    return target.backend != "cuda" or target.arch >= 80


def grouped_matmul(
    format: str,
    num_out: int,
    num_in: int,
    addresses: torch.Tensor,
    at: int,
    grid: torch.Tensor,
    rows: SortedRows,
    slots: int,
    codes: torch.Tensor,
    scales: torch.Tensor,
    out: torch.Tensor,
    column: int = 0,
    unpacked: torch.Tensor | None = None,
) -> None:
    """Each row times its matrix `[num_out, num_in]`, into `out`.

    Args:
        addresses: int64 `[matrices]`, of records with a matrix's planes from byte `at` on, aligned to 64.
        grid: `quantized_matmul.codebook`.
        rows: entries; an entry's row of activations is entry // slots.
        codes, scales: from `quantize_activations`.
        out: float32 `[entries, any width]`; columns from `column` on are written, at the entry's row.
        unpacked: int8, memory for `unpacked_matmul`, of as many matrices at a time as there is room for; used
            where matrices have many rows. None: weights are taken out of their planes for each block of rows.
    """
    many = rows.order.numel() >= _UNPACK_FROM * addresses.numel()
    if many and unpacked is not None and unpacked.numel() >= unpacked_bytes(format, num_out, num_in):
        unpacked_matmul(
            format, num_out, num_in, addresses, at, grid, rows, slots, codes, scales, out, column, unpacked
        )
        return
    _grouped_kernel[(rows.matrix.numel(), triton.cdiv(num_out, _OUTPUTS))](
        addresses, at, grid, codes, scales, rows.order, rows.matrix, rows.begin, rows.end, out, out.shape[1],
        column, num_out, slots,
        FORMAT=format, K=num_in, ROWS=rows.block, OUTPUTS=_OUTPUTS,
        num_warps=warps(256), num_stages=2, enable_fp_fusion=False,
    )  # fmt: skip
