"""Products of many rows with quantised matrices, for prompts: integer matrix instructions, the same bits.

Integers are exact in any order, so 32 weights of a row are a `tl.dot`; sub-scales, spans and their order are
the contract's. Rows are sorted by matrix, and a program has rows of one matrix only.

To take weights out of their planes costs more than to multiply them with a tile of rows. Where a matrix has
many rows, its weights are unpacked to bytes first, once for all of them.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.formats.quants.planes import QUANT_PLANES
from strata.ops.triton.capability import warps
from strata.ops.triton.decode import (
    float_scales,
    grid_subs,
    grid_upper,
    grid_words,
    less,
    plain_codes,
    plain_subs,
    plain_words,
)
from strata.ops.triton.intrinsics import INTERPRETED
from strata.ops.triton.planes import ACTIVATION_BLOCK, TILE_ROWS, fact, tile_bytes

_ROWS = tl.constexpr(TILE_ROWS)
_BLOCK = tl.constexpr(ACTIVATION_BLOCK)
BLOCKS = (16, 32, 64)  # rows of activations in a program
_OUTPUTS = 64
# Outputs and threads with unpacked weights. Half as many threads for the last would spill on every card.
_TILES = {16: (64, 128), 32: (64, 128), 64: (128, 256)}
_UNPACK_STEPS = 4
_UNPACK_FROM = 16  # rows of a matrix; fewer are multiplied with planes as soon as with bytes


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows (or entries, row * slots + slot) sorted by their matrix, cut in blocks of at most `ROWS_AT_ONCE`.

    Args:
        order: int32 `[entries]`, those of one matrix in ascending order.
        matrix: int32 `[blocks]`: the matrix of a block, -1 behind the last one.
        begin, end: int32 `[blocks]`: the block's places in `order`.
        bounds: int32 `[matrices + 1]`: where the entries of each matrix begin in `order`.
        block: most entries of a block.
    """

    order: torch.Tensor
    matrix: torch.Tensor
    begin: torch.Tensor
    end: torch.Tensor
    bounds: torch.Tensor
    block: int


def _block_of(rows: float) -> int:
    """Rows of a block where a matrix has so many on average; by trying on an H200."""
    return next(block for block in BLOCKS if block >= min(0.4 * rows, BLOCKS[-1]))


def sort_rows(ids: torch.Tensor, num_matrices: int) -> SortedRows:
    """Sort entries by matrix; nothing is read back, the number of blocks is the largest there can be.

    Args:
        ids: integers `[entries]` below `num_matrices`; entries with a negative one are left out.
    """
    entries = ids.numel()
    block = _block_of(entries / num_matrices)
    key = torch.where(ids < 0, num_matrices, ids).int()
    sorted_key, order = torch.sort(key, stable=True)
    bounds = torch.searchsorted(
        sorted_key, torch.arange(num_matrices + 1, dtype=torch.int32, device=ids.device)
    )
    blocks = torch.cumsum((bounds.diff() + block - 1) // block, 0)
    most = entries // block + min(entries, num_matrices)
    at = torch.arange(most, device=ids.device)
    matrix = torch.searchsorted(blocks, at, right=True)
    used = matrix < num_matrices
    matrix = torch.where(used, matrix, 0)
    first = torch.where(matrix > 0, blocks[matrix - 1], 0)
    begin = bounds[matrix] + (at - first) * block
    end = torch.minimum(begin + block, bounds[matrix + 1])
    matrix = torch.where(used, matrix, -1)
    return SortedRows(order.int(), matrix.int(), begin.int(), end.int(), bounds.int(), block)


def rows_in_order(rows: int, device: torch.device) -> SortedRows:
    """All `rows` of one matrix."""
    block = _block_of(rows)
    begin = torch.arange(0, rows, block, dtype=torch.int32, device=device)
    order = torch.arange(rows, dtype=torch.int32, device=device)
    bounds = torch.arange(2, dtype=torch.int32, device=device) * rows
    return SortedRows(order, torch.zeros_like(begin), begin, (begin + block).clamp(max=rows), bounds, block)


@triton.jit
def _pair(first, second):
    """int `[n, w]` twice -> `[n, 2 w]`, taking turns."""
    joined = tl.join(first, second)
    return tl.reshape(joined, (first.shape[0], first.shape[1] * 2))


@triton.jit
def _step_bytes(tile, grid, step, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """The 32 weights of a step: int8 `[n, 32]` for `tile` and `row` `[n, 1]`, and a codebook's extra bits."""
    LOW: tl.constexpr = fact(FORMAT, "low")
    extra = row
    if fact(FORMAT, "values") == "grid":
        PLACES: tl.constexpr = 32 // fact(FORMAT, "index_weights")
        place = tl.arange(0, PLACES)[None, :]
        words, more, extra = grid_words(tile, grid, step, place, row, FORMAT, K)
        if fact(FORMAT, "extra") == 16:
            words = less(words * 2, 9)
            more = less(more * 2, 9)
        if PLACES == 4:
            words = _pair(words, more)
    else:
        low, high = plain_words(tile, step * LOW + tl.arange(0, LOW)[None, :], row, FORMAT, K)
        words = plain_codes(low, high, 0, FORMAT)
        if LOW == 4:
            words = _pair(words, plain_codes(low, high, 1, FORMAT))
        elif LOW == 2:
            even = _pair(words, plain_codes(low, high, 2, FORMAT))
            words = _pair(even, _pair(plain_codes(low, high, 1, FORMAT), plain_codes(low, high, 3, FORMAT)))
        words = less(words, fact(FORMAT, "offset"))
    even = _pair(words.to(tl.int8), (words >> 16).to(tl.int8))
    return _pair(even, _pair((words >> 8).to(tl.int8), (words >> 24).to(tl.int8))), extra


@triton.jit
def _bytes_and_extra(
    tile, grid, bytes_at, step, row, FORMAT: tl.constexpr, K: tl.constexpr, UNPACKED: tl.constexpr
):
    """As `_step_bytes`, where `bytes_at` may have the weights already: int8 `[n, 32]` pointers to step 0."""
    if UNPACKED:
        weights = tl.load(bytes_at + step * 32)
        extra = row
        if fact(FORMAT, "values") == "grid":
            _, extra = grid_upper(tile, step, tl.zeros((1, 1), tl.int32), row, FORMAT, K)
    else:
        weights, extra = _step_bytes(tile, grid, step, row, FORMAT, K)
    return weights, extra


@triton.jit(do_not_specialize=["first"])
def _unpack_kernel(
    addresses, at, grid, bounds, first, out, num_out, FORMAT: tl.constexpr, K: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """A program is 16 rows and 32 * STEPS columns of a matrix that has rows of activations."""
    which = first + tl.program_id(0)
    if tl.load(bounds + which) < tl.load(bounds + which + 1):
        row = tl.arange(0, _ROWS)[:, None]
        tile = (tl.load(addresses + which) + at).to(tl.pointer_type(tl.uint8))
        tile = tl.multiple_of(tile, 64) + tl.program_id(1).to(tl.int64) * tile_bytes(FORMAT, K)
        n = tl.program_id(1) * _ROWS + row
        to = out + (tl.program_id(0).to(tl.int64) * num_out + n) * K + tl.arange(0, 32)[None, :]
        for i in tl.static_range(STEPS):
            step = tl.program_id(2) * STEPS + i
            if step < K // 32:
                weights, _ = _step_bytes(tile, grid, step, row, FORMAT, K)
                tl.store(to + step * 32, weights, mask=n < num_out)


@triton.jit
def _sub_scales(tile, step, half, row, extra, FORMAT: tl.constexpr, K: tl.constexpr):
    """Integer sub-scales and sub-minima of half a step (of a step where they are the same), `[n, 1]`."""
    if fact(FORMAT, "values") == "grid":
        factor = grid_subs(tile, step, half, row, tl.max(extra, axis=1, keep_dims=True), FORMAT, K)
        return factor, factor
    else:
        sub_block = step * (32 // fact(FORMAT, "sub_block")) + half
        return plain_subs(tile, sub_block, row, FORMAT, K)


@triton.jit
def _span_sums(
    tile, grid, bytes_at, a_at, span, row, k, FORMAT: tl.constexpr, K: tl.constexpr, HALF: tl.constexpr,
    UNPACKED: tl.constexpr,
):  # fmt: skip
    """Integer sums of a span, and of its minima: int32 `[rows, n]`; `HALF` of a step is the span, or -1."""
    SPAN: tl.constexpr = fact(FORMAT, "span")
    SUB: tl.constexpr = fact(FORMAT, "sub")
    MINIMUM: tl.constexpr = fact(FORMAT, "minimum")
    STEPS: tl.constexpr = max(SPAN // 32, 1)
    HALVES: tl.constexpr = 2 if SUB != "none" and fact(FORMAT, "sub_block") == 16 else 1
    sums = tl.zeros((a_at.shape[0], tile.shape[0]), tl.int32)
    minima = tl.zeros((a_at.shape[0], tile.shape[0]), tl.int32)
    for i in range(STEPS):
        step = span * STEPS + i if HALF < 0 else span // 2
        weights, extra = _bytes_and_extra(tile, grid, bytes_at, step, row, FORMAT, K, UNPACKED)
        weights = tl.trans(weights)
        a = tl.load(a_at + step * 32)
        if HALF >= 0:
            a = tl.where(k // 16 == HALF, a, 0)
        if SUB == "none":
            sums = tl.dot(a, weights, sums, out_dtype=tl.int32)
            if MINIMUM != "none":
                minima += tl.sum(a.to(tl.int32), axis=1, keep_dims=True)
        else:
            for half in tl.static_range(HALVES):
                part = a
                if HALVES == 2:
                    part = tl.where(k // 16 == half, a, 0)
                factor, least = _sub_scales(tile, step, half, row, extra, FORMAT, K)
                sums += tl.dot(part, weights, out_dtype=tl.int32) * tl.trans(factor)
                if MINIMUM == "sub":
                    minima += tl.sum(part.to(tl.int32), axis=1, keep_dims=True) * tl.trans(least)
    return sums, minima


@triton.jit(do_not_specialize=["first", "count"])
def _grouped_kernel(
    addresses, at, grid, unpacked, first, count, codes, scales, order, matrix, begin, end, y, y_width,
    y_column, num_out, slots,
    FORMAT: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """A program is a block of rows and OUTPUTS of their matrix, if that is one of `count` from `first` on."""
    UNPACKED: tl.constexpr = unpacked is not None
    block = tl.program_id(0)
    which = tl.load(matrix + block)
    if (which >= first) & (which < first + count):
        place = tl.load(begin + block) + tl.arange(0, ROWS)
        exists = place < tl.load(end + block)
        entry = tl.load(order + place, mask=exists, other=0)
        row_of_x = (entry // slots).to(tl.int64)
        n = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        base = (tl.load(addresses + which) + at).to(tl.pointer_type(tl.uint8))
        base = tl.multiple_of(base, 64)
        last = (num_out + _ROWS - 1) // _ROWS - 1
        tile = base + (tl.minimum(n // _ROWS, last).to(tl.int64) * tile_bytes(FORMAT, K))[:, None]
        row = (n % _ROWS)[:, None]
        k = tl.arange(0, 32)[None, :]
        bytes_at = codes  # not read
        if UNPACKED:
            place_of_n = (which - first).to(tl.int64) * num_out + tl.minimum(n, num_out - 1)
            bytes_at = unpacked + place_of_n[:, None] * K + k
        a_at = codes + row_of_x[:, None] * K + k
        x_at = scales + row_of_x * ((K + _BLOCK - 1) // _BLOCK)
        SPAN: tl.constexpr = fact(FORMAT, "span")
        MINIMUM: tl.constexpr = fact(FORMAT, "minimum")
        TWO: tl.constexpr = 2 if SPAN == 16 else 1
        total = tl.zeros((ROWS, OUTPUTS), tl.float32)
        for some in range(0, K // SPAN, TWO):
            for i in tl.static_range(TWO):
                span = some + i
                sums, minima = _span_sums(
                    tile, grid, bytes_at, a_at, span, row, k, FORMAT, K, i if TWO == 2 else -1, UNPACKED
                )
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
        unpacked: int8, memory for weights as bytes, of as many matrices at a time as there is room for; used
            where matrices have many rows. None: weights are taken out of their planes for each block of rows.
    """
    matrices, size = addresses.numel(), num_out * num_in
    many = rows.order.numel() >= _UNPACK_FROM * matrices
    room = unpacked if many and unpacked is not None and unpacked.numel() >= size else None
    count = matrices if room is None else min(matrices, room.numel() // size)
    for first in range(0, matrices, count):
        number = min(count, matrices - first)
        if room is not None:
            steps = triton.cdiv(num_in // 32, _UNPACK_STEPS)
            _unpack_kernel[(number, triton.cdiv(num_out, TILE_ROWS), steps)](
                addresses, at, grid, rows.bounds, first, room, num_out, FORMAT=format, K=num_in,
                STEPS=_UNPACK_STEPS, num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip
        outputs, threads = _TILES[rows.block] if room is not None else (_OUTPUTS, 256)
        if QUANT_PLANES[format].minimum != "none":  # whose sums are in registers too
            outputs = min(outputs, _OUTPUTS)
        _grouped_kernel[(rows.matrix.numel(), triton.cdiv(num_out, outputs))](
            addresses, at, grid, room, first, number, codes, scales, rows.order, rows.matrix, rows.begin,
            rows.end, out, out.shape[1], column, num_out, slots,
            FORMAT=format, K=num_in, ROWS=rows.block, OUTPUTS=outputs,
            num_warps=warps(threads), num_stages=2, enable_fp_fusion=False,
        )  # fmt: skip
