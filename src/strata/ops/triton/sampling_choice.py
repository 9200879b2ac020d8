"""The kernel of `sampling.py` that chooses a row's token."""

import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel
from strata.ops.triton.kernel import kernel
from strata.ops.triton.noise import gumbel, random_word
from strata.ops.triton.sampling_tiles import draws

_LAST = tl.constexpr(0x7FFFFFFF)  # above every token
_NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def _weigh(found, size, least, low, high, level, BY_MASS: tl.constexpr, CHUNK: tl.constexpr):
    """Of the collection from `least` (logit and last token of it) up: how much reaches `level`, float64.

    Further, of what is from `low` to `high`: the lowest logit that reaches it, and the highest that does not.
    """
    weight = tl.full([], 0, tl.int64)
    above, below = high, low
    for start in range(0, size, CHUNK):
        at = start + tl.arange(0, CHUNK)
        x = tl.load(found[0] + at, mask=at < size, other=_NOTHING)
        token = tl.load(found[2] + at, mask=at < size, other=_LAST)
        counts = (x > least[0]) | ((x == least[0]) & (token <= least[1]))
        reaches = counts & (x >= level)
        if BY_MASS:
            weight += tl.sum(tl.where(reaches, tl.load(found[1] + at, mask=at < size, other=0), 0), 0)
        else:
            weight += tl.sum(reaches.to(tl.int64), 0)
        above = tl.minimum(above, tl.min(tl.where(reaches & (x <= high), x, high), 0))
        below = tl.maximum(below, tl.max(tl.where(counts & (x < level) & (x >= low), x, low), 0))
    return weight.to(tl.float64), above, below


@triton.jit
def _ties(found, size, least, value, last_token, BY_MASS: tl.constexpr, CHUNK: tl.constexpr):
    """Of the collection from `least` up: the weight above `value`, float64, and the number of logits at it.

    The number counts tokens up to `last_token`; last comes what one of them weighs.
    """
    before, each, number = tl.full([], 0, tl.int64), tl.full([], 1, tl.int64), tl.full([], 0, tl.int32)
    for start in range(0, size, CHUNK):
        at = start + tl.arange(0, CHUNK)
        x = tl.load(found[0] + at, mask=at < size, other=_NOTHING)
        token = tl.load(found[2] + at, mask=at < size, other=_LAST)
        counts = (x > least[0]) | ((x == least[0]) & (token <= least[1]))
        weight = tl.full([CHUNK], 1, tl.int64)
        if BY_MASS:
            weight = tl.load(found[1] + at, mask=at < size, other=0)
        before += tl.sum(tl.where(counts & (x > value), weight, 0), 0)
        each = tl.maximum(each, tl.max(tl.where(counts & (x == value), weight, 0), 0))
        number += tl.sum((counts & (x == value) & (token <= last_token)).to(tl.int32), 0)
    return before.to(tl.float64), number, each.to(tl.float64)


@triton.jit
def _cut(found, size, least, target, vocab, BY_MASS: tl.constexpr, CHUNK: tl.constexpr):
    """The logit and token at which the collection, from the largest on, lowest tokens first, has `target`.

    At least the first one is kept; all are, if together they have less.
    """
    low, high = tl.full([], -100.0, tl.float64), tl.full([], 0.0, tl.float64)
    _, low, _ = _weigh(found, size, least, low, high, low, BY_MASS, CHUNK)  # the lowest; the highest is 0
    while low < high:
        level = low + (high - low) * 0.5
        level = tl.where(level > low, level, high)
        weight, above, below = _weigh(found, size, least, low, high, level, BY_MASS, CHUNK)
        enough = weight >= target
        low, high = tl.where(enough, above, low), tl.where(enough, high, below)
    before, number, each = _ties(found, size, least, low, _LAST, BY_MASS, CHUNK)
    wanted = tl.ceil((target - before) / each)
    wanted = tl.minimum(tl.maximum(wanted, 1.0), number.to(tl.float64)).to(tl.int32)
    first, last = tl.full([], -1, tl.int32), vocab + tl.full([], -1, tl.int32)
    if wanted < number:
        while last - first > 1:
            middle = first + (last - first) // 2
            _, until, _ = _ties(found, size, least, low, middle, BY_MASS, CHUNK)
            enough = until >= wanted
            first, last = tl.where(enough, first, middle), tl.where(enough, middle, last)
    return low, last


@triton.jit
def _draw(found, size, least, seed, position, CHUNK: tl.constexpr):
    """The token of the largest sum with noise in the collection from `least` up."""
    value, drawn = tl.full([], _NOTHING, tl.float64), tl.full([], _LAST, tl.int32)
    for start in range(0, size, CHUNK):
        at = start + tl.arange(0, CHUNK)
        x = tl.load(found[0] + at, mask=at < size, other=_NOTHING)
        token = tl.load(found[2] + at, mask=at < size, other=_LAST)
        counts = (x > least[0]) | ((x == least[0]) & (token <= least[1]))
        if tl.sum(counts.to(tl.int32), 0) > 0:
            noisy = tl.where(counts, x + gumbel(random_word(seed, position, token)), _NOTHING)
            largest = tl.max(noisy, 0)
            first = tl.min(tl.where(counts & (noisy == largest), token, _LAST), 0)
            drawn = tl.where(
                largest > value, first, tl.where(largest == value, tl.minimum(first, drawn), drawn)
            )
            value = tl.maximum(value, largest)
    return drawn


@triton.jit
def _draw_filtered(
    scratch, lanes, row, lane, position, size, vocab, CHUNK: tl.constexpr, DRAWN: tl.constexpr
):
    """The token drawn from what top-k and top-p keep of the collection of `size` logits."""
    begin = row.to(tl.int64) * vocab
    found = (scratch.found_x + begin, scratch.found_mass + begin, scratch.found_token + begin)
    top_k, top_p = tl.load(lanes.whole + lane * 3 + 1), tl.load(lanes.numbers + lane * 6 + 1)
    least_x, least_token = tl.full([], -100.0, tl.float64), tl.full([], _LAST, tl.int32)
    mass = tl.load(scratch.sums + row * 2 + 1).to(tl.float64)
    if (top_k > 0) & (top_k < size):
        least = (least_x, least_token)
        least_x, least_token = _cut(found, size, least, top_k.to(tl.float64), vocab, False, CHUNK)
        least = (least_x, least_token)
        mass, _, _ = _weigh(found, size, least, least_x, least_x, least_x, True, CHUNK)
    if top_p < 1.0:
        least = (least_x, least_token)
        least_x, least_token = _cut(found, size, least, top_p * mass, vocab, True, CHUNK)
    return _draw(found, size, (least_x, least_token), tl.load(lanes.whole + lane * 3), position, DRAWN)


@kernel
def choose_kernel(
    rows,
    lanes,
    scratch,
    chosen,
    vocab,
    tiles,
    TILES: tl.constexpr,
    FEW: tl.constexpr,
    MANY: tl.constexpr,
    DRAWN: tl.constexpr,
):
    """The token of one row; -1 where the logits are none to choose by."""
    begin_kernel()
    row = tl.program_id(0)
    if tl.load(rows[0] + row) < 0:
        return
    tile = tl.arange(0, TILES)
    raw = tl.max(tl.load(scratch.raw_top + row * tiles + tile, mask=tile < tiles, other=_NOTHING), 0)
    lane, _, token, _, is_drawn, has_filter = draws(scratch, lanes, rows, row, tiles, TILES)
    if is_drawn:
        if has_filter:
            position = tl.load(rows[1] + row) + 1
            size = tl.load(scratch.sums + row * 2).to(tl.int32)
            if size <= FEW:
                token = _draw_filtered(scratch, lanes, row, lane, position, size, vocab, FEW, FEW)
            else:
                token = _draw_filtered(scratch, lanes, row, lane, position, size, vocab, MANY, DRAWN)
        else:
            exists = tile < tiles
            value = tl.load(scratch.exact + row * tiles + tile, mask=exists, other=_NOTHING)
            drawn = tl.load(scratch.drawn + row * tiles + tile, mask=exists, other=_LAST)
            token = tl.min(tl.where(value == tl.max(value, 0), drawn, _LAST), 0)
    tl.store(chosen + row, tl.where(tl.abs(raw) < float("inf"), token, -1))
