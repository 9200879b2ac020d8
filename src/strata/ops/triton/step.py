"""32 weights of each row of a tile, out of their planes, for matrix instructions."""

import triton
import triton.language as tl

from strata.ops.triton.decode import (
    grid_signs,
    grid_subs,
    grid_word,
    grid_words,
    less,
    plain_codes,
    plain_subs,
    plain_words,
)
from strata.ops.triton.planes import fact


@triton.jit
def _pair(first, second):
    """int `[n, w]` twice -> `[n, 2 w]`, taking turns."""
    joined = tl.join(first, second)
    return tl.reshape(joined, (first.shape[0], first.shape[1] * 2))


@triton.jit
def step_words(tile, grid, step, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """The 32 weights of a step, and a codebook's extra bits.

    Returns:
        int32 `[n, 8]` for `tile` and `row` `[n, 1]`, of four weights each, and int32 that broadcasts.
    """
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
    return words, extra


@triton.jit
def step_word(tile, grid, step, word, row, extra, FORMAT: tl.constexpr, K: tl.constexpr):
    """Four neighbouring weights of a step, int32.

    A plane's word that holds several of them is loaded for each: to hand it out among lanes would cost more.

    Args:
        word: which, 0 to 7.
        extra: of `grid_extras`.
    """
    if fact(FORMAT, "values") == "grid":
        WORDS: tl.constexpr = fact(FORMAT, "index_weights") // 4
        signs = grid_signs(tile, step, row, extra, FORMAT, K)
        words = grid_word(tile, grid, step, word // WORDS, word % WORDS, row, extra, signs, FORMAT, K)
        if fact(FORMAT, "extra") == 16:
            words = less(words * 2, 9)
    else:
        LOW: tl.constexpr = fact(FORMAT, "low")
        SHARE: tl.constexpr = 8 // LOW
        low, high = plain_words(tile, step * LOW + word // SHARE, row, FORMAT, K)
        group = word % SHARE
        low >>= LOW * group
        high >>= fact(FORMAT, "high") * group
        words = less(plain_codes(low, high, 0, FORMAT), fact(FORMAT, "offset"))
    return words


@triton.jit
def _stack(first, second):
    """int8 `[w, n]` twice -> `[2 w, n]`, taking turns."""
    joined = tl.permute(tl.join(first, second), (0, 2, 1))
    return tl.reshape(joined, (first.shape[0] * 2, first.shape[1]))


@triton.jit
def bytes_of(words):
    """int32 `[w, n]` -> int8 `[4 w, n]`."""
    even = _stack(words.to(tl.int8), (words >> 16).to(tl.int8))
    return _stack(even, _stack((words >> 8).to(tl.int8), (words >> 24).to(tl.int8)))


@triton.jit
def sub_scales(tile, step, half, row, extra, FORMAT: tl.constexpr, K: tl.constexpr):
    """Integer sub-scales and sub-minima of half a step (of a step where they are the same), `[n, 1]`."""
    if fact(FORMAT, "values") == "grid":
        factor = grid_subs(tile, step, half, row, extra, FORMAT, K)
        return factor, factor
    else:
        sub_block = step * (32 // fact(FORMAT, "sub_block")) + half
        return plain_subs(tile, sub_block, row, FORMAT, K)
