"""Products of a few rows of int8 activations with a tile of planes: docs/NUMERICS.md, "The product".

A warp owns a tile of 16 rows. Its lanes lie along the words of a span, four rows in each lane, so that loads
are 128 bits wide and neighbours; integers cross lanes (exactly), floats never do. For Triton to see it so,
the rows of a tile are two axes of four, and everything that is loaded has all axes,

    [R rows of activations, spans, words, 4, 4],

activations too, of which four lanes load the same: a load of another shape would bring its own layout along.
"""

import triton
import triton.language as tl

from strata.formats.quants.planes import QUANT_PLANES
from strata.ops.triton.decode import (
    ONES,
    constant,
    float_scales,
    grid_subs,
    grid_words,
    plain_codes,
    plain_subs,
    plain_words,
)
from strata.ops.triton.dependent_launch import prefetch, step_launch
from strata.ops.triton.intrinsics import INTERPRETED, dot4
from strata.ops.triton.planes import ACTIVATION_BLOCK, TILE_ROWS, fact, tile_bytes

_BLOCK = tl.constexpr(ACTIVATION_BLOCK)


def one_warp() -> dict[str, object]:
    """Options of a kernel that multiplies tiles, a warp each.

    NVIDIA's assembler would move loads behind arithmetic, to fit as many warps as a multiprocessor takes, and
    then wait for each of them: a limit on registers that is never met keeps loads together.
    """
    options = {"num_warps": 1, **step_launch()}
    if INTERPRETED or triton.runtime.driver.active.get_current_target().backend != "cuda":
        return options
    return options | {"maxnreg": 168}


@triton.constexpr_function
def spans_at_once(format: str, num_in: int, rows: int) -> int:
    """Spans of a tile that are loaded together: about 4 KiB in flight, less where registers would spill."""
    f = QUANT_PLANES[format]
    span_bytes = f.span * (f.low + f.high) * TILE_ROWS // 8
    budget, most = (5120, 4 if f.index_weights else 16) if rows == 1 else (2560, 2 if f.index_weights else 8)
    count = 1
    while count * 2 <= most and count * 2 * span_bytes <= budget and count * 2 <= num_in // f.span:
        count *= 2
    return count


@triton.jit
def _lanes(COUNT: tl.constexpr):
    """0 to `COUNT` - 1 along the words' axis, neighbours swapped.

    Else Triton would see that their activations are neighbours, and have one lane load those of four.
    """
    return (tl.arange(0, COUNT) ^ 1)[None, None, :, None, None]


@triton.jit
def rows_of_tile(RANK: tl.constexpr):
    """0 to 15 as int32 `[..., 4, 4]`."""
    i = tl.arange(0, 4)
    rows = i[:, None] * 4 + i[None, :]
    for _ in tl.static_range(RANK - 2):
        rows = rows[None]
    return rows


@triton.jit
def _activation(codes, row_at, word):
    """Four codes each: int32 `[R, spans, words, 4, 1]` at `word` `[1, spans, words, 1, 1]` of each row."""
    lanes = tl.zeros((1, 1, 1, 4, 1), tl.int32)
    return tl.load(codes + row_at[:, None, None, None, None] + (word + lanes))


@triton.jit
def _plain_lanes(tile, codes, row_at, first, FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr):
    """Each lane's part of the integer sums of formats whose codes stand in words.

    Returns:
        int32 `[R, SPANS, words, 4, 4]`, and of the minima's sums, or of activation codes `[..., 4, 1]`.
    """
    LOW: tl.constexpr = fact(FORMAT, "low")
    OFFSET: tl.constexpr = fact(FORMAT, "offset")
    WORDS: tl.constexpr = fact(FORMAT, "span_words")
    GROUPS: tl.constexpr = 8 // LOW
    row = rows_of_tile(5)
    span = first + tl.arange(0, SPANS)[None, :, None, None, None]
    word = span * WORDS + _lanes(WORDS)
    low, high = plain_words(tile, word, row, FORMAT, K)
    a = _activation(codes, row_at, word * GROUPS)
    sums = dot4(constant(ONES), a, a & 0)
    lanes = dot4(plain_codes(low, high, 0, FORMAT), a, tl.zeros_like(low))
    for i in tl.static_range(1, GROUPS):
        a = _activation(codes, row_at, word * GROUPS + i)
        lanes = dot4(plain_codes(low, high, i, FORMAT), a, lanes)
        sums = dot4(constant(ONES), a, sums)
    if OFFSET:
        lanes -= sums * OFFSET
    if fact(FORMAT, "sub") != "none":
        sub_block = word * (32 // LOW) // fact(FORMAT, "sub_block")
        factor, minima = plain_subs(tile, sub_block, row, FORMAT, K)
        lanes = lanes * factor
        sums = sums * minima
    return lanes, sums


@triton.jit
def _grid_lanes(tile, grid, codes, row_at, first, FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr):
    """Each lane's part of the integer sums of codebook formats: int32 `[R, SPANS, indices, 4, 4]`."""
    WEIGHTS: tl.constexpr = fact(FORMAT, "index_weights")
    INDICES: tl.constexpr = fact(FORMAT, "span_words")
    PER_STEP: tl.constexpr = 32 // WEIGHTS
    WORDS: tl.constexpr = WEIGHTS // 4
    row = rows_of_tile(5)
    span = first + tl.arange(0, SPANS)[None, :, None, None, None]
    index = span * INDICES + _lanes(INDICES)
    step, place = index // PER_STEP, index % PER_STEP
    words, more, extra = grid_words(tile, grid, step, place, row, FORMAT, K)
    a = _activation(codes, row_at, index * WORDS)
    lanes = dot4(words, a, tl.zeros_like(words))
    if WORDS == 2:
        b = _activation(codes, row_at, index * WORDS + 1)
        lanes = dot4(more, b, lanes)
        if fact(FORMAT, "extra") == 16:
            lanes = lanes * 2 - dot4(constant(ONES), b, dot4(constant(ONES), a, a & 0)) * 9
    return lanes * grid_subs(tile, step, place // (PER_STEP // 2), row, extra, FORMAT, K)


@triton.jit
def _span_integers(
    tile, grid, codes, row_at, first, FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr
):
    """Integer sums of `SPANS` spans of a tile from `first` on, int32 `[R, SPANS, 4, 4]`, and of minima."""
    if fact(FORMAT, "values") == "grid":
        lanes = _grid_lanes(tile, grid, codes, row_at, first, FORMAT, K, SPANS)
        sums = lanes
    else:
        lanes, sums = _plain_lanes(tile, codes, row_at, first, FORMAT, K, SPANS)
    integers = tl.sum(lanes, axis=2)
    if fact(FORMAT, "minimum") != "none":
        sums = tl.sum(sums, axis=2)
    return integers, sums


@triton.jit
def _span_term(
    tile, integers, scales, scale_at, first, i,
    FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr, PLANE: tl.constexpr,
):  # fmt: skip
    """What span `first + i` adds to a product, or with `PLANE` minimum, its minima: float32 `[R, 4, 4]`."""
    s = tl.arange(0, SPANS)[None, :, None, None]
    part = tl.sum(tl.where(s == i, integers, 0), axis=1).to(tl.float32)
    x_scale = tl.load(scales + scale_at + (first + i) * fact(FORMAT, "span") // _BLOCK)[:, None, None]
    w_scale = float_scales(tile, first + i, rows_of_tile(2), FORMAT, K, PLANE)[None, :, :]
    term = part * w_scale * x_scale
    return -term if PLANE == "minimum" and fact(FORMAT, "minimum") == "sub" else term


@triton.jit
def _add_spans(
    total, tile, grid, codes, scales, row_at, scale_at, first,
    FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """`total` `[R, 4, 4]` plus the terms of `SPANS` spans of a tile from `first` on, in order."""
    integers, sums = _span_integers(tile, grid, codes, row_at, first, FORMAT, K, SPANS)
    for i in tl.static_range(SPANS):
        total += _span_term(tile, integers, scales, scale_at, first, i, FORMAT, K, SPANS, "scale")
        if fact(FORMAT, "minimum") != "none":
            total += _span_term(tile, sums, scales, scale_at, first, i, FORMAT, K, SPANS, "minimum")
    return total


@triton.constexpr_function
def num_terms(format: str, num_in: int) -> int:
    """Terms of a product: one for each span, and one for its minima."""
    f = QUANT_PLANES[format]
    return num_in // f.span * (1 if f.minimum == "none" else 2)


@triton.constexpr_function
def spans_of_part(format: str, num_in: int) -> int:
    """Spans of a part where a tile is shared by several warps: a power of two that divides their number."""
    count = 1
    spans = num_in // QUANT_PLANES[format].span
    while count * 2 <= spans_at_once(format, num_in, 1) and spans % (count * 2) == 0:
        count *= 2
    return count


def num_parts(format: str, num_in: int) -> int:
    """Warps that share a tile."""
    return num_in // QUANT_PLANES[format].span // spans_of_part(format, num_in)


@triton.jit
def prefetch_part(planes, tile, part, FORMAT: tl.constexpr, K: tl.constexpr):
    """`prefetch` a part's share of the bytes of a tile, whose parts are all computed at once."""
    BYTES: tl.constexpr = tile_bytes(FORMAT, K)
    PARTS: tl.constexpr = K // fact(FORMAT, "span") // spans_of_part(FORMAT, K)
    SHARE: tl.constexpr = (BYTES + PARTS - 1) // PARTS
    prefetch(planes + tile.to(tl.int64) * BYTES + tl.minimum(part * SHARE, BYTES - SHARE), SHARE)


@triton.jit
def store_terms(
    terms, terms_at, stride, address, grid, codes, scales, rows, part, FORMAT: tl.constexpr, K: tl.constexpr
):
    """Store the terms of a part of a tile's product, for whoever adds them up: `ordered_sum`.

    Args:
        terms: float32; `terms_at` `[R, 4, 4]` is where the first of all terms of the outputs lies, `stride`
            the way from one to the next.
        part: which one, below `num_parts`.
        address, grid, codes, scales, rows: of `tile_product`.
    """
    tile = tl.multiple_of(address.to(tl.pointer_type(tl.uint8)), 64)
    SPANS: tl.constexpr = spans_of_part(FORMAT, K)
    KINDS: tl.constexpr = 1 if fact(FORMAT, "minimum") == "none" else 2
    row_at = rows.to(tl.int64) * (K // 4)
    scale_at = rows.to(tl.int64) * ((K + _BLOCK - 1) // _BLOCK)
    first = part * SPANS
    integers, sums = _span_integers(tile, grid, codes, row_at, first, FORMAT, K, SPANS)
    for i in tl.static_range(SPANS):
        at = terms_at + (first + i) * KINDS * stride
        term = _span_term(tile, integers, scales, scale_at, first, i, FORMAT, K, SPANS, "scale")
        tl.store(terms + at, term)
        if KINDS == 2:
            term = _span_term(tile, sums, scales, scale_at, first, i, FORMAT, K, SPANS, "minimum")
            tl.store(terms + at + stride, term)


@triton.jit
def ordered_sum(terms, at, stride, mask, COUNT: tl.constexpr, SOME: tl.constexpr = 16):
    """The sum of `COUNT` terms in their order: float32 `[n]`.

    Args:
        terms: float32; `at` `[n]` is where an output's first term lies, `stride` the way to the next.
        mask: `[n]`.
        SOME: terms that are loaded at once, a power of two.
    """
    total = tl.zeros(at.shape, tl.float32)
    t = tl.arange(0, SOME)[:, None]
    for first in range(0, COUNT, SOME):
        there = mask[None, :] & (first + t < COUNT)
        some = tl.load(terms + at[None, :] + (first + t) * stride, mask=there, other=0.0)
        # Picking integers changes no bit of them, and adding 0.0 none of a sum that began with it.
        bits = some.to(tl.int32, bitcast=True)
        for i in tl.static_range(SOME):
            total += tl.sum(tl.where(t == i, bits, 0), axis=0).to(tl.float32, bitcast=True)
    return total


@triton.jit
def tile_product(address, grid, codes, scales, rows, FORMAT: tl.constexpr, K: tl.constexpr):
    """The product of a tile with some rows of activations, by one warp.

    Args:
        address: int64, of the tile, aligned to 64.
        grid: int32, the codebook (`quantized_matmul.codebook`), or any pointer for formats without.
        codes: int32, four codes to a word, `[rows, K / 4]`.
        scales: float32 `[rows, ceil(K / 128)]`.
        rows: integers `[R]`.

    Returns:
        float32 `[R, 4, 4]`.
    """
    tile = tl.multiple_of(address.to(tl.pointer_type(tl.uint8)), 64)
    SPANS: tl.constexpr = K // fact(FORMAT, "span")
    SOME: tl.constexpr = spans_at_once(FORMAT, K, rows.shape[0])
    row_at = rows.to(tl.int64) * (K // 4)
    scale_at = rows.to(tl.int64) * ((K + _BLOCK - 1) // _BLOCK)
    total = tl.zeros((rows.shape[0], 4, 4), tl.float32)
    for first in range(0, SPANS - SPANS % SOME, SOME):
        total = _add_spans(total, tile, grid, codes, scales, row_at, scale_at, first, FORMAT, K, SOME)
    LEFT: tl.constexpr = SPANS % SOME
    for bit in tl.static_range(5, -1, -1):
        if LEFT & (1 << bit):
            START: tl.constexpr = SPANS - LEFT % (2 << bit)
            total = _add_spans(total, tile, grid, codes, scales, row_at, scale_at, START, FORMAT, K, 1 << bit)
    return total
