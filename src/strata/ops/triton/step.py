"""32 weights of each row of a tile, out of their planes, for matrix instructions."""

import triton
import triton.language as tl

from strata.ops.triton.decode import grid_subs, grid_words, less, plain_codes, plain_subs, plain_words
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
def step_bytes(tile, grid, step, row, FORMAT: tl.constexpr, K: tl.constexpr):
    """The weights of `step_words` as int8 `[n, 32]`, and the extra bits."""
    words, extra = step_words(tile, grid, step, row, FORMAT, K)
    even = _pair(words.to(tl.int8), (words >> 16).to(tl.int8))
    return _pair(even, _pair((words >> 8).to(tl.int8), (words >> 24).to(tl.int8))), extra


@triton.jit
def sub_scales(tile, step, half, row, extra, FORMAT: tl.constexpr, K: tl.constexpr):
    """Integer sub-scales and sub-minima of half a step (of a step where they are the same), `[n, 1]`."""
    if fact(FORMAT, "values") == "grid":
        factor = grid_subs(tile, step, half, row, tl.max(extra, axis=1, keep_dims=True), FORMAT, K)
        return factor, factor
    else:
        sub_block = step * (32 // fact(FORMAT, "sub_block")) + half
        return plain_subs(tile, sub_block, row, FORMAT, K)


@triton.jit
def step_sums(
    a, weights, extra, tile, step, row, k, FORMAT: tl.constexpr, K: tl.constexpr, HALF: tl.constexpr
):
    """Integer sums of a step, sub-scales included, and of its minima: int32 `[rows, n]` (or what broadcasts).

    Args:
        a: int8 `[rows, 32]`.
        weights, extra: of `step_bytes`.
        k: 0 to 31, `[1, 32]`.
        HALF: of the step that counts; -1: both.
    """
    MINIMUM: tl.constexpr = fact(FORMAT, "minimum")
    weights = tl.trans(weights)
    if HALF >= 0:
        a = tl.where(k // 16 == HALF, a, 0)
    if fact(FORMAT, "sub") == "none":
        sums = tl.dot(a, weights, out_dtype=tl.int32)
        minima = sums
        if MINIMUM != "none":
            minima = tl.sum(a.to(tl.int32), axis=1, keep_dims=True)
    else:
        # Scales are loaded before the products, to be there behind them.
        factor, least = sub_scales(tile, step, 0, row, extra, FORMAT, K)
        if fact(FORMAT, "sub_block") == 32:
            sums = tl.dot(a, weights, out_dtype=tl.int32) * tl.trans(factor)
            minima = sums
            if MINIMUM == "sub":
                minima = tl.sum(a.to(tl.int32), axis=1, keep_dims=True) * tl.trans(least)
        else:
            more, more_least = sub_scales(tile, step, 1, row, extra, FORMAT, K)
            first, last = tl.where(k < 16, a, 0), tl.where(k < 16, 0, a)
            sums = tl.dot(first, weights, out_dtype=tl.int32) * tl.trans(factor)
            sums += tl.dot(last, weights, out_dtype=tl.int32) * tl.trans(more)
            minima = sums
            if MINIMUM == "sub":
                minima = tl.sum(first.to(tl.int32), axis=1, keep_dims=True) * tl.trans(least)
                minima += tl.sum(last.to(tl.int32), axis=1, keep_dims=True) * tl.trans(more_least)
    return sums, minima
