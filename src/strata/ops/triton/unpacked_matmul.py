"""Products of many rows with quantised matrices whose weights are bytes: docs/NUMERICS.md, the same bits.

To take weights out of their planes costs more than to multiply them with a tile of rows. A matrix with many
rows is unpacked first, once for all of them (`unpack`). What multiplies them no longer knows the format, only
which of scales and minima there are.

All that a block of columns needs is loaded in the loop over blocks, so that Triton's pipeliner copies it to
shared memory while earlier blocks are multiplied. Bytes that a loop carries in registers are unpacked there.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from strata.formats.quants.planes import QUANT_PLANES
from strata.ops.triton.arithmetic import has_matrix_units
from strata.ops.triton.capability import loads_to_shared_memory, multiplies_by_warp_groups, warps
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.planes import ACTIVATION_BLOCK, fact
from strata.ops.triton.sorted_rows import Blocks, SortedRows, rows_of_block
from strata.ops.triton.unpack import PlaneMatrices, begin_of, padded_outputs, unpack, unpacked_bytes

_BLOCK = tl.constexpr(ACTIVATION_BLOCK)


@triton.constexpr_function
def _width(format: str, piece: int) -> int:
    """Columns of a product: a span's; `piece` of them where the products of a span are added as integers."""
    f = QUANT_PLANES[format]
    return max(f.span, 32) if f.sub == "none" else piece


@triton.constexpr_function
def _columns(format: str, piece: int) -> int:
    """Columns of an iteration: a block's; a product's where pieces are less and no span is cut in them."""
    if QUANT_PLANES[format].sub == "none" and piece < ACTIVATION_BLOCK:
        return _width(format, piece)
    return ACTIVATION_BLOCK


@triton.constexpr_function
def _columns_left(num_in: int, columns: int) -> int:
    """Columns behind the last whole iteration."""
    return num_in % columns


@triton.jit
def _span_scales(floats_at, span, FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PART: tl.constexpr):
    return tl.load(floats_at + (begin_of(FORMAT, N, K, PART) // 4 + span * padded_outputs(N)))


@triton.jit
def _add_scaled_span(
    total, a_at, weights_at, floats_at, x_at, span, FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """`total` plus the terms of a span of a block's columns, sub-scales in its weights."""
    WIDTH: tl.constexpr = a_at.shape[1]
    high = tl.zeros(total.shape, tl.int32)
    low = tl.zeros(total.shape, tl.int32)
    minima = tl.zeros(total.shape, tl.int32)
    for i in tl.static_range(_BLOCK // WIDTH):
        a = tl.load(a_at + (span * _BLOCK + i * WIDTH))
        at = weights_at + (span * _BLOCK + i * WIDTH)
        high = tl.dot(a, tl.trans(tl.load(at + begin_of(FORMAT, N, K, "high"))), high, out_dtype=tl.int32)
        low = tl.dot(a, tl.trans(tl.load(at)), low, out_dtype=tl.int32)
        if fact(FORMAT, "minimum") == "sub":
            least = tl.trans(tl.load(at + begin_of(FORMAT, N, K, "sub_minimum")))
            minima = tl.dot(a, least, minima, out_dtype=tl.int32)
    x_scale = tl.load(x_at + span)[:, None]
    sums = high * 256 + low
    total = total + sums.to(tl.float32) * _span_scales(floats_at, span, FORMAT, N, K, "scale") * x_scale
    if fact(FORMAT, "minimum") == "sub":
        least = _span_scales(floats_at, span, FORMAT, N, K, "minimum")
        total = total - minima.to(tl.float32) * least * x_scale
    return total


@triton.jit
def _add_spans(
    total, a_at, weights_at, floats_at, x_at, first, k,
    FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`total` plus the terms of the spans in `COLUMNS` from column `first` on, in their order."""
    SPAN: tl.constexpr = fact(FORMAT, "span")
    WIDTH: tl.constexpr = a_at.shape[1]
    x_scale = tl.load(x_at + first // _BLOCK)[:, None]
    for i in tl.static_range(COLUMNS // WIDTH):
        at = first + i * WIDTH
        weights = tl.trans(tl.load(weights_at + at))
        whole = tl.load(a_at + at)
        for part in tl.static_range(WIDTH // SPAN):
            # Zeros in place of other spans' columns: there are no products of fewer than 32.
            a = whole if SPAN == WIDTH else tl.where(k // SPAN == part, whole, 0)
            span = at // SPAN + part
            scale = _span_scales(floats_at, span, FORMAT, N, K, "scale")
            total = total + tl.dot(a, weights, out_dtype=tl.int32).to(tl.float32) * scale * x_scale
            if fact(FORMAT, "minimum") != "none":
                least = _span_scales(floats_at, span, FORMAT, N, K, "minimum")
                sums = tl.sum(a.to(tl.int32), axis=1, keep_dims=True)
                total = total + sums.to(tl.float32) * least * x_scale
    return total


@triton.jit
def _products(
    a_at, x_at, weights_at, floats_at, k,
    FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Float32 `[rows, n]`: rows of activations times rows of a matrix.

    Args:
        a_at, weights_at: int8 pointers `[rows, width]` and `[n, width]`, to the first columns.
        x_at: float32 pointers `[rows]`, to the activations' first scales.
        floats_at: float32 pointers `[1, n]`, the matrix's first byte plus the outputs' numbers.
        k: `[1, width]`, the columns' numbers.
    """
    total = tl.zeros((a_at.shape[0], weights_at.shape[0]), tl.float32)
    for i in tl.range(0, K // COLUMNS, num_stages=STAGES):
        if fact(FORMAT, "sub") != "none":
            total = _add_scaled_span(total, a_at, weights_at, floats_at, x_at, i, FORMAT, N, K)
        else:
            total = _add_spans(
                total, a_at, weights_at, floats_at, x_at, i * COLUMNS, k, FORMAT, N, K, COLUMNS
            )
    LEFT: tl.constexpr = _columns_left(K, COLUMNS)
    if LEFT:
        total = _add_spans(total, a_at, weights_at, floats_at, x_at, K - LEFT, k, FORMAT, N, K, LEFT)
    return total


@kernel(do_not_specialize=["first", "count"])
def _unpacked_kernel(
    unpacked, first, count, codes, scales, order, bounds, matrix, begin, number, starts, y, y_width, y_column,
    slots,
    FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
    PIECE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program is a block of rows and OUTPUTS of their matrix, one of `count` from `first` on."""
    block = tl.load(starts + first) + tl.program_id(0)
    if block < tl.load(starts + first + count):
        which = tl.load(matrix + block)
        exists, entry, row_of_x = rows_of_block(order, bounds, which, tl.load(begin + block), slots, ROWS)
        n = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        k = tl.arange(0, _width(FORMAT, PIECE))[None, :]
        own = unpacked + (tl.load(number + block) - first).to(tl.int64) * begin_of(FORMAT, N, K, "end")
        total = _products(
            codes + row_of_x[:, None] * K + k,
            scales + row_of_x * ((K + _BLOCK - 1) // _BLOCK),
            own + tl.minimum(n, N - 1).to(tl.int64)[:, None] * K + k,
            own.to(tl.pointer_type(tl.float32)) + n[None, :],
            k, FORMAT, N, K, _columns(FORMAT, PIECE), STAGES,
        )  # fmt: skip
        where = entry.to(tl.int64)[:, None] * y_width + (y_column + n)[None, :]
        tl.store(y + where, total, mask=exists[:, None] & (n < N)[None, :])


@cache
def _alike(format: str) -> str:
    """The first format whose scales are where this one's are: their unpacked matrices share a kernel."""

    def facts(name: str) -> tuple[int, bool, str]:
        f = QUANT_PLANES[name]
        return f.span, f.sub == "none", f.minimum

    return next(name for name in QUANT_PLANES if facts(name) == facts(format))


def _shape(format: str) -> tuple[int, int, int, int]:
    """Outputs and threads of a program, columns of a piece, and `num_stages`; by trying on an H200."""
    f = QUANT_PLANES[format]
    if multiplies_by_warp_groups():
        # Other programs cover waits better than stages that take their room.
        return 128 if f.minimum == "none" else 64, 128, ACTIVATION_BLOCK, 3 if f.sub == "none" else 2
    if loads_to_shared_memory():
        return 64, 128, ACTIVATION_BLOCK, 2
    # Registers hold all sums and their minima.
    return 64 if has_matrix_units() or f.sub == "none" else 32, 256, 32, 2


def at_once(matrices: PlaneMatrices, room: torch.Tensor) -> int:
    """How many matrices there is room to unpack."""
    most = room.numel() // unpacked_bytes(matrices.format, matrices.num_out, matrices.num_in)
    # Lists of matrices then begin where Triton has compiled for: at 16 bytes.
    return most - most % 4 if most > 4 else most


def unpacked_matmul(
    matrices: PlaneMatrices,
    rows: SortedRows,
    blocks: Blocks,
    slots: int,
    codes: torch.Tensor,
    scales: torch.Tensor,
    out: torch.Tensor,
    column: int,
    room: torch.Tensor,
) -> None:
    """`grouped_matmul` of `blocks`, which are `rows.many`.

    Args:
        room: int8, for at least one matrix; as many as it has room for are unpacked and multiplied at a time.
    """
    m, number, most = matrices, rows.matrices.numel(), at_once(matrices, room)
    outputs, threads, piece, stages = _shape(m.format)
    for first in range(0, number, most):
        count = min(most, number - first)
        unpack(m, rows.matrices[first : first + count], room)
        most_blocks = rows.order.numel() // blocks.rows + count
        _unpacked_kernel[(most_blocks, cdiv(m.num_out, outputs))](
            room, first, count, codes, scales, rows.order, rows.bounds, blocks.matrix, blocks.begin,
            rows.number, rows.starts, out, out.shape[1], column, slots,
            FORMAT=_alike(m.format), N=m.num_out, K=m.num_in, ROWS=blocks.rows, OUTPUTS=outputs,
            PIECE=piece, STAGES=stages, num_warps=warps(threads), enable_fp_fusion=False,
        )  # fmt: skip
