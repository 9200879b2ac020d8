"""Planes into integers, for the kernels (docs/NUMERICS.md, "The planes"): any shape, any quant format.

`tile` is the address of a tile of 16 rows as a pointer, or a tensor of them, `row` a row of the tile, and
everything broadcasts: the kernels decide which thread decodes what.
"""

import triton
import triton.language as tl

from strata.ops.triton.intrinsics import perm
from strata.ops.triton.planes import TILE_ROWS, fact, plane_offset

_ROWS = tl.constexpr(TILE_ROWS)
ONES = tl.constexpr(0x01010101)


def _word(values: tuple[int, ...]) -> tl.constexpr:
    return tl.constexpr(int.from_bytes(bytes(v & 255 for v in values), "little", signed=True))


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_IQ4_0, _IQ4_1, _IQ4_2, _IQ4_3 = (_word(_IQ4[i : i + 4]) for i in range(0, 16, 4))
_E2M1_0, _E2M1_1, _E2M1_2, _E2M1_3 = (_word(_E2M1[i : i + 4]) for i in range(0, 16, 4))


@triton.jit
def constant(VALUE: tl.constexpr):
    return tl.full((), VALUE, tl.int32)


@triton.jit
def _lookup(codes, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr):
    """Four table values for the four codes 0 to 15 in the bytes of a word."""
    picks = codes & 0x07070707
    low = perm(constant(T1), constant(T0), picks)
    high = perm(constant(T3), constant(T2), picks)
    return low ^ ((low ^ high) & (((codes >> 3) & ONES) * 255))


@triton.jit
def _negate(word, negative):
    """`word`'s bytes, each 1 to 127, negated where the byte of `negative` is 1, not 0."""
    return (word ^ (negative * 255)) + negative


@triton.jit
def _plane(tile, OFFSET: tl.constexpr, TYPE: tl.constexpr):
    return (tile + OFFSET).to(tl.pointer_type(TYPE))


@triton.jit
def less(word, OFFSET: tl.constexpr):
    """`word`'s bytes, each below 128, less `OFFSET`, as signed bytes."""
    TOPS: tl.constexpr = -0x7F7F7F80
    return word if OFFSET == 0 else ((word | TOPS) - ONES * OFFSET) ^ TOPS


@triton.jit
def stored_scales(tile, span, row, FORMAT: tl.constexpr, K: tl.constexpr, PLANE: tl.constexpr):
    """Float scales or float minima (`PLANE`) at a span as they are stored: float16 or uint8."""
    at = span * fact(FORMAT, "span") // fact(FORMAT, "scale_block") * _ROWS + row
    TYPE: tl.constexpr = tl.float16 if fact(FORMAT, "scale") == "f16" else tl.uint8
    return tl.load(_plane(tile, plane_offset(FORMAT, K, PLANE), TYPE) + at)


@triton.jit
def decode_scales(stored, FORMAT: tl.constexpr):
    """Stored scales as float32."""
    KIND: tl.constexpr = fact(FORMAT, "scale")
    if KIND == "f16":
        value = stored.to(tl.float32) * fact(FORMAT, "scale_factor")
    elif KIND == "e8m0":  # 2 ** (byte - 128), subnormal for 0 and 1
        byte = stored.to(tl.int32)
        bits = tl.where(byte < 2, 0x00200000 << byte, (byte - 1) << 23)
        value = bits.to(tl.float32, bitcast=True)
    else:  # E4M3 without its sign, halved; ggml reads 0x7F as 0
        byte = stored.to(tl.int32)
        exponent = (byte >> 3) & 15
        normal = ((exponent + 119) << 23 | (byte & 7) << 20).to(tl.float32, bitcast=True)
        value = tl.where(exponent == 0, (byte & 7).to(tl.float32) * 0.0009765625, normal)
        value = tl.where(byte == 0x7F, 0.0, value)
    return value


@triton.jit
def float_scales(tile, span, row, FORMAT: tl.constexpr, K: tl.constexpr, PLANE: tl.constexpr):
    """Float scales or float minima (`PLANE`) at a span, as float32."""
    return decode_scales(stored_scales(tile, span, row, FORMAT, K, PLANE), FORMAT)


@triton.jit
def low_words(tile, word, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """Words of the plane of low codes."""
    return tl.load(_plane(tile, plane_offset(FORMAT, K, "low"), tl.int32) + (word * _ROWS + row))


@triton.jit
def high_words(tile, at, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """Words of the plane of high codes, or of signs."""
    return tl.load(_plane(tile, plane_offset(FORMAT, K, "high"), tl.int32) + (at * _ROWS + row))


@triton.jit
def plain_words(tile, word, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """Words of the plane of low codes, and what the plane of high codes has for them, shifted down."""
    LOW: tl.constexpr = fact(FORMAT, "low")
    HIGH: tl.constexpr = fact(FORMAT, "high")
    low = low_words(tile, word, row, FORMAT, K)
    high = low
    if HIGH:
        SHARE: tl.constexpr = LOW // HIGH  # low words for which there is one high word
        high = high_words(tile, word // SHARE, row, FORMAT, K) >> (word % SHARE * (8 // LOW * HIGH))
    return low, high


@triton.jit
def plain_codes(low, high, GROUP: tl.constexpr, FORMAT: tl.constexpr):
    """Codes 4 * GROUP to 4 * GROUP + 3 of each low word, in bytes, less no offset."""
    LOW: tl.constexpr = fact(FORMAT, "low")
    HIGH: tl.constexpr = fact(FORMAT, "high")
    VALUES: tl.constexpr = fact(FORMAT, "values")
    codes = low
    if LOW < 8:
        codes = (low >> (LOW * GROUP)) & (ONES * ((1 << LOW) - 1))
    if HIGH:
        codes |= ((high >> (HIGH * GROUP)) & (ONES * ((1 << HIGH) - 1))) << LOW
    if VALUES == "iq4":
        codes = _lookup(codes, _IQ4_0, _IQ4_1, _IQ4_2, _IQ4_3)
    elif VALUES == "e2m1":
        codes = _lookup(codes, _E2M1_0, _E2M1_1, _E2M1_2, _E2M1_3)
    return codes


@triton.jit
def plain_subs(tile, sub_block, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """Integer sub-scales and sub-minima (else sub-scales again), int32, of formats that have them."""
    SUB: tl.constexpr = fact(FORMAT, "sub")
    at = sub_block * _ROWS + row
    stored = tl.load((tile + plane_offset(FORMAT, K, "sub")) + at)
    factor = stored.to(tl.int8, bitcast=True).to(tl.int32) if SUB == "i8" else stored.to(tl.int32)
    minima = factor
    if SUB == "nibbles":
        minima = factor >> 4
        factor = factor & 15
    elif fact(FORMAT, "minimum") == "sub":
        minima = tl.load((tile + plane_offset(FORMAT, K, "sub_minimum")) + at).to(tl.int32)
    return factor, minima


@triton.jit
def grid_extras(tile, step, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """What a step of 32 weights has beside its indices, int32: bits above their bytes, IQ1's 16 of extras."""
    EXTRA: tl.constexpr = fact(FORMAT, "extra")
    OFFSET: tl.constexpr = plane_offset(FORMAT, K, "extra")
    extra = (step + row) * 0
    if EXTRA == 4:
        byte = tl.load((tile + OFFSET) + (step // 2 * _ROWS + row)).to(tl.int32)
        extra = byte >> (step % 2 * 4)
    elif EXTRA == 8:
        extra = tl.load((tile + OFFSET) + (step * _ROWS + row)).to(tl.int32)
    elif EXTRA == 16:
        extra = tl.load(_plane(tile, OFFSET, tl.uint16) + (step * _ROWS + row)).to(tl.int32)
    return extra


@triton.jit
def grid_signs(tile, step, row, extra, FORMAT: tl.constexpr, K: tl.constexpr):
    """The word of signs of a step, of formats that have them."""
    signs = extra
    if fact(FORMAT, "extra") != 16:
        signs = high_words(tile, step, row, FORMAT, K)
    return signs


@triton.jit
def _grid_index(tile, step, place, row, extra, FORMAT: tl.constexpr, K: tl.constexpr):
    """Index `place` of a step."""
    WEIGHTS: tl.constexpr = fact(FORMAT, "index_weights")
    EXTRA: tl.constexpr = fact(FORMAT, "extra")
    index = step * (32 // WEIGHTS) + place
    entry = tl.load((tile + plane_offset(FORMAT, K, "low")) + (index * _ROWS + row)).to(tl.int32)
    if FORMAT == "IQ1_S":
        entry |= (((extra >> (place * 3)) & 7) | ((extra >> 12) & 8)) << 8
    elif EXTRA == 16:
        entry |= ((extra >> (place * 4)) & 15) << 8
    elif EXTRA == 8 and WEIGHTS == 8:
        entry |= ((extra >> (place * 2)) & 3) << 8
    elif EXTRA:
        entry |= ((extra >> place) & 1) << 8
    return entry


@triton.jit
def grid_word(tile, grid, step, place, half, row, extra, signs, FORMAT: tl.constexpr, K: tl.constexpr):
    """`grid_entry`'s first (`half` 0) or last (1) four weights."""
    entry = _grid_index(tile, step, place, row, extra, FORMAT, K)
    if fact(FORMAT, "extra") == 16:
        word = (tl.load(grid + entry) >> (half * 4)) & 0x0F0F0F0F
    else:
        WORDS: tl.constexpr = fact(FORMAT, "index_weights") // 4
        negative = (signs >> (place * WORDS + half)) & ONES
        word = _negate(tl.load(grid + (entry * WORDS + half)), negative)
    return word


@triton.jit
def grid_entry(tile, grid, step, place, row, extra, signs, FORMAT: tl.constexpr, K: tl.constexpr):
    """The 4 or 8 weights that index `place` of a step names.

    Returns:
        int32 words of the first and the last four weights (IQ3: the same), in bytes, IQ1's as half of
        weight + 9.
    """
    entry = _grid_index(tile, step, place, row, extra, FORMAT, K)
    if fact(FORMAT, "extra") == 16:
        nibbles = tl.load(grid + entry)
        first = nibbles & 0x0F0F0F0F
        last = (nibbles >> 4) & 0x0F0F0F0F
    else:
        WORDS: tl.constexpr = fact(FORMAT, "index_weights") // 4
        signs = signs >> (place * WORDS)
        first = _negate(tl.load(grid + entry * WORDS), signs & ONES)
        last = first
        if WORDS == 2:
            last = _negate(tl.load(grid + (entry * WORDS + 1)), (signs >> 1) & ONES)
    return first, last


@triton.jit
def grid_words(tile, grid, step, place, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """`grid_entry` of one index, and the extra bits, for `grid_subs`."""
    extra = grid_extras(tile, step, row, FORMAT, K)
    signs = grid_signs(tile, step, row, extra, FORMAT, K)
    first, last = grid_entry(tile, grid, step, place, row, extra, signs, FORMAT, K)
    return first, last, extra


@triton.jit
def grid_subs(tile, step, half, row, extra, FORMAT: tl.constexpr, K: tl.constexpr):
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
