"""Products of int8 activations with tiles of planes, for the kernels: docs/NUMERICS.md, "The product".

A warp owns a tile of 16 rows. Its lanes lie along the words of a span, four rows in each lane, so that loads
are 128 bits wide and neighbours; integers cross lanes (exactly), floats never do. For Triton to see it so,
the rows of a tile are two axes of four, and everything that is loaded has all axes,

    [R rows of activations, spans, words, 4, 4],

activations too, of which four lanes load the same: a load of another shape would bring its own layout along.
"""

import triton
import triton.language as tl

from strata.formats.quants.planes import QUANT_PLANES
from strata.ops.triton.intrinsics import dot4, perm
from strata.ops.triton.planes import ACTIVATION_BLOCK, TILE_ROWS, fact, plane_offset

_ROWS = tl.constexpr(TILE_ROWS)
_BLOCK = tl.constexpr(ACTIVATION_BLOCK)
_ONES = tl.constexpr(0x01010101)


def _word(values: tuple[int, ...]) -> tl.constexpr:
    return tl.constexpr(int.from_bytes(bytes(v & 255 for v in values), "little", signed=True))


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_IQ4_0, _IQ4_1, _IQ4_2, _IQ4_3 = (_word(_IQ4[i : i + 4]) for i in range(0, 16, 4))
_E2M1_0, _E2M1_1, _E2M1_2, _E2M1_3 = (_word(_E2M1[i : i + 4]) for i in range(0, 16, 4))


@triton.constexpr_function
def spans_at_once(format: str, num_in: int, rows: int) -> int:
    """Spans of a tile that are loaded together: about 4 KiB in flight, less where registers would spill."""
    f = QUANT_PLANES[format]
    span_bytes = f.span * (f.low + f.high) * TILE_ROWS // 8
    budget, most = (5120, 4 if f.index_weights else 16) if rows < 4 else (2560, 2 if f.index_weights else 8)
    count = 1
    while count * 2 <= most and count * 2 * span_bytes <= budget and count * 2 <= num_in // f.span:
        count *= 2
    return count


@triton.jit
def _constant(VALUE: tl.constexpr):
    return tl.full((), VALUE, tl.int32)


@triton.jit
def _lookup(codes, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr):
    """Four table values for the four codes 0 to 15 in the bytes of a word."""
    picks = codes & 0x07070707
    low = perm(_constant(T1), _constant(T0), picks)
    high = perm(_constant(T3), _constant(T2), picks)
    return low ^ ((low ^ high) & (((codes >> 3) & _ONES) * 255))


@triton.jit
def _negate(word, negative):
    """`word`'s bytes, each 1 to 127, negated where the byte of `negative` is 1, not 0."""
    return (word ^ (negative * 255)) + negative


@triton.jit
def _plane(tile, OFFSET: tl.constexpr, TYPE: tl.constexpr):
    return (tile + OFFSET).to(tl.pointer_type(TYPE))


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
def span_scales(tile, span, FORMAT: tl.constexpr, K: tl.constexpr, PLANE: tl.constexpr):
    """Float scales or float minima of the 16 rows at a span: float32 `[4, 4]`."""
    SPAN: tl.constexpr = fact(FORMAT, "span")
    BLOCK: tl.constexpr = fact(FORMAT, "scale_block")
    KIND: tl.constexpr = fact(FORMAT, "scale")
    FACTOR: tl.constexpr = fact(FORMAT, "scale_factor")
    at = span * SPAN // BLOCK * _ROWS + rows_of_tile(2)
    OFFSET: tl.constexpr = plane_offset(FORMAT, K, PLANE)
    if KIND == "f16":
        stored = tl.load(_plane(tile, OFFSET, tl.float16) + at)
        return stored.to(tl.float32) * FACTOR
    byte = tl.load((tile + OFFSET) + at).to(tl.int32)
    if KIND == "e8m0":  # 2 ** (byte - 128), subnormal for 0 and 1
        bits = tl.where(byte < 2, 0x00200000 << byte, (byte - 1) << 23)
        return bits.to(tl.float32, bitcast=True)
    # E4M3 without its sign, halved; ggml reads 0x7F as 0
    exponent = (byte >> 3) & 15
    normal = ((exponent + 119) << 23 | (byte & 7) << 20).to(tl.float32, bitcast=True)
    value = tl.where(exponent == 0, (byte & 7).to(tl.float32) * 0.0009765625, normal)
    return tl.where(byte == 0x7F, 0.0, value)


@triton.jit
def _activation(codes, row_at, word):
    """Four codes each: int32 `[R, spans, words, 4, 1]` at `word` `[1, spans, words, 1, 1]` of each row."""
    lanes = tl.zeros((1, 1, 1, 4, 1), tl.int32)
    return tl.load(codes + row_at[:, None, None, None, None] + (word + lanes))


@triton.jit
def _plain_codes(low, high, GROUP: tl.constexpr, FORMAT: tl.constexpr):
    """Codes 4 * GROUP to 4 * GROUP + 3 of each low word, in bytes; `high` begins with their upper bits."""
    LOW: tl.constexpr = fact(FORMAT, "low")
    HIGH: tl.constexpr = fact(FORMAT, "high")
    VALUES: tl.constexpr = fact(FORMAT, "values")
    codes = low
    if LOW < 8:
        codes = (low >> (LOW * GROUP)) & (_ONES * ((1 << LOW) - 1))
    if HIGH:
        codes |= ((high >> (HIGH * GROUP)) & (_ONES * ((1 << HIGH) - 1))) << LOW
    if VALUES == "iq4":
        codes = _lookup(codes, _IQ4_0, _IQ4_1, _IQ4_2, _IQ4_3)
    elif VALUES == "e2m1":
        codes = _lookup(codes, _E2M1_0, _E2M1_1, _E2M1_2, _E2M1_3)
    return codes


@triton.jit
def _plain_lanes(tile, codes, row_at, first, FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr):
    """Each lane's part of the integer sums of formats whose codes stand in words.

    Returns:
        int32 `[R, SPANS, words, 4, 4]`, and of the minima's sums, or of activation codes `[..., 4, 1]`.
    """
    LOW: tl.constexpr = fact(FORMAT, "low")
    HIGH: tl.constexpr = fact(FORMAT, "high")
    OFFSET: tl.constexpr = fact(FORMAT, "offset")
    SUB: tl.constexpr = fact(FORMAT, "sub")
    WORDS: tl.constexpr = fact(FORMAT, "span_words")
    GROUPS: tl.constexpr = 8 // LOW
    row = rows_of_tile(5)
    span = first + tl.arange(0, SPANS)[None, :, None, None, None]
    word = span * WORDS + _lanes(WORDS)
    low = tl.load(_plane(tile, plane_offset(FORMAT, K, "low"), tl.int32) + (word * _ROWS + row))
    high = low
    if HIGH:
        SHARE: tl.constexpr = LOW // HIGH  # low words for which there is one high word
        at = word // SHARE * _ROWS + row
        high = tl.load(_plane(tile, plane_offset(FORMAT, K, "high"), tl.int32) + at)
        high = high >> (word % SHARE * (GROUPS * HIGH))
    a = _activation(codes, row_at, word * GROUPS)
    sums = dot4(_constant(_ONES), a, a & 0)
    lanes = dot4(_plain_codes(low, high, 0, FORMAT), a, tl.zeros_like(low))
    for i in tl.static_range(1, GROUPS):
        a = _activation(codes, row_at, word * GROUPS + i)
        lanes = dot4(_plain_codes(low, high, i, FORMAT), a, lanes)
        sums = dot4(_constant(_ONES), a, sums)
    if OFFSET:
        lanes -= sums * OFFSET
    if SUB != "none":
        sub_block = word * (32 // LOW) // fact(FORMAT, "sub_block")
        at = sub_block * _ROWS + row
        sub = tl.load((tile + plane_offset(FORMAT, K, "sub")) + at)
        factor = sub.to(tl.int32)
        if SUB == "i8":
            factor = sub.to(tl.int8, bitcast=True).to(tl.int32)
        if SUB == "nibbles":
            sums = sums * (factor >> 4)
            factor = factor & 15
        elif fact(FORMAT, "minimum") == "sub":
            minima = tl.load((tile + plane_offset(FORMAT, K, "sub_minimum")) + at)
            sums = sums * minima.to(tl.int32)
        lanes = lanes * factor
    return lanes, sums


@triton.jit
def _grid_upper(tile, step, place, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """Bits of codebook indices above their byte, and IQ1's 16 bits of extras."""
    EXTRA: tl.constexpr = fact(FORMAT, "extra")
    OFFSET: tl.constexpr = plane_offset(FORMAT, K, "extra")
    extra = (step + row) * 0
    upper = extra
    if EXTRA == 4:
        byte = tl.load((tile + OFFSET) + (step // 2 * _ROWS + row)).to(tl.int32)
        upper = (byte >> (step % 2 * 4 + place)) & 1
    elif EXTRA == 8:
        byte = tl.load((tile + OFFSET) + (step * _ROWS + row)).to(tl.int32)
        upper = (byte >> place) & 1
        if fact(FORMAT, "index_weights") == 8:
            upper = (byte >> (place * 2)) & 3
    elif EXTRA == 16:
        pointer = _plane(tile, OFFSET, tl.uint16)
        extra = tl.load(pointer + (step * _ROWS + row)).to(tl.int32)
        upper = (extra >> (place * 4)) & 15
        if FORMAT == "IQ1_S":
            upper = ((extra >> (place * 3)) & 7) | ((extra >> 12) & 8)
    return upper << 8, extra


@triton.jit
def _grid_sub(tile, step, half, row, extra, FORMAT: tl.constexpr, K: tl.constexpr):
    """Integer sub-scales, 2 s + 1."""
    SUB_BITS: tl.constexpr = fact(FORMAT, "sub_bits")
    pointer = tile + plane_offset(FORMAT, K, "sub")
    if SUB_BITS == 0:  # IQ1_S
        stored = (extra >> 12) & 7
    elif SUB_BITS == 4:
        byte = tl.load(pointer + (step // 2 * _ROWS + row)).to(tl.int32)
        stored = (byte >> (step % 2 * 4)) & 15
    else:
        byte = tl.load(pointer + (step * _ROWS + row)).to(tl.int32)
        stored = (byte >> (half * 4)) & 15
    return stored * 2 + 1


@triton.jit
def _grid_lanes(tile, grid, codes, row_at, first, FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr):
    """Each lane's part of the integer sums of codebook formats: int32 `[R, SPANS, indices, 4, 4]`."""
    WEIGHTS: tl.constexpr = fact(FORMAT, "index_weights")
    INDICES: tl.constexpr = fact(FORMAT, "span_words")
    PER_STEP: tl.constexpr = 32 // WEIGHTS
    WORDS: tl.constexpr = WEIGHTS // 4
    IQ1: tl.constexpr = fact(FORMAT, "extra") == 16
    row = rows_of_tile(5)
    span = first + tl.arange(0, SPANS)[None, :, None, None, None]
    place = _lanes(INDICES)
    index = span * INDICES + place
    step, place = index // PER_STEP, place % PER_STEP
    byte = tl.load((tile + plane_offset(FORMAT, K, "low")) + (index * _ROWS + row))
    upper, extra = _grid_upper(tile, step, place, row, FORMAT, K)
    entry = byte.to(tl.int32) | upper
    sub = _grid_sub(tile, step, place // (PER_STEP // 2), row, extra, FORMAT, K)
    a = _activation(codes, row_at, index * WORDS)
    if IQ1:  # nibble n of an entry stands for 2 n - 9
        b = _activation(codes, row_at, index * WORDS + 1)
        sums = dot4(_constant(_ONES), b, dot4(_constant(_ONES), a, a & 0))
        value = tl.load(grid + entry)
        lanes = dot4((value & 0x0F0F0F0F), a, tl.zeros_like(value))
        lanes = dot4(((value >> 4) & 0x0F0F0F0F), b, lanes)
        lanes = lanes * 2 - sums * 9
    else:
        at = step * _ROWS + row
        signs = tl.load(_plane(tile, plane_offset(FORMAT, K, "high"), tl.int32) + at) >> (place * WORDS)
        value = tl.load(grid + entry * WORDS)
        value = _negate(value, signs & _ONES)
        lanes = dot4(value, a, tl.zeros_like(value))
        if WORDS == 2:
            b = _activation(codes, row_at, index * WORDS + 1)
            value = _negate(tl.load(grid + entry * WORDS + 1), (signs >> 1) & _ONES)
            lanes = dot4(value, b, lanes)
    return lanes * sub


@triton.jit
def add_spans(
    total, tile, grid, codes, scales, row_at, scale_at, first,
    FORMAT: tl.constexpr, K: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """`total` `[R, 4, 4]` plus the terms of `SPANS` spans of a tile from `first` on, in order."""
    SPAN: tl.constexpr = fact(FORMAT, "span")
    MINIMUM: tl.constexpr = fact(FORMAT, "minimum")
    if fact(FORMAT, "values") == "grid":
        lanes = _grid_lanes(tile, grid, codes, row_at, first, FORMAT, K, SPANS)
        sums = lanes
    else:
        lanes, sums = _plain_lanes(tile, codes, row_at, first, FORMAT, K, SPANS)
    integers = tl.sum(lanes, axis=2)  # [R, SPANS, 4, 4]
    if MINIMUM != "none":
        sums = tl.sum(sums, axis=2)  # [R, SPANS, 4, 4 or 1]
    s = tl.arange(0, SPANS)[None, :, None, None]
    for i in tl.static_range(SPANS):
        x_scale = tl.load(scales + scale_at + (first + i) * SPAN // _BLOCK)[:, None, None]
        part = tl.sum(tl.where(s == i, integers, 0), axis=1)
        w_scale = span_scales(tile, first + i, FORMAT, K, "scale")[None, :, :]
        total = total + part.to(tl.float32) * w_scale * x_scale
        if MINIMUM != "none":
            part = tl.sum(tl.where(s == i, sums, 0), axis=1)
            least = span_scales(tile, first + i, FORMAT, K, "minimum")[None, :, :]
            term = part.to(tl.float32) * least * x_scale
            total = total - term if MINIMUM == "sub" else total + term
    return total


@triton.jit
def tile_product(address, grid, codes, scales, rows, FORMAT: tl.constexpr, K: tl.constexpr):
    """The product of a tile with some rows of activations.

    Args:
        address: int64, of the tile.
        grid: int32, the codebook (`codebook`), or any pointer for formats without.
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
        total = add_spans(total, tile, grid, codes, scales, row_at, scale_at, first, FORMAT, K, SOME)
    LEFT: tl.constexpr = SPANS % SOME
    for bit in tl.static_range(5, -1, -1):
        if LEFT & (1 << bit):
            START: tl.constexpr = SPANS - LEFT % (2 << bit)
            total = add_spans(total, tile, grid, codes, scales, row_at, scale_at, START, FORMAT, K, 1 << bit)
    return total
