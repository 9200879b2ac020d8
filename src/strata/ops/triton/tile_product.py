"""Products of a few rows of int8 activations with a tile of planes: docs/NUMERICS.md, "The product".

A warp owns a tile of 16 rows. A lane has four rows, so that loads are 128 bits wide, of one span, or of some
of its units (sub-blocks where a format has them), and goes through a unit's words by itself: few integers
cross lanes (exactly), floats never do. For Triton to see it so, the rows of a tile are two axes of four, and
everything that is loaded has all axes,

    [R rows of activations, units, spans, 4, 4],

activations too, of which four lanes load the same: a load of another shape would bring its own layout along.
"""

import triton
import triton.language as tl

from strata.formats.quants.planes import QUANT_PLANES
from strata.ops.triton.capability import loads_together
from strata.ops.triton.decode import (
    ONES,
    constant,
    decode_scales,
    grid_entry,
    grid_extras,
    grid_signs,
    grid_subs,
    high_words,
    low_words,
    plain_codes,
    plain_subs,
    stored_scales,
)
from strata.ops.triton.dependent_launch import prefetch, step_launch
from strata.ops.triton.intrinsics import dot4
from strata.ops.triton.planes import ACTIVATION_BLOCK, TILE_ROWS, fact, tile_bytes

_BLOCK = tl.constexpr(ACTIVATION_BLOCK)
# Sums of a program that adds up terms, one in a lane: its time is that of its instructions.
SUMS = 32


def one_warp() -> dict[str, object]:
    """Options of a kernel that multiplies tiles, a warp each."""
    return {"num_warps": 1, **loads_together(), **step_launch()}


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
def rows_of_tile(RANK: tl.constexpr):
    """0 to 15 as int32 `[..., 4, 4]`."""
    i = tl.arange(0, 4)
    rows = i[:, None] * 4 + i[None, :]
    for _ in tl.static_range(RANK - 2):
        rows = rows[None]
    return rows


@triton.jit
def _unit(first, UNITS: tl.constexpr, SPANS: tl.constexpr):
    """Units of `SPANS` spans from `first` on, of `UNITS` each: int32 `[1, UNITS, SPANS, 1, 1]`.

    Neighbours are swapped, else Triton might see that their activations are neighbours, and have one lane
    load those of four.
    """
    u = tl.arange(0, UNITS)
    if UNITS > 1:
        u = u ^ 1
    span = first + tl.arange(0, SPANS)[None, None, :, None, None]
    return span * UNITS + u[None, :, None, None, None]


@triton.jit
def _activation(codes, row_at, word):
    """Four codes each: int32 `[R, units, spans, 4, 1]` at `word` `[1, units, spans, 1, 1]` of each row."""
    lanes = tl.zeros((1, 1, 1, 4, 1), tl.int32)
    return tl.load(codes + row_at[:, None, None, None, None] + (word + lanes))


@triton.constexpr_function
def _plain_units(format: str, spans: int) -> int:
    """Units of a span: its sub-blocks, or as many as fill eight lanes."""
    f = QUANT_PLANES[format]
    if f.sub != "none":
        return f.span // f.sub_block
    return max(1, min(f.span_words, 8 // spans))


@triton.jit
def _plain_lanes(tile, codes, row_at, first, FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr):
    """The integer sums of units, of formats whose codes stand in words.

    Returns:
        int32 `[R, units, SPANS, 4, 4]`, and of the minima's sums, or of activation codes `[..., 4, 1]`.
    """
    LOW: tl.constexpr = fact(FORMAT, "low")
    HIGH: tl.constexpr = fact(FORMAT, "high")
    OFFSET: tl.constexpr = fact(FORMAT, "offset")
    GROUPS: tl.constexpr = 8 // LOW
    UNITS: tl.constexpr = _plain_units(FORMAT, SPANS)
    WORDS: tl.constexpr = fact(FORMAT, "span_words") // UNITS
    SHARE: tl.constexpr = LOW // HIGH if HIGH else 1  # low words for which there is one high word
    row = rows_of_tile(5)
    unit = _unit(first, UNITS, SPANS)
    factor, minima = row, row
    if fact(FORMAT, "sub") != "none":
        factor, minima = plain_subs(tile, unit, row, FORMAT, K)
    lanes = tl.zeros((row_at.shape[0], UNITS, SPANS, 4, 4), tl.int32)
    sums = tl.zeros((row_at.shape[0], UNITS, SPANS, 4, 1), tl.int32)
    high = lanes
    for w in tl.static_range(WORDS):
        word = unit * WORDS + w
        low = low_words(tile, word, row, FORMAT, K)
        codes_high = low
        if HIGH and WORDS % SHARE == 0:
            if w % SHARE == 0:
                high = high_words(tile, unit * (WORDS // SHARE) + w // SHARE, row, FORMAT, K)
            codes_high = high >> (w % SHARE * GROUPS * HIGH)
        elif HIGH:
            high = high_words(tile, word // SHARE, row, FORMAT, K)
            codes_high = high >> (word % SHARE * (GROUPS * HIGH))
        for i in tl.static_range(GROUPS):
            a = _activation(codes, row_at, word * GROUPS + i)
            lanes = dot4(plain_codes(low, codes_high, i, FORMAT), a, lanes)
            sums = dot4(constant(ONES), a, sums)
    if OFFSET:
        lanes -= sums * OFFSET
    if fact(FORMAT, "sub") != "none":
        lanes = lanes * factor
        sums = sums * minima
    return lanes, sums


@triton.jit
def _grid_lanes(tile, grid, codes, row_at, first, FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr):
    """The integer sums of sub-blocks of codebook formats: int32 `[R, sub-blocks, SPANS, 4, 4]`."""
    WEIGHTS: tl.constexpr = fact(FORMAT, "index_weights")
    EXTRA: tl.constexpr = fact(FORMAT, "extra")
    HALVES: tl.constexpr = 32 // fact(FORMAT, "sub_block")  # sub-blocks of a step
    UNITS: tl.constexpr = fact(FORMAT, "span") // fact(FORMAT, "sub_block")
    INDICES: tl.constexpr = fact(FORMAT, "sub_block") // WEIGHTS
    row = rows_of_tile(5)
    unit = _unit(first, UNITS, SPANS)
    step, half = unit, unit & 0
    if HALVES == 2:
        step, half = unit >> 1, unit & 1
    extra = grid_extras(tile, step, row, FORMAT, K)
    signs = grid_signs(tile, step, row, extra, FORMAT, K)
    factor = grid_subs(tile, step, half, row, extra, FORMAT, K)
    lanes = tl.zeros((row_at.shape[0], UNITS, SPANS, 4, 4), tl.int32)
    sums = tl.zeros((row_at.shape[0], UNITS, SPANS, 4, 1), tl.int32)
    for i in tl.static_range(INDICES):
        place = half * INDICES + i if HALVES == 2 else i
        words, more = grid_entry(tile, grid, step, place, row, extra, signs, FORMAT, K)
        word = (unit * INDICES + i) * (WEIGHTS // 4)
        a = _activation(codes, row_at, word)
        lanes = dot4(words, a, lanes)
        if EXTRA == 16:
            sums = dot4(constant(ONES), a, sums)
        if WEIGHTS == 8:
            a = _activation(codes, row_at, word + 1)
            lanes = dot4(more, a, lanes)
            if EXTRA == 16:
                sums = dot4(constant(ONES), a, sums)
    if EXTRA == 16:
        lanes = lanes * 2 - sums * 9
    return lanes * factor


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
    integers = tl.sum(lanes, axis=1)
    if fact(FORMAT, "minimum") != "none":
        sums = tl.sum(sums, axis=1)
    return integers, sums


@triton.jit
def _x_scales(scales, scale_at, first, FORMAT: tl.constexpr, SPANS: tl.constexpr):
    """Scales of the activations of `SPANS` spans from `first` on: float32 `[R, SPANS, 1, 1]`."""
    s = tl.arange(0, SPANS)[None, :, None, None]
    of_spans = tl.zeros((scale_at.shape[0], SPANS, 1, 1), tl.float32)
    for i in tl.static_range(SPANS):
        one = tl.load(scales + scale_at + (first + i) * fact(FORMAT, "span") // _BLOCK)
        of_spans = tl.where(s == i, one[:, None, None, None], of_spans)
    return of_spans


@triton.jit
def _span_terms(
    tile, grid, codes, scales, row_at, scale_at, first,
    FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """What `SPANS` spans of a tile from `first` on add to a product, and their minima (else the same again).

    All that is read is asked for before anything is multiplied or stored: a card waits for its memory once.
    Scales are decoded after that: Triton moves them to where they are needed as soon as they are floats.

    Returns:
        float32 `[R, SPANS, 4, 4]` twice.
    """
    MINIMUM: tl.constexpr = fact(FORMAT, "minimum")
    span = first + tl.arange(0, SPANS)[None, :, None, None]
    stored = stored_scales(tile, span, rows_of_tile(4), FORMAT, K, "scale")
    least = stored
    if MINIMUM != "none":
        least = stored_scales(tile, span, rows_of_tile(4), FORMAT, K, "minimum")
    x_scale = _x_scales(scales, scale_at, first, FORMAT, SPANS)
    integers, sums = _span_integers(tile, grid, codes, row_at, first, FORMAT, K, SPANS)
    terms = integers.to(tl.float32) * decode_scales(stored, FORMAT) * x_scale
    minima = terms
    if MINIMUM != "none":
        minima = sums.to(tl.float32) * decode_scales(least, FORMAT) * x_scale
        if MINIMUM == "sub":
            minima = -minima
    return terms, minima


@triton.jit
def _add_spans(
    total, tile, grid, codes, scales, row_at, scale_at, first,
    FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """`total` `[R, 4, 4]` plus the terms of `SPANS` spans of a tile from `first` on, in order."""
    terms, minima = _span_terms(tile, grid, codes, scales, row_at, scale_at, first, FORMAT, K, SPANS)
    # Picking integers changes no bit of them.
    terms, minima = terms.to(tl.int32, bitcast=True), minima.to(tl.int32, bitcast=True)
    s = tl.arange(0, SPANS)[None, :, None, None]
    for i in tl.static_range(SPANS):
        total += tl.sum(tl.where(s == i, terms, 0), axis=1).to(tl.float32, bitcast=True)
        if fact(FORMAT, "minimum") != "none":
            total += tl.sum(tl.where(s == i, minima, 0), axis=1).to(tl.float32, bitcast=True)
    return total


@triton.constexpr_function
def num_terms(format: str, num_in: int) -> int:
    """Terms of a product: one for each span, and one for its minima."""
    f = QUANT_PLANES[format]
    return num_in // f.span * (1 if f.minimum == "none" else 2)


@triton.constexpr_function
def spans_of_part(format: str, num_in: int) -> int:
    """Spans of a part where a tile is shared by several warps: a power of two that divides their number.

    About 2 KiB: half as many warps with twice as much, or the reverse, took longer on an H200.
    """
    f = QUANT_PLANES[format]
    span_bytes = f.span * (f.low + f.high) * TILE_ROWS // 8
    count, spans = 1, num_in // f.span
    while count * 2 * span_bytes <= 2560 and spans % (count * 2) == 0:
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
    of_spans, minima = _span_terms(tile, grid, codes, scales, row_at, scale_at, first, FORMAT, K, SPANS)
    span = first + tl.arange(0, SPANS)[None, :, None, None]
    at = terms_at[:, None] + span * KINDS * stride
    tl.store(terms + at, of_spans)
    if KINDS == 2:
        tl.store(terms + at + stride, minima)


@triton.jit
def ordered_sum(terms, at, stride, mask, COUNT: tl.constexpr, SOME: tl.constexpr = 32):
    """The sum of `COUNT` terms in their order: float32 `[n]`.

    Args:
        terms: float32; `at` `[n]` is where an output's first term lies, `stride` the way to the next.
        mask: `[n]`.
        SOME: terms that are loaded at once.
    """
    total = tl.zeros(at.shape, tl.float32)
    for first in range(0, COUNT - COUNT % SOME, SOME):
        for i in tl.static_range(SOME):
            total += tl.load(terms + at + (first + i) * stride, mask=mask, other=0.0)
    for i in tl.static_range(COUNT % SOME):
        total += tl.load(terms + at + (COUNT - COUNT % SOME + i) * stride, mask=mask, other=0.0)
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
