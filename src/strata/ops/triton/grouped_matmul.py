"""Products of many rows with quantised matrices, for prompts: integer matrix instructions, the same bits.

Integers are exact in any order, so 32 weights of a row are a `tl.dot`; sub-scales, spans and their order are
the contract's. Rows are sorted by matrix, and a program has rows of one matrix only.

Matrices with many rows are unpacked to bytes first: `unpacked_matmul`.
"""

import torch
import triton
import triton.language as tl

from strata.formats.quants.planes import QUANT_PLANES
from strata.ops.triton.capability import loads_to_shared_memory, warps
from strata.ops.triton.decode import decode_scales, grid_extras, stored_scales
from strata.ops.triton.intrinsics import INTERPRETED
from strata.ops.triton.kernel import cdiv, current_target, kernel
from strata.ops.triton.planes import ACTIVATION_BLOCK, TILE_ROWS, fact, tile_bytes
from strata.ops.triton.sorted_rows import FEW_BLOCK, SortedRows, rows_of_block
from strata.ops.triton.step import bytes_of, step_word, sub_scales
from strata.ops.triton.unpack import PlaneMatrices
from strata.ops.triton.unpacked_matmul import at_once, unpacked_matmul

_ROWS = tl.constexpr(TILE_ROWS)
_BLOCK = tl.constexpr(ACTIVATION_BLOCK)
_STAGES = 1  # programs cover each other's waits; a tile that waits in shared memory has to be read from there


@triton.jit
def _step_sums(a, weights, factors, k, FORMAT: tl.constexpr):
    """Integer sums of a step, sub-scales included, and of its minima: int32 `[rows, n]` or `[rows, 1]`.

    Args:
        a, weights: int8 `[rows, 32]` and `[32, n]`.
        factors: of `_factors`.
        k: 0 to 31, `[1, 32]`.
    """
    if fact(FORMAT, "sub") == "none":
        sums = tl.dot(a, weights, out_dtype=tl.int32)
        minima = sums
        if fact(FORMAT, "minimum") != "none":
            minima = tl.sum(a.to(tl.int32), axis=1, keep_dims=True)
    elif fact(FORMAT, "sub_block") == 32:
        sums = tl.dot(a, weights, out_dtype=tl.int32) * factors[0]
        minima = sums
        if fact(FORMAT, "minimum") == "sub":
            minima = tl.sum(a.to(tl.int32), axis=1, keep_dims=True) * factors[1]
    else:
        # Zeros in place of the other half's columns: there are no products of fewer than 32.
        first, last = tl.where(k < 16, a, 0), tl.where(k < 16, 0, a)
        sums = tl.dot(first, weights, out_dtype=tl.int32) * factors[0]
        sums += tl.dot(last, weights, out_dtype=tl.int32) * factors[2]
        minima = sums
        if fact(FORMAT, "minimum") == "sub":
            minima = tl.sum(first.to(tl.int32), axis=1, keep_dims=True) * factors[1]
            minima += tl.sum(last.to(tl.int32), axis=1, keep_dims=True) * factors[3]
    return sums, minima


@triton.jit
def _factors(tile, step, row, extra, FORMAT: tl.constexpr, K: tl.constexpr):
    """Sub-scales and sub-minima of both halves of a step, int32 `[1, n]`."""
    if fact(FORMAT, "sub") == "none":
        return extra, extra, extra, extra
    else:
        first, least = sub_scales(tile, step, 0, row, extra, FORMAT, K)
        if fact(FORMAT, "sub_block") == 32:
            return first, least, first, least
        else:
            last, more_least = sub_scales(tile, step, 1, row, extra, FORMAT, K)
            return first, least, last, more_least


@triton.jit
def _add_span(total, sums, minima, scales, x_scale, FORMAT: tl.constexpr):
    """`total` plus the terms of a span; `scales` of `_stored_scales`."""
    MINIMUM: tl.constexpr = fact(FORMAT, "minimum")
    total = total + sums.to(tl.float32) * decode_scales(scales[0], FORMAT) * x_scale
    if MINIMUM != "none":
        term = minima.to(tl.float32) * decode_scales(scales[1], FORMAT) * x_scale
        total = total - term if MINIMUM == "sub" else total + term
    return total


@triton.jit
def _stored_scales(tile, step, half, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """Scale and minimum (else the scale again) of the span of a step or of its half, as they are stored."""
    SPAN: tl.constexpr = fact(FORMAT, "span")
    span = step * 32 // SPAN + half
    scale = stored_scales(tile, span, row, FORMAT, K, "scale")
    if fact(FORMAT, "minimum") == "none":
        return scale, scale
    else:
        return scale, stored_scales(tile, span, row, FORMAT, K, "minimum")


@triton.jit
def _load_step(tile, grid, a_at, row, word, step, FORMAT: tl.constexpr, K: tl.constexpr):
    """Weights as words, activations, factors and stored scales of both halves of a step."""
    extra = row
    if fact(FORMAT, "values") == "grid":
        extra = grid_extras(tile, step, row, FORMAT, K)
    words = step_word(tile, grid, step, word, row, extra, FORMAT, K)
    a = tl.load(a_at + step * 32)
    factors = _factors(tile, step, row, extra, FORMAT, K)
    scales = _stored_scales(tile, step, 0, row, FORMAT, K)
    last_scales = scales
    if fact(FORMAT, "span") < 32:
        last_scales = _stored_scales(tile, step, 1, row, FORMAT, K)
    return words, a, factors, scales, last_scales


@triton.jit
def _add_columns(
    total, tile, grid, a_at, x_at, row, word, k, first,
    FORMAT: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """`total` plus the terms of `STEPS` steps, whole spans of one block, from column `first` on.

    All that they need is asked for before the first is multiplied: no load would pass a product's barriers.
    """
    SPAN_STEPS: tl.constexpr = max(fact(FORMAT, "span") // 32, 1)
    x_scale = tl.load(x_at + first // _BLOCK)[:, None]
    loaded = ()
    for i in tl.static_range(STEPS):
        loaded += (_load_step(tile, grid, a_at, row, word, first // 32 + i, FORMAT, K),)
    for i in tl.static_range(STEPS):
        words, a, factors, scales, last_scales = loaded[i]
        weights = bytes_of(words)
        if fact(FORMAT, "span") < 32:
            some, some_minima = _step_sums(tl.where(k < 16, a, 0), weights, factors, k, FORMAT)
            total = _add_span(total, some, some_minima, scales, x_scale, FORMAT)
            some, some_minima = _step_sums(tl.where(k < 16, 0, a), weights, factors, k, FORMAT)
            total = _add_span(total, some, some_minima, last_scales, x_scale, FORMAT)
        else:
            some, some_minima = _step_sums(a, weights, factors, k, FORMAT)
            if i % SPAN_STEPS == 0:
                sums, minima = some, some_minima
            else:
                sums, minima = sums + some, minima + some_minima
            if (i + 1) % SPAN_STEPS == 0:
                total = _add_span(total, sums, minima, scales, x_scale, FORMAT)
    return total


@triton.jit
def _add_span_by_steps(
    total, tile, grid, a_at, x_at, row, word, k, first, FORMAT: tl.constexpr, K: tl.constexpr
):
    """`total` plus the terms of a span of several steps from column `first` on, with few registers."""
    sums = tl.zeros(total.shape, tl.int32)
    minima = tl.zeros(total.shape, tl.int32)
    for step in range(first // 32, (first + fact(FORMAT, "span")) // 32):
        words, a, factors, _, _ = _load_step(tile, grid, a_at, row, word, step, FORMAT, K)
        some, some_minima = _step_sums(a, bytes_of(words), factors, k, FORMAT)
        sums += some
        if fact(FORMAT, "minimum") != "none":
            minima += some_minima
    scales = _stored_scales(tile, first // 32, 0, row, FORMAT, K)
    return _add_span(total, sums, minima, scales, tl.load(x_at + first // _BLOCK)[:, None], FORMAT)


@triton.constexpr_function
def _columns(format: str, ahead: int) -> int:
    """Columns of an iteration: of as many steps as are loaded ahead, at least a span's.

    Of spans below a step there are so many in a block that registers would spill.
    """
    span = QUANT_PLANES[format].span
    return max(span, min(ahead * 32, 64) if span < 32 else ahead * 32)


@triton.constexpr_function
def _columns_left(num_in: int, columns: int) -> int:
    """Columns behind the last whole iteration."""
    return num_in % columns


@kernel
def _grouped_kernel(
    addresses, at, grid, codes, scales, order, bounds, matrix, begin, count, y, y_width, y_column, num_out,
    slots,
    FORMAT: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A program is a block of rows and OUTPUTS of their matrix."""
    block = tl.program_id(0)
    if block < tl.load(count):
        which = tl.load(matrix + block)
        exists, entry, row_of_x = rows_of_block(order, bounds, which, tl.load(begin + block), slots, ROWS)
        n = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        base = (tl.load(addresses + which) + at).to(tl.pointer_type(tl.uint8))
        base = tl.multiple_of(base, 64)
        last = (num_out + _ROWS - 1) // _ROWS - 1
        # Outputs are last in all that is loaded: they are neighbours in planes, so that no layout changes.
        tile = base + (tl.minimum(n // _ROWS, last).to(tl.int64) * tile_bytes(FORMAT, K))[None, :]
        row = (n % _ROWS)[None, :]
        word = tl.arange(0, 8)[:, None]
        k = tl.arange(0, 32)[None, :]
        a_at = codes + row_of_x[:, None] * K + k
        x_at = scales + row_of_x * ((K + _BLOCK - 1) // _BLOCK)
        total = tl.zeros((ROWS, OUTPUTS), tl.float32)
        COLUMNS: tl.constexpr = _columns(FORMAT, AHEAD)
        for i in tl.range(0, K // COLUMNS, num_stages=STAGES):
            first = i * COLUMNS
            if fact(FORMAT, "span") > AHEAD * 32:
                total = _add_span_by_steps(total, tile, grid, a_at, x_at, row, word, k, first, FORMAT, K)
            else:
                total = _add_columns(
                    total, tile, grid, a_at, x_at, row, word, k, first, FORMAT, K, COLUMNS // 32
                )
        LEFT: tl.constexpr = _columns_left(K, COLUMNS)
        if LEFT:
            total = _add_columns(total, tile, grid, a_at, x_at, row, word, k, K - LEFT, FORMAT, K, LEFT // 32)
        where = entry.to(tl.int64)[:, None] * y_width + (y_column + n)[None, :]
        tl.store(y + where, total, mask=exists[:, None] & (n < num_out)[None, :])


def _shape(rows: int) -> tuple[int, int, int]:
    """Threads and outputs of a program with so many rows, and the steps that are loaded ahead.

    Rows of `SortedRows.many` come here only where there is no room to unpack. Of few rows a warp of NVIDIA
    has a tile of 16 x 8, a Radeon's one of 16 x 16.
    """
    if rows > FEW_BLOCK:
        return 256, 64, 1
    return 128 if loads_to_shared_memory() else 64, 32, ACTIVATION_BLOCK // 32


def has_integer_dot() -> bool:
    """Whether Triton has matrix or dot instructions for int8 on the card at hand: not before Ampere."""
    if INTERPRETED:
        return True
    target = current_target()
    return target.backend != "cuda" or target.arch >= 80


def grouped_matmul(
    matrices: PlaneMatrices,
    rows: SortedRows,
    slots: int,
    codes: torch.Tensor,
    scales: torch.Tensor,
    out: torch.Tensor,
    column: int = 0,
    unpacked: torch.Tensor | None = None,
) -> None:
    """Each row times its matrix, into `out`.

    Args:
        rows: entries; an entry's row of activations is entry // slots.
        codes, scales: from `quantize_activations`.
        out: float32 `[entries, any width]`; columns from `column` on are written, at the entry's row.
        unpacked: int8, memory for `unpacked_matmul`, of as many matrices at a time as there is room for.
            None, or for not one: weights are taken out of their planes for each block of rows.
    """
    m = matrices
    blocks = [rows.few, rows.many]
    if unpacked is not None and at_once(m, unpacked):
        blocks = [rows.few]
        if rows.many is not None:
            unpacked_matmul(m, rows, rows.many, slots, codes, scales, out, column, unpacked)
    for some in blocks:
        if some is None:
            continue
        threads, outputs, ahead = _shape(some.rows)
        _grouped_kernel[(some.matrix.numel(), cdiv(m.num_out, outputs))](
            m.addresses, m.at, m.grid, codes, scales, rows.order, rows.bounds, some.matrix, some.begin,
            some.count, out, out.shape[1], column, m.num_out, slots,
            FORMAT=m.format, K=m.num_in, ROWS=some.rows, OUTPUTS=outputs, AHEAD=ahead,
            STAGES=_STAGES, num_warps=warps(threads), enable_fp_fusion=False,
        )  # fmt: skip
