"""The kernels of `sampling.py` that go through the vocabulary tile by tile."""

import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel
from strata.ops.triton.kernel import kernel
from strata.ops.triton.noise import exp, gumbel, random_word, rough_gumbel

GREEDY = tl.constexpr(1e-5)  # temperatures up to here, see engine/sampling.py
NEAR = tl.constexpr(26.5)  # how far below the largest a logit can be drawn, likewise
_SPAN = tl.constexpr(26.51)  # of all bins: what float32 rounds is in
_EXCLUDED = tl.constexpr(-0x8000000000000000)  # below the key of every number
_UNIT = tl.constexpr(17592186044416.0)  # 2**44, of masses


@triton.jit
def _key(x):
    """int64 in the order of float64 `x`, -0 being 0; NaN is excluded."""
    bits = (x + 0.0).to(tl.int64, bitcast=True)
    return tl.where(x == x, bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF), _EXCLUDED)


@triton.jit
def _first_of_largest(key, token):
    """The largest key, and the lowest of the tokens that have it."""
    largest = tl.max(key, 0)
    return largest, tl.min(tl.where(key == largest, token, 0x7FFFFFFF), 0)


@triton.jit
def _history(lanes, rows, tokens, is_answer, row, lane, token, inside, vocab):
    """The history before the token that a row draws: the lane's, and this window's rows up to its own."""
    history = tl.load(lanes.history + lane.to(tl.int64) * vocab + token, mask=inside, other=0)
    for other in range(0, row + 1):
        adds = tl.where(tl.load(is_answer + other) != 0, 1, 4294967296)
        adds = tl.where(tl.load(rows[0] + other) == lane, adds, 0)
        history += tl.where(token == tl.load(tokens + other), adds, 0)
    return history


@kernel
def adjust_kernel(
    logits,
    rows,
    tokens,
    is_answer,
    mask,
    lanes,
    scratch,
    vocab,
    tiles,
    TILE: tl.constexpr,
    BINS: tl.constexpr,
):
    """Bias and penalties of a tile, and its largest logit."""
    begin_kernel()
    tile, row = tl.program_id(0), tl.program_id(1)
    lane = tl.load(rows[0] + row)
    if lane < 0:
        return
    token = tile * TILE + tl.arange(0, TILE)
    inside = token < vocab
    at = row.to(tl.int64) * vocab + token
    raw = tl.load(logits + at, mask=inside, other=float("-inf"))
    is_number = (raw == raw) & (raw < float("inf"))
    tl.store(scratch.raw_top + row * tiles + tile, tl.max(tl.where(is_number, raw, float("inf")), 0))
    x = raw.to(tl.float64)
    numbers, whole = lanes.numbers + lane * 6, lanes.whole + lane * 3
    if tl.load(whole + 2) != 0:
        x += tl.load(lanes.bias + lane.to(tl.int64) * vocab + token, mask=inside, other=0.0)
    repetition, presence, frequency = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(numbers + 5)
    if (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0):
        history = _history(lanes, rows, tokens, is_answer, row, lane, token, inside, vocab)
        x = tl.where(history != 0, tl.where(x > 0, x / repetition, x * repetition), x)
        number = (history & 0xFFFFFFFF).to(tl.float64)
        x -= tl.where(number > 0, presence, 0.0) + frequency * number
    words = tl.cdiv(vocab, 32)
    word = tl.load(mask + row.to(tl.int64) * words + token // 32, mask=inside, other=0)
    is_allowed = inside & (((word >> (token % 32)) & 1) == 1)
    x = tl.where(is_allowed, x, float("nan"))
    tl.store(scratch.x + at, x, mask=inside)
    key, first = _first_of_largest(_key(x), token)
    tl.store(scratch.top_key + row * tiles + tile, key)
    tl.store(scratch.top_token + row * tiles + tile, first)
    if tile == 0:
        tl.store(scratch.bins + row * BINS + tl.arange(0, BINS), tl.zeros([BINS], tl.int32))
        tl.store(scratch.sums + row * 2 + tl.arange(0, 2), tl.zeros([2], tl.int64))


@triton.jit
def _top(scratch, row, tiles, TILES: tl.constexpr):
    """A row's largest logit, NaN if all are excluded, and its token."""
    tile = row * tiles + tl.arange(0, TILES)
    exists = tl.arange(0, TILES) < tiles
    key = tl.load(scratch.top_key + tile, mask=exists, other=_EXCLUDED)
    key, token = _first_of_largest(key, tl.load(scratch.top_token + tile, mask=exists, other=0x7FFFFFFF))
    bits = key ^ ((key >> 63) & 0x7FFFFFFFFFFFFFFF)
    return bits.to(tl.float64, bitcast=True), token


@triton.jit
def draws(scratch, lanes, rows, row, tiles, TILES: tl.constexpr):
    """A row's lane, largest logit and its token, temperature, whether it is drawn, and whether filtered."""
    lane = tl.load(rows[0] + row)
    top, token = _top(scratch, row, tiles, TILES)
    numbers = lanes.numbers + lane * 6
    temperature = tl.load(numbers)
    is_finite = tl.abs(top) < float("inf")  # an infinite bias leaves no distribution to draw from
    is_drawn = (temperature > GREEDY) & is_finite
    has_filter = (tl.load(lanes.whole + lane * 3 + 1) > 0) | (tl.load(numbers + 1) < 1.0)
    return lane, top, token, temperature, is_drawn, has_filter | (tl.load(numbers + 2) > -NEAR)


@triton.jit
def _bin(x, top, temperature, BINS: tl.constexpr):
    """In float32: logits relative to the largest, scaled, and their bins; BINS for what can be in none."""
    scaled = (x - top).to(tl.float32) * (1.0 / temperature).to(tl.float32)
    is_near = scaled >= -_SPAN
    bin = (tl.where(is_near, scaled, 0.0) * (-(BINS - 1) / _SPAN)).to(tl.int32)
    return scaled, tl.where(is_near, bin, BINS)


@kernel
def spread_kernel(
    rows, lanes, scratch, vocab, tiles, TILE: tl.constexpr, TILES: tl.constexpr, BINS: tl.constexpr
):
    """Of a tile: the largest sum with noise, roughly; or, with filters, how many logits each bin has."""
    begin_kernel()
    tile, row = tl.program_id(0), tl.program_id(1)
    if tl.load(rows[0] + row) < 0:
        return
    lane, top, _, temperature, is_drawn, has_filter = draws(scratch, lanes, rows, row, tiles, TILES)
    if is_drawn:
        token = tile * TILE + tl.arange(0, TILE)
        x = tl.load(scratch.x + row.to(tl.int64) * vocab + token, mask=token < vocab, other=float("nan"))
        scaled, bin = _bin(x, top, temperature, BINS)
        if has_filter:
            tl.atomic_add(scratch.bins + row * BINS + bin, 1, mask=bin < BINS, sem="relaxed")
        else:
            word = random_word(tl.load(lanes.whole + lane * 3), tl.load(rows[1] + row) + 1, token)
            noisy = tl.where(bin < BINS, scaled + rough_gumbel(word), float("-inf"))
            tl.store(scratch.rough + row * tiles + tile, tl.max(noisy, 0))


@triton.jit
def _last_bin(scratch, row, top_k, top_p, BINS: tl.constexpr):
    """The last bin that what top-k and top-p keep can reach into."""
    bin = tl.arange(0, BINS)
    number = tl.load(scratch.bins + row * BINS + bin)
    WIDTH: tl.constexpr = _SPAN / (BINS - 1)
    last = BINS - 1
    if top_k > 0:
        reached = tl.cumsum(number, 0) >= top_k
        last = tl.min(tl.where(reached, bin, last), 0)
    elif top_p < 1.0:
        # the least that the bins up to one can have against the most that all can have
        weight = number.to(tl.float32) * tl.exp(bin.to(tl.float32) * -WIDTH)
        most = tl.sum(weight, 0) * 1.0001
        least = tl.cumsum(weight, 0) * (0.9999 * (1.0 - WIDTH))
        last = tl.min(tl.where(least >= most * top_p.to(tl.float32), bin, last), 0)
    return last


@triton.jit
def _collect(
    x,
    token,
    rough,
    bin,
    floor,
    top,
    temperature,
    top_k,
    top_p,
    scratch,
    row,
    vocab,
    BINS: tl.constexpr,
):
    """Add those of a tile that filters can keep to the row's collection; their order does not matter."""
    last = _last_bin(scratch, row, top_k, top_p, BINS)
    needs_all = (top_k <= 0) & (top_p < 1.0)  # for the mass that top-p is a part of
    can_matter = (bin < BINS) & (rough >= floor.to(tl.float32) - 1e-3)
    if needs_all == 0:
        can_matter = can_matter & (bin <= last)
    if tl.sum(can_matter.to(tl.int32), 0) > 0:
        scaled = (x - top) / temperature
        is_kept = can_matter & (scaled >= -NEAR) & (scaled >= floor)
        mass = (exp(tl.where(is_kept, scaled, 0.0)) * _UNIT + 0.5).to(tl.int64)
        tl.atomic_add(scratch.sums + row * 2 + 1, tl.sum(tl.where(is_kept, mass, 0), 0), sem="relaxed")
        is_kept = is_kept & (bin <= last)
        kept = is_kept.to(tl.int32)
        first = tl.atomic_add(scratch.sums + row * 2, tl.sum(kept, 0).to(tl.int64), sem="relaxed")
        at = row.to(tl.int64) * vocab + first + tl.cumsum(kept, 0) - kept
        tl.store(scratch.found_x + at, scaled, mask=is_kept)
        tl.store(scratch.found_mass + at, mass, mask=is_kept)
        tl.store(scratch.found_token + at, token, mask=is_kept)


@kernel
def collect_kernel(
    rows, lanes, scratch, vocab, tiles, TILE: tl.constexpr, TILES: tl.constexpr, BINS: tl.constexpr
):
    """Of a tile: the largest sum with noise, exactly, if it can win; or, with filters, what they can keep."""
    begin_kernel()
    tile, row = tl.program_id(0), tl.program_id(1)
    if tl.load(rows[0] + row) < 0:
        return
    lane, top, _, temperature, is_drawn, has_filter = draws(scratch, lanes, rows, row, tiles, TILES)
    if is_drawn:
        token = tile * TILE + tl.arange(0, TILE)
        x = tl.load(scratch.x + row.to(tl.int64) * vocab + token, mask=token < vocab, other=float("nan"))
        scaled, bin = _bin(x, top, temperature, BINS)
        if has_filter:
            top_k, top_p = tl.load(lanes.whole + lane * 3 + 1), tl.load(lanes.numbers + lane * 6 + 1)
            floor = tl.load(lanes.numbers + lane * 6 + 2)
            _collect(x, token, scaled, bin, floor, top, temperature, top_k, top_p, scratch, row, vocab, BINS)
        else:
            all_tiles = tl.arange(0, TILES)
            best = tl.load(
                scratch.rough + row * tiles + all_tiles, mask=all_tiles < tiles, other=float("-inf")
            )
            bound = tl.max(best, 0) - 1e-3
            value, first = tl.full([], float("-inf"), tl.float64), tl.full([], 0x7FFFFFFF, tl.int32)
            if tl.load(scratch.rough + row * tiles + tile) >= bound:
                word = random_word(tl.load(lanes.whole + lane * 3), tl.load(rows[1] + row) + 1, token)
                can_win = (bin < BINS) & (scaled + rough_gumbel(word) >= bound)
                noisy = tl.where(can_win, (x - top) / temperature + gumbel(word), float("-inf"))
                value = tl.max(noisy, 0)
                first = tl.min(tl.where(noisy == value, token, 0x7FFFFFFF), 0)
            tl.store(scratch.exact + row * tiles + tile, value)
            tl.store(scratch.drawn + row * tiles + tile, first)
