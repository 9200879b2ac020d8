"""Which blocks of earlier tokens a row attends to: scores of the indexer, and the exact best of them.

As `ops/block_selection.py`, but among equal scores the lowest block wins. Choosing is exact: in each segment
of the blocks the best `budget`, then the best of those. Both search the score of the last one chosen by
halving the range of float bits, which counts are enough for; so there is no sort, and no order of threads
to depend on. The number of launches does not depend on the number of blocks; where all of a row's are one
segment, its best are the best, and the second kernel leaves the row alone.
"""

import torch
import triton
import triton.language as tl

from strata.ops.triton.arithmetic import has_matrix_units, pairwise_sum
from strata.ops.triton.capability import warps
from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.kv import PagedKV

SEGMENT = 4096  # blocks whose best are chosen at once
_TILE = (64, 128)  # blocks that are scored at once, and threads
_SCALAR_TILE = (16, 256)  # without matrix units, whose part registers then have
_ROWS = 4  # rows of a tile, times index heads


@kernel
def _score_kernel(
    q,
    rows,
    num_rows,
    block_keys,
    page_table,
    scores,
    BUDGET: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE_BLOCKS: tl.constexpr,
    LANE_PAGES: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Scores of a tile of blocks for ROWS rows, of whatever lanes: lane after lane."""
    begin_kernel()
    begin, first = tl.program_id(0) * ROWS, tl.program_id(1) * TILE
    row, block, d = begin + tl.arange(0, ROWS), first + tl.arange(0, TILE), tl.arange(0, DIM)
    lanes = tl.load(rows[0] + row, mask=row < num_rows, other=-1)
    complete = (tl.load(rows[1] + row, mask=row < num_rows, other=0) + 1) // BLOCK
    complete = tl.where(lanes >= 0, tl.where(complete > BUDGET, complete, 0), 0)
    if tl.max(complete, 0) <= first:
        return
    member = tl.arange(0, ROWS * HEADS)
    x = q + (begin.to(tl.int64) * HEADS + member)[:, None] * DIM + d[None]
    x = tl.load(x, mask=(begin + member // HEADS < num_rows)[:, None], other=0.0)
    high = x.to(tl.float16)
    low = ((x - high.to(tl.float32)) * 2048.0).to(tl.float16)
    lane = tl.max(lanes, 0)
    while lane >= 0:
        mine = tl.where(lanes == lane, complete, 0)
        exists = block < tl.max(mine, 0)
        page = tl.load(
            page_table + lane.to(tl.int64) * LANE_PAGES + block // PAGE_BLOCKS, mask=exists, other=0
        )
        cell = page.to(tl.int64) * PAGE_BLOCKS + block % PAGE_BLOCKS
        keys = tl.load(block_keys + cell[:, None] * DIM + d[None], mask=exists[:, None], other=0.0)
        keys = tl.trans(keys)
        score = tl.maximum(tl.dot(high, keys) + tl.dot(low, keys) * (1.0 / 2048.0), 0.0)
        # the sum over heads, neighbours first: in this order wherever in the tile a row is
        score = tl.permute(tl.reshape(score, [ROWS, HEADS, TILE]), [0, 2, 1])
        score = pairwise_sum(tl.reshape(score, [ROWS * TILE, HEADS]), ROWS * TILE, HEADS)
        at = row.to(tl.int64)[:, None] * (LANE_PAGES * PAGE_BLOCKS) + block[None]
        tl.store(scores + at, tl.reshape(score, [ROWS, TILE]), mask=block[None] < mine[:, None])
        lane = tl.max(tl.where(lanes < lane, lanes, -1), 0)


@triton.jit
def _best(score, count, budget):
    """Where in order of index the best `budget` of `count` scores go, int32; -1 for those not chosen.

    `score` float32 `[n]`, not negative, `count` of them, n at most 2**13; ties are the lowest index's.
    """
    index = tl.arange(0, score.shape[0])
    # float32 that are not negative are in the order of their bits; + 1, so that 0 is less than all of them
    key = tl.where(index < count, score.to(tl.int32, bitcast=True) + 1, 0)
    budget = tl.minimum(budget, count)
    # At least `budget` keys reach `low`, fewer reach `high`; when exactly `budget` do, these are the ones.
    # Two counts at a time, 16 bits for each, third what is between.
    low, high, reach = 1, tl.max(key, 0) + 1, count
    while (high - low > 1) & (reach > budget):
        step = tl.maximum((high - low) // 3, 1)
        one, two = low + step, tl.minimum(low + 2 * step, high)
        counts = tl.sum((key >= one).to(tl.int32) + ((key >= two).to(tl.int32) << 16), 0)
        at_one, at_two = counts & 0xFFFF, counts >> 16
        high = tl.where(at_one < budget, one, tl.where(at_two < budget, two, high))
        low = tl.where(at_two >= budget, two, tl.where(at_one >= budget, one, low))
        reach = tl.where(at_two >= budget, at_two, tl.where(at_one >= budget, at_one, reach))
    above = tl.where(reach > budget, low, low - 1)  # above it all are chosen, at it the first ones
    greater, equal = key > above, key == above
    ties = budget - tl.sum(greater.to(tl.int32), 0)
    # both counts in one scan
    both = tl.cumsum((greater.to(tl.int32) << 16) + equal.to(tl.int32), 0)
    equal_before = (both & 0xFFFF) - equal.to(tl.int32)
    place = (both >> 16) - greater.to(tl.int32) + tl.minimum(equal_before, ties)
    return tl.where(greater | (equal & (equal_before < ties) & (index < count)), place, -1)


@kernel
def _segment_kernel(
    rows,
    scores,
    best_scores,
    best_blocks,
    blocks,
    width,
    BUDGET: tl.constexpr,
    BLOCK: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    """The best BUDGET blocks of one segment of one row; its `blocks`, if there is no other segment."""
    begin_kernel()
    row, segment = tl.program_id(0).to(tl.int64), tl.program_id(1)
    complete = (tl.load(rows[1] + row) + 1) // BLOCK
    count = tl.minimum(complete - segment * SEGMENT, SEGMENT)
    if (tl.load(rows[0] + row) < 0) | (complete <= BUDGET) | (count <= 0):
        return
    index = tl.arange(0, SEGMENT)
    score = tl.load(scores + row * width + segment * SEGMENT + index, mask=index < count, other=0.0)
    place = _best(score, count, BUDGET)
    if complete <= SEGMENT:
        tl.store(blocks + row * BUDGET + place, index, mask=place >= 0)
    else:
        at = (row * SEGMENTS + segment) * BUDGET + place
        tl.store(best_scores + at, score, mask=place >= 0)
        tl.store(best_blocks + at, segment * SEGMENT + index, mask=place >= 0)


@kernel
def _choose_kernel(
    rows,
    best_scores,
    best_blocks,
    blocks,
    BUDGET: tl.constexpr,
    BLOCK: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SEGMENT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The best BUDGET blocks of a row of several segments: of their best, which are in order of index."""
    begin_kernel()
    row = tl.program_id(0).to(tl.int64)
    complete = (tl.load(rows[1] + row) + 1) // BLOCK
    if (tl.load(rows[0] + row) < 0) | (complete <= BUDGET) | (complete <= SEGMENT):
        return
    # all segments but the last are full, and so are their lists
    full = (complete - 1) // SEGMENT
    count = full * BUDGET + tl.minimum(complete - full * SEGMENT, BUDGET)
    index = tl.arange(0, WIDTH)
    at = row * SEGMENTS * BUDGET + index
    place = _best(tl.load(best_scores + at, mask=index < count, other=0.0), count, BUDGET)
    block = tl.load(best_blocks + at, mask=index < count, other=0)
    tl.store(blocks + row * BUDGET + place, block, mask=place >= 0)


class Scratch:
    """What `select_blocks` keeps of the scores of up to `rows` rows.

    Args:
        rows: more rows are gone through in pieces of this many.
        max_blocks: blocks that a lane can have.
        budget: blocks to choose.
        device: of the tensors.
        segment: blocks whose best are chosen at once, a power of two.
    """

    def __init__(
        self, rows: int, max_blocks: int, budget: int, device: torch.device | str, segment: int = SEGMENT
    ):
        self.segment, segments = segment, cdiv(max_blocks, segment)
        self.scores = torch.empty(rows, max_blocks, device=device)
        self.best_scores = torch.empty(rows, segments, budget, device=device)
        self.best_blocks = torch.empty(rows, segments, budget, dtype=torch.int32, device=device)


def select_blocks(
    q: torch.Tensor,
    lane: torch.Tensor,
    position: torch.Tensor,
    block_keys: torch.Tensor,
    kv: PagedKV,
    scratch: Scratch,
    blocks: torch.Tensor,
) -> None:
    """The `budget` best of the complete blocks of each row that has more of them, in ascending order.

    A block's score is `sum_h relu(q_h . key)`; ties are the lowest block's.

    Args:
        q: float32 `[rows, heads, dim]`, index queries.
        lane, position: int32 `[rows]`; nothing is written for rows of lane -1.
        block_keys: float16 `[pages, blocks of a page, dim]`, see `sparse_attention.append_index`.
        kv: whose page table says where a lane's blocks are.
        scratch: see there.
        blocks: int32 `[rows, budget]`, written; not for rows that attend to all of their blocks.
    """
    for piece in range(0, q.shape[0], scratch.scores.shape[0]):
        part = slice(piece, piece + scratch.scores.shape[0])
        _select(q[part], (lane[part], position[part]), block_keys, kv, scratch, blocks[part])


def _select(q, rows, block_keys, kv: PagedKV, scratch: Scratch, blocks: torch.Tensor) -> None:
    num_rows, heads, dim = q.shape
    budget, page_blocks, lane_pages = blocks.shape[1], block_keys.shape[1], kv.shape.lane_pages
    block, max_blocks = kv.shape.page // page_blocks, lane_pages * page_blocks
    segments = scratch.best_scores.shape[1]
    tile, threads = _TILE if has_matrix_units() else _SCALAR_TILE
    _score_kernel[(cdiv(num_rows, _ROWS), cdiv(max_blocks, tile))](
        q,
        rows,
        num_rows,
        block_keys,
        kv.page_table,
        scratch.scores,
        BUDGET=budget,
        HEADS=heads,
        DIM=dim,
        BLOCK=block,
        PAGE_BLOCKS=page_blocks,
        LANE_PAGES=lane_pages,
        ROWS=_ROWS,
        TILE=tile,
        num_warps=warps(threads),
        num_stages=1,
        **step_launch(),
    )
    best = (scratch.best_scores, scratch.best_blocks)
    constants = {"BUDGET": budget, "BLOCK": block, "SEGMENTS": segments, "SEGMENT": scratch.segment}
    _segment_kernel[(num_rows, segments)](
        rows, scratch.scores, *best, blocks, max_blocks, **constants, num_warps=8, **step_launch()
    )
    width = triton.next_power_of_2(segments * budget)
    _choose_kernel[(num_rows,)](rows, *best, blocks, **constants, WIDTH=width, num_warps=16, **step_launch())
