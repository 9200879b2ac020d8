"""Products of many rows with quantised matrices whose weights are bytes: docs/NUMERICS.md, the same bits.

To take weights out of their planes costs more than to multiply them with a tile of rows. Where a matrix has
many rows, `grouped_matmul` has it unpacked first, once for all of them: weights to int8, sub-scales to int32,
scales to float32. What multiplies them no longer knows the format, only which of these there are.
"""

import torch
import triton
import triton.language as tl

from strata.formats.quants.planes import QUANT_PLANES
from strata.ops.triton.capability import warps
from strata.ops.triton.decode import float_scales
from strata.ops.triton.planes import ACTIVATION_BLOCK, TILE_ROWS, fact, tile_bytes
from strata.ops.triton.sorted_rows import BLOCKS, SortedRows, rows_of_block
from strata.ops.triton.step import step_bytes, sub_scales

_ROWS = tl.constexpr(TILE_ROWS)
_BLOCK = tl.constexpr(ACTIVATION_BLOCK)
_STEPS = 4  # of 32 columns, that a program unpacks
_ALIGNMENT = 128
_OUTPUTS = 64  # of a program
_FEW_OUTPUTS = 32  # where there are minima, or two sub-scales in a product: more would spill
_THREADS = {16: 128, 32: 128, 64: 256}  # by the rows of a program


@triton.constexpr_function
def _sub_block(format: str) -> int:
    """Columns of an integer sub-scale; 0 where there is none."""
    f = QUANT_PLANES[format]
    return 0 if f.sub == "none" else f.sub_block


@triton.constexpr_function
def _padded(num_out: int) -> int:
    """Scales from one part of all rows to the next: a multiple, so that loads need no mask."""
    return -(-num_out // 128) * 128


@triton.constexpr_function
def _begin(format: str, num_out: int, num_in: int, part: str) -> int:
    """Where a part of an unpacked matrix begins, in words of four bytes, or where all of them end.

    Weights int8 `[num_out, num_in]`, then `[parts of a row, padded num_out]`: sub-scales and sub-minima, both
    int32, scales and minima, both float32.
    """
    f, padded = QUANT_PLANES[format], _padded(num_out)
    subs = 0 if f.sub == "none" else num_in // f.sub_block
    spans = num_in // f.span
    words = {
        "weights": num_out * num_in // 4,
        "sub": subs * padded,
        "sub_minimum": subs * padded if f.minimum == "sub" else 0,
        "scale": spans * padded,
        "minimum": 0 if f.minimum == "none" else spans * padded,
        "end": 0,
    }
    before = list(words)[: list(words).index(part)]
    return -(-sum(words[name] for name in before) * 4 // _ALIGNMENT) * _ALIGNMENT // 4


@triton.jit(do_not_specialize=["first"])
def _unpack_kernel(
    addresses, at, grid, bounds, first, out, FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """A program is 16 rows and 32 * STEPS columns of a matrix that has rows of activations."""
    which = first + tl.program_id(0)
    if tl.load(bounds + which) < tl.load(bounds + which + 1):
        row = tl.arange(0, _ROWS)[:, None]
        tile = (tl.load(addresses + which) + at).to(tl.pointer_type(tl.uint8))
        tile = tl.multiple_of(tile, 64) + tl.program_id(1).to(tl.int64) * tile_bytes(FORMAT, K)
        n = tl.program_id(1) * _ROWS + row
        words = out + tl.program_id(0).to(tl.int64) * _begin(FORMAT, N, K, "end")
        weights_at = words.to(tl.pointer_type(tl.int8)) + n.to(tl.int64) * K + tl.arange(0, 32)[None, :]
        for i in tl.static_range(STEPS):
            step = tl.program_id(2) * STEPS + i
            if step < K // 32:
                weights, extra = step_bytes(tile, grid, step, row, FORMAT, K)
                tl.store(weights_at + step * 32, weights, mask=n < N)
                _unpack_scales(tile, step, row, extra, words, n, FORMAT, N, K)


@triton.jit
def _unpack_scales(tile, step, row, extra, words, n, FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """All scales of which a step has the first columns."""
    SPAN: tl.constexpr = fact(FORMAT, "span")
    MINIMUM: tl.constexpr = fact(FORMAT, "minimum")
    SUB: tl.constexpr = _sub_block(FORMAT)
    if SUB:
        for half in tl.static_range(32 // SUB):
            factor, least = sub_scales(tile, step, half, row, extra, FORMAT, K)
            at = (step * (32 // SUB) + half) * _padded(N) + n
            tl.store(words + _begin(FORMAT, N, K, "sub") + at, factor, mask=n < N)
            if MINIMUM == "sub":
                tl.store(words + _begin(FORMAT, N, K, "sub_minimum") + at, least, mask=n < N)
    floats = words.to(tl.pointer_type(tl.float32))
    if step * 32 % SPAN == 0:
        for i in tl.static_range(max(32 // SPAN, 1)):
            span = step * 32 // SPAN + i
            scale = float_scales(tile, span, row, FORMAT, K, "scale")
            tl.store(floats + _begin(FORMAT, N, K, "scale") + span * _padded(N) + n, scale, mask=n < N)
            if MINIMUM != "none":
                scale = float_scales(tile, span, row, FORMAT, K, "minimum")
                tl.store(floats + _begin(FORMAT, N, K, "minimum") + span * _padded(N) + n, scale, mask=n < N)


@triton.constexpr_function
def _whole_blocks(num_in: int) -> int:
    return num_in // ACTIVATION_BLOCK


@triton.constexpr_function
def _columns_left(num_in: int) -> int:
    return num_in % ACTIVATION_BLOCK


@triton.jit
def _pieces(at, first, WIDTH: tl.constexpr, COUNT: tl.constexpr):
    """`COUNT` pieces of a row, `WIDTH` columns each, from column `first` on; always four, the last again."""
    at += first
    return (
        tl.load(at),
        tl.load(at + min(1, COUNT - 1) * WIDTH),
        tl.load(at + min(2, COUNT - 1) * WIDTH),
        tl.load(at + min(3, COUNT - 1) * WIDTH),
    )


@triton.jit
def _half(a, k, HALF: tl.constexpr):
    """The columns of one half, zeros in place of the others; all for -1."""
    return a if HALF < 0 else tl.where(k // 16 == HALF, a, 0)


@triton.jit
def _piece_sums(a, weights, sub_at, k, NEXT: tl.constexpr, SUB: tl.constexpr, HALF: tl.constexpr):
    """Integer sums of a piece, sub-scales included: int32 `[rows, n]`.

    Args:
        sub_at: `[1, n]`, where its sub-scales are; the next ones are `NEXT` behind.
        HALF: of the columns that counts; -1: both.
    """
    weights = tl.trans(weights)
    # One return: Triton 3.6 types what stands behind one that a constant chose, too.
    if SUB == 0:
        sums = tl.dot(_half(a, k, HALF), weights, out_dtype=tl.int32)
    elif SUB == 32:
        # Scales are loaded before the product, to be there behind it.
        factor = tl.load(sub_at)
        sums = tl.dot(a, weights, out_dtype=tl.int32) * factor
    else:
        factor, more = tl.load(sub_at), tl.load(sub_at + NEXT)
        sums = tl.dot(_half(a, k, 0), weights, out_dtype=tl.int32) * factor
        sums += tl.dot(_half(a, k, 1), weights, out_dtype=tl.int32) * more
    return sums


@triton.jit
def _piece_minima(a, least_at, k, NEXT: tl.constexpr, SUB: tl.constexpr):
    """What a piece's minima are multiplied with, sub-minima included: int32 `[rows, n]`, or `[rows, 1]`."""
    if SUB == 0:
        minima = tl.sum(a.to(tl.int32), axis=1, keep_dims=True)
    elif SUB == 32:
        minima = tl.sum(a.to(tl.int32), axis=1, keep_dims=True) * tl.load(least_at)
    else:
        minima = tl.sum(_half(a, k, 0).to(tl.int32), axis=1, keep_dims=True) * tl.load(least_at)
        minima += tl.sum(_half(a, k, 1).to(tl.int32), axis=1, keep_dims=True) * tl.load(least_at + NEXT)
    return minima


@triton.jit
def _add_block(
    total, weights, a, x_at, words_at, block, k,
    FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`total` plus the terms of all spans of a block of activations, which has `COLUMNS`, in their order.

    Args:
        weights, a: four pieces each.
        words_at: `[1, n]`, the matrix's first word and the numbers of outputs.
    """
    SPAN: tl.constexpr = fact(FORMAT, "span")
    MINIMUM: tl.constexpr = fact(FORMAT, "minimum")
    SUB: tl.constexpr = _sub_block(FORMAT)
    WIDTH: tl.constexpr = k.shape[1]
    PIECES: tl.constexpr = max(SPAN // WIDTH, 1)
    NEXT: tl.constexpr = _padded(N)
    x_scale = tl.load(x_at + block)[:, None]
    sub_at = words_at + _begin(FORMAT, N, K, "sub")
    least_at = words_at + _begin(FORMAT, N, K, "sub_minimum")
    if SUB:
        sub_at += block * (_BLOCK // SUB * NEXT)
        least_at += block * (_BLOCK // SUB * NEXT)
    floats_at = words_at.to(tl.pointer_type(tl.float32))
    for s in tl.static_range(COLUMNS // SPAN):
        span = (block * (_BLOCK // SPAN) + s) * NEXT
        scale = tl.load(floats_at + _begin(FORMAT, N, K, "scale") + span)
        least = scale
        if MINIMUM != "none":
            least = tl.load(floats_at + _begin(FORMAT, N, K, "minimum") + span)
        sums = tl.zeros((1, 1), tl.int32)
        for j in tl.static_range(PIECES):
            next_sub = sub_at + j * (32 // max(SUB, 1) * NEXT)
            sums += _piece_sums(
                a[s * SPAN // WIDTH + j], weights[s * SPAN // WIDTH + j], next_sub, k, NEXT, SUB,
                s % 2 if SPAN == 16 else -1,
            )  # fmt: skip
        total = total + sums.to(tl.float32) * scale * x_scale
        if MINIMUM != "none":
            # Behind the sums, whose registers are free then.
            minima = tl.zeros((1, 1), tl.int32)
            for j in tl.static_range(PIECES):
                next_least = least_at + j * (32 // max(SUB, 1) * NEXT)
                minima += _piece_minima(a[s * SPAN // WIDTH + j], next_least, k, NEXT, SUB)
            term = minima.to(tl.float32) * least * x_scale
            total = total - term if MINIMUM == "sub" else total + term
    return total


@triton.jit(do_not_specialize=["first", "count"])
def _unpacked_kernel(
    unpacked, first, count, codes, scales, order, matrix, begin, end, y, y_width, y_column, slots,
    FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """A program is a block of rows and OUTPUTS of their matrix, if that is one of `count` from `first` on."""
    block_of_rows = tl.program_id(0)
    which = tl.load(matrix + block_of_rows)
    if (which >= first) & (which < first + count):
        # A product is of one span: two in a chain would have Triton lay out their sums differently.
        WIDTH: tl.constexpr = 64 if fact(FORMAT, "span") == 64 else 32
        PIECES: tl.constexpr = _BLOCK // WIDTH
        exists, entry, row_of_x = rows_of_block(order, begin, end, block_of_rows, slots, ROWS)
        n = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        k = tl.arange(0, WIDTH)[None, :]
        words = unpacked + (which - first).to(tl.int64) * _begin(FORMAT, N, K, "end")
        w_at = words.to(tl.pointer_type(tl.int8)) + tl.minimum(n, N - 1).to(tl.int64)[:, None] * K + k
        a_at = codes + row_of_x[:, None] * K + k
        x_at = scales + row_of_x * ((K + _BLOCK - 1) // _BLOCK)
        words_at = words + n[None, :]
        total = tl.zeros((ROWS, OUTPUTS), tl.float32)
        BLOCKS: tl.constexpr = _whole_blocks(K)
        if BLOCKS:
            # What the next block needs is on its way while this one is multiplied. Triton's pipeliner does
            # not do so: it asks for what comes next when a product is done.
            w0, w1, w2, w3 = _pieces(w_at, 0, WIDTH, PIECES)
            a0, a1, a2, a3 = _pieces(a_at, 0, WIDTH, PIECES)
            for block in tl.range(0, BLOCKS, num_stages=1):
                ahead = tl.minimum(block + 1, BLOCKS - 1) * _BLOCK
                v0, v1, v2, v3 = _pieces(w_at, ahead, WIDTH, PIECES)
                b0, b1, b2, b3 = _pieces(a_at, ahead, WIDTH, PIECES)
                total = _add_block(
                    total, (w0, w1, w2, w3), (a0, a1, a2, a3), x_at, words_at, block, k, FORMAT, N, K, _BLOCK
                )
                w0, w1, w2, w3 = v0, v1, v2, v3
                a0, a1, a2, a3 = b0, b1, b2, b3
        LEFT: tl.constexpr = _columns_left(K)
        if LEFT:
            w0, w1, w2, w3 = _pieces(w_at, BLOCKS * _BLOCK, WIDTH, LEFT // WIDTH)
            a0, a1, a2, a3 = _pieces(a_at, BLOCKS * _BLOCK, WIDTH, LEFT // WIDTH)
            total = _add_block(
                total, (w0, w1, w2, w3), (a0, a1, a2, a3), x_at, words_at, BLOCKS, k, FORMAT, N, K, LEFT
            )
        where = entry.to(tl.int64)[:, None] * y_width + (y_column + n)[None, :]
        tl.store(y + where, total, mask=exists[:, None] & (n < N)[None, :])


def _alike(format: str) -> str:
    """The first format whose scales are where this one's are: their unpacked matrices share a kernel."""

    def facts(name: str) -> tuple[int, int, str]:
        f = QUANT_PLANES[name]
        return f.span, 0 if f.sub == "none" else f.sub_block, f.minimum

    return next(name for name in QUANT_PLANES if facts(name) == facts(format))


def unpacked_bytes(format: str, num_out: int, num_in: int) -> int:
    """Memory for one matrix."""
    return 4 * _begin(format, num_out, num_in, "end")


def unpacked_matmul(
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
    column: int,
    room: torch.Tensor,
) -> None:
    """`grouped_matmul` by way of `room`, int8, for as many matrices at a time as it has memory for."""
    matrices = addresses.numel()
    count = min(matrices, room.numel() // unpacked_bytes(format, num_out, num_in))
    room = room.view(torch.int32)
    has_few = QUANT_PLANES[format].minimum != "none" or _sub_block(format) == 16
    outputs = _FEW_OUTPUTS if has_few and rows.block == BLOCKS[-1] else _OUTPUTS
    for first in range(0, matrices, count):
        number = min(count, matrices - first)
        steps = triton.cdiv(num_in // 32, _STEPS)
        _unpack_kernel[(number, triton.cdiv(num_out, TILE_ROWS), steps)](
            addresses, at, grid, rows.bounds, first, room, FORMAT=format, N=num_out, K=num_in, STEPS=_STEPS,
            num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
        _unpacked_kernel[(rows.matrix.numel(), triton.cdiv(num_out, outputs))](
            room, first, number, codes, scales, rows.order, rows.matrix, rows.begin, rows.end, out,
            out.shape[1], column, slots,
            FORMAT=_alike(format), N=num_out, K=num_in, ROWS=rows.block, OUTPUTS=outputs,
            num_warps=warps(_THREADS[rows.block]), enable_fp_fusion=False,
        )  # fmt: skip
