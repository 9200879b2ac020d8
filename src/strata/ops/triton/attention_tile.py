"""Tiles of keys in attention over pages: where they are, what is loaded of them, and their scores.

A tile's loads are asked for in a row, before any of them is used: each that waits for another is a round trip
to memory. So what is loaded and what it is used for are functions of their own. `PLAN` is `attention.Plan`.
"""

import triton
import triton.language as tl

from strata.ops.triton.kv import cell_of, load_part, part_values


@triton.jit
def list_cells(start, last, blocks, left_out, page_table, lane, kv_head, PLAN: tl.constexpr):
    """Where keys `start` and following of a list are, up to `last`: int32 cells `[tile]`.

    What is looked up a tile ahead takes registers meanwhile, and no pool has 2**31 cells.
    """
    BLOCK: tl.constexpr = PLAN.block
    TILE: tl.constexpr = PLAN.tile
    index = start + tl.arange(0, TILE)
    alive = index < last
    token = index
    if BLOCK > 0:  # chosen blocks, then the tail
        is_chosen = index < tl.where(left_out > 0, PLAN.budget * BLOCK, 0)
        block = tl.load(blocks + index // BLOCK, mask=is_chosen & alive, other=0)
        token = tl.where(is_chosen, block * BLOCK + index % BLOCK, index + left_out * BLOCK)
    KV: tl.constexpr = PLAN.kv
    return cell_of(page_table, lane, token, alive, kv_head, KV).to(tl.int32)


@triton.jit
def _load_pair(q, pages, scales, cell, alive, part, PLAN: tl.constexpr):
    """Queries `[rows, 64]` and, by `load_part`, keys `[64, cells]`: 64 values of a head, from `part * 64` on.

    `q` is where a row's queries are, and which of them exist.
    """
    KV: tl.constexpr = PLAN.kv
    WIDTH: tl.constexpr = min(64, PLAN.kv.dim)
    d = part * WIDTH + tl.arange(0, WIDTH)
    x = tl.load(q[0][:, None] + d[None], mask=q[1][:, None], other=0.0)
    return x, load_part(pages, scales, cell, alive, part, WIDTH, KV)


@triton.jit
def _add_pair(sums, pair, scale, KV: tl.constexpr):
    """Add products of queries with keys to sums `[rows, cells]` of the queries' two parts."""
    x, k = pair[0] * scale, part_values(pair[1], KV)
    high = x.to(tl.float16)
    low = ((x - high.to(tl.float32)) * 2048.0).to(tl.float16)
    return tl.dot(high, k, sums[0]), tl.dot(low, k, sums[1])


@triton.jit
def load_pairs(q, pages, scales, cell, alive, PLAN: tl.constexpr):
    """All that `score_pairs` makes scores of. `q` is where a row's queries are, and which of them exist."""
    PARTS: tl.constexpr = PLAN.kv.dim // min(64, PLAN.kv.dim)
    pairs = ()
    for part in tl.static_range(PARTS):
        pair = _load_pair(q, pages, scales, cell, alive, part, PLAN)
        pairs = pairs + (pair,)  # noqa: RUF005 - Triton unpacks no tuple
    return pairs


@triton.jit
def score_pairs(pairs, scale, ROWS: tl.constexpr, PLAN: tl.constexpr):
    """Products `[rows, cells]` of queries with keys, scaled."""
    PARTS: tl.constexpr = PLAN.kv.dim // min(64, PLAN.kv.dim)
    KV: tl.constexpr = PLAN.kv
    TILE: tl.constexpr = PLAN.tile
    sums = (tl.zeros([ROWS, TILE], tl.float32), tl.zeros([ROWS, TILE], tl.float32))
    for part in tl.static_range(PARTS):
        sums = _add_pair(sums, pairs[part], scale, KV)
    return sums[0] + sums[1] * (1.0 / 2048.0)


@triton.jit
def load_scores(q, scale, pages, scales, cell, alive, ROWS: tl.constexpr, PLAN: tl.constexpr):
    """`score_pairs` of `load_pairs`, a pair at a time: all of them are more than a Radeon has registers."""
    PARTS: tl.constexpr = PLAN.kv.dim // min(64, PLAN.kv.dim)
    KV: tl.constexpr = PLAN.kv
    TILE: tl.constexpr = PLAN.tile
    sums = (tl.zeros([ROWS, TILE], tl.float32), tl.zeros([ROWS, TILE], tl.float32))
    for part in tl.static_range(PARTS):
        sums = _add_pair(sums, _load_pair(q, pages, scales, cell, alive, part, PLAN), scale, KV)
    return sums[0] + sums[1] * (1.0 / 2048.0)
