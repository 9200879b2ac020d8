"""Softmax attention over pages, for windows and for prompts, over all keys or over chosen blocks of them.

The keys of a row are a list: all tokens up to its own, or, in sparse attention, the chosen blocks' tokens and
the tail's, both ascending. The list is cut into splits whose length depends on the row's own number of keys
(`_split_length`). A split is computed tile by tile, and the splits' results are merged in ascending order.
Windows compute splits side by side and merge them in a second kernel, prompts go through them in one: the
operations on a row are the same, in the same order, and so are its bits, whatever else is computed beside it.

For that, no sum over keys may depend on how a tile is spread over threads: maxima are exact, sums of
probabilities are taken in integers, and products are made by instructions that treat each row alike. Queries
and probabilities are split in two float16 each, so that products have float32's accuracy at the speed of
matrix units.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from strata.ops.triton.attention_tile import list_cells, load_pairs, load_scores, score_pairs
from strata.ops.triton.capability import has_few_registers, loads_together, warps
from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.kv import KVShape, PagedKV, cell_values, load_cells
from strata.ops.triton.quantize import quantize_blocks

MIN_SPLIT = 64  # keys
MAX_SPLITS = 64  # from 4096 keys on splits grow instead
TILE, SMALL_TILE = 32, 16  # keys, the latter where registers are few
AHEAD = 16  # splits that are loaded at a time to be merged
PROMPT_ROWS = 16  # of a prompt's tile, query heads of a key-value head counted
THREADS = 256  # with fewer, heads of 256 values take more registers than there are
_LOG2_E = 1.4426950408889634
_NOTHING = tl.constexpr(float("-inf"))


class Plan(NamedTuple):
    """What is fixed about an attention when its kernels are compiled.

    Attributes:
        kv: the pages.
        heads: of the queries.
        window: tokens that a row sees, its own included; 0 for all.
        block: tokens of a block that sparse attention chooses; 0 for dense attention.
        budget: blocks that it chooses.
        min_split: keys of a row's shortest splits.
        doublings: how often splits grow, at most.
        max_splits: of a row whose splits have grown.
        splits: of a row, at most; a window may begin in the middle of one.
        tile: keys that are computed with at once.
    """

    kv: KVShape
    heads: int
    window: int
    block: int
    budget: int
    min_split: int
    doublings: int
    max_splits: int
    splits: int
    tile: int


@triton.jit
def _spans(position, PLAN: tl.constexpr):
    """Of a row: first key and number of keys in its list, blocks left out, length of its splits."""
    count, low, left_out = position + 1, position * 0, position * 0
    if PLAN.block > 0:
        left_out = tl.maximum(count // PLAN.block - PLAN.budget, 0)
        count -= left_out * PLAN.block
    visible = count
    if PLAN.window > 0:
        low = tl.maximum(count - PLAN.window, 0)
        visible = count - low
    length = low * 0 + PLAN.min_split
    DOUBLINGS: tl.constexpr = PLAN.doublings
    for _ in tl.static_range(DOUBLINGS):
        length = tl.where(length * PLAN.max_splits < visible, 2 * length, length)
    return low, count, left_out, length


@triton.jit
def _nothing(ROWS: tl.constexpr, DIM: tl.constexpr):
    """Maximum, sum and values of no keys."""
    top = tl.full([ROWS], float("-inf"), tl.float32)
    return top, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, DIM], tl.float32)


@triton.jit
def _attend_split(q, first, last, low, count, blocks, left_out, kv, lane, kv_head, PLAN: tl.constexpr,
                  AT_ONCE: tl.constexpr):  # fmt: skip
    """Keys `first` to `last` of a list: maximum, sum and weighted values of each row of a tile.

    Row i sees keys `low[i]` to `count[i]`. Scores are in units of log 2. Sums and values are 2**10 times what
    they are relative to the maximum, which keeps small probabilities out of float16's subnormal range.

    AT_ONCE, all of a tile and where the next one is are asked for before anything is waited for: a window's
    program would wait for each, a prompt's has others beside it, and on a Radeon no registers.
    """
    ROWS: tl.constexpr = q[0].shape[0]
    DIM: tl.constexpr = PLAN.kv.dim
    TILE: tl.constexpr = PLAN.tile
    KV: tl.constexpr = PLAN.kv
    top, total, out = _nothing(ROWS, DIM)
    following = list_cells(first, last, blocks, left_out, kv.page_table, lane, kv_head, PLAN)
    for start in range(first, last, TILE):
        # Plus zero, which no compiler knows: loaded before the loop, queries would fill the registers.
        here = (q[0] + tl.minimum(start, 0), q[1])
        index = start + tl.arange(0, TILE)
        if AT_ONCE:
            cell, alive = following.to(tl.int64), index < last
            pairs = load_pairs(here, kv.k, kv.k_scales, cell, alive, PLAN)
            values = load_cells(kv.v, kv.v_scales, cell, alive, KV)
            following = list_cells(start + TILE, last, blocks, left_out, kv.page_table, lane, kv_head, PLAN)
            scores = score_pairs(pairs, q[2], ROWS, PLAN)
        else:
            following = list_cells(start, last, blocks, left_out, kv.page_table, lane, kv_head, PLAN)
            cell, alive = following.to(tl.int64), index < last
            scores = load_scores(here, q[2], kv.k, kv.k_scales, cell, alive, ROWS, PLAN)
            values = load_cells(kv.v, kv.v_scales, cell, alive, KV)
        sees = (index[None] >= low[:, None]) & (index[None] < count[:, None])
        scores = tl.where(sees, scores, _NOTHING)
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == _NOTHING, 0.0, new_top)
        p = tl.exp2(scores - (base - 10.0)[:, None])
        fade = tl.exp2(top - base)
        total = total * fade + tl.sum((p * 8192.0 + 0.5).to(tl.int32), 1).to(tl.float32) * (1.0 / 8192.0)
        p_high = p.to(tl.float16)
        p_low = (p - p_high.to(tl.float32)).to(tl.float16)
        v = cell_values(values, KV)
        out = tl.dot(p_low, v, tl.dot(p_high, v, out * fade[:, None]))
        top = new_top
    return top, total, out


@triton.jit
def _merge(result, split):
    """Maximum, sum and values `[rows, dim]` of the splits so far, and of the next one."""
    top, total, out = result
    split_top, split_total, split_out = split
    new_top = tl.maximum(top, split_top)
    base = tl.where(new_top == _NOTHING, 0.0, new_top)
    fade, weight = tl.exp2(top - base), tl.exp2(split_top - base)
    out = out * fade[:, None] + split_out * weight[:, None]
    return new_top, total * fade + split_total * weight, out


@triton.jit
def _load_gate(gate, gate_strides, row, head, d, mask):
    """Values `d` of the gates of heads of rows, `[rows, d]`; of no use without gates."""
    value = tl.zeros([mask.shape[0], d.shape[0]], tl.float32)
    if gate is not None:
        at = (row.to(tl.int64) * gate_strides[0] + head * gate_strides[1])[:, None] + d[None]
        value = tl.load(gate + at, mask=mask[:, None], other=0.0)
    return value


@triton.jit
def _store_result(merged, gates, result, row, head, d, mask, PLAN: tl.constexpr, GATED: tl.constexpr):
    """Divide by the sum, multiply with the gate's sigmoid; store values `[rows, d]` of heads, return them."""
    out = merged[2] / merged[1][:, None]
    if GATED:
        out = out / (1 + tl.exp(-gates))
    at = (row.to(tl.int64) * PLAN.heads + head)[:, None] * PLAN.kv.dim + d[None]
    tl.store(result + at, out, mask=mask[:, None])
    return out


@kernel
def _window_kernel(q, rows, scale, blocks, parts, kv, PLAN: tl.constexpr, MEMBERS: tl.constexpr):
    """One split of one row, for the query heads of one key-value head."""
    begin_kernel()
    GROUP: tl.constexpr = PLAN.heads // PLAN.kv.kv_heads
    tops, totals, outs = parts
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    lane, position = tl.load(rows[0] + row), tl.load(rows[1] + row)
    if tl.minimum(lane, position) < 0:  # no position is: both are loaded before the branch
        return
    low, count, left_out, length = _spans(position, PLAN)
    first = (low // length + split) * length
    if first >= count:
        return
    member = tl.arange(0, MEMBERS)
    inside, head = member < GROUP, kv_head * GROUP + member
    q = (q + (row.to(tl.int64) * PLAN.heads + head) * PLAN.kv.dim, inside, scale)
    last = tl.minimum(first + length, count)
    low, count = low + member * 0, count + member * 0
    blocks += row.to(tl.int64) * PLAN.budget
    result = _attend_split(q, first, last, low, count, blocks, left_out, kv, lane, kv_head, PLAN, True)
    top, total, out = result
    part = (row.to(tl.int64) * PLAN.heads + head) * tl.num_programs(2) + split
    tl.store(tops + part, top, mask=inside)
    tl.store(totals + part, total, mask=inside)
    d = tl.arange(0, PLAN.kv.dim)
    tl.store(outs + part[:, None] * PLAN.kv.dim + d[None], out, mask=inside[:, None])


@kernel
def _merge_kernel(
    rows, parts, gate, gate_strides, result, codes, scales,
    SPLITS: tl.constexpr, PLAN: tl.constexpr, AHEAD: tl.constexpr, WIDTH: tl.constexpr,
    QUANTIZE: tl.constexpr,
):  # fmt: skip
    """Merge the splits of WIDTH values of a head of a row, AHEAD loaded at a time, and quantise them."""
    begin_kernel()
    row, head = tl.program_id(0), tl.program_id(1)
    one, d = tl.arange(0, 1), tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    lane, position = tl.load(rows[0] + row), tl.load(rows[1] + row)
    gates = _load_gate(gate, gate_strides, row + one, head, d, one == 0)
    if tl.minimum(lane, position) < 0:  # no position is: both are loaded before the branch
        return
    low, count, _, length = _spans(position, PLAN)
    splits = tl.cdiv(count, length) - low // length
    DIM: tl.constexpr = PLAN.kv.dim
    part = (row.to(tl.int64) * PLAN.heads + head) * SPLITS + one
    merged = _nothing(1, WIDTH)
    for start in range(0, splits, AHEAD):
        ahead = ()
        for split in tl.static_range(AHEAD):
            at = part + start + split
            exists = one + start + split < splits
            top = tl.load(parts[0] + at, mask=exists, other=_NOTHING)
            total = tl.load(parts[1] + at, mask=exists, other=0.0)
            out = tl.load(parts[2] + at[:, None] * DIM + d[None], mask=exists[:, None], other=0.0)
            ahead = ahead + ((top, total, out),)  # noqa: RUF005 - Triton unpacks no tuple
        for split in tl.static_range(AHEAD):
            merged = _merge(merged, ahead[split])
    out = _store_result(merged, gates, result, row + one, head, d, one == 0, PLAN, gate is not None)
    if QUANTIZE:
        code, scale = quantize_blocks(out)
        block = (row.to(tl.int64) * PLAN.heads + head) * (DIM // WIDTH) + tl.program_id(2)
        tl.store(codes + block * WIDTH + tl.arange(0, WIDTH)[None], code)
        tl.store(scales + block + one[:, None], scale)


@kernel
def _prompt_kernel(
    q,
    rows,
    num_rows,
    scale,
    blocks,
    gate,
    gate_strides,
    result,
    kv,
    PLAN: tl.constexpr,
    TOKENS: tl.constexpr,
    MEMBERS: tl.constexpr,
):
    """TOKENS rows, from a position that is a multiple of it on, for the query heads of one key-value head."""
    GROUP: tl.constexpr = PLAN.heads // PLAN.kv.kv_heads
    kv_head = tl.program_id(1)
    lane, begin = tl.load(rows[0]), tl.load(rows[1])
    if lane < 0:
        return
    start = (begin // TOKENS + tl.program_id(0)) * TOKENS
    member = tl.arange(0, TOKENS * MEMBERS)
    token, head = start + member // MEMBERS, kv_head * GROUP + member % MEMBERS
    row = token - begin
    inside = (row >= 0) & (row < num_rows) & (member % MEMBERS < GROUP)
    inside = inside & (tl.load(rows[0] + row, mask=inside, other=-1) == lane)
    last_token = tl.max(tl.where(inside, token, -1), 0)
    if last_token < 0:
        return
    # Rows of a tile have splits of one length: it changes at multiples of TOKENS only.
    _, last, left_out, length = _spans(last_token, PLAN)
    low, count, _, _ = _spans(token, PLAN)
    first_split = tl.min(tl.where(inside, low, last), 0) // length
    q = (q + (row.to(tl.int64) * PLAN.heads + head) * PLAN.kv.dim, inside, scale)
    blocks += tl.maximum(start - begin, 0).to(tl.int64) * PLAN.budget
    merged = _nothing(TOKENS * MEMBERS, PLAN.kv.dim)
    for split in range(first_split, tl.cdiv(last, length)):
        first, end = split * length, tl.minimum((split + 1) * length, last)
        part = _attend_split(q, first, end, low, count, blocks, left_out, kv, lane, kv_head, PLAN, False)
        merged = _merge(merged, part)
    d = tl.arange(0, PLAN.kv.dim)
    gates = _load_gate(gate, gate_strides, row, head, d, inside)
    _store_result(merged, gates, result, row, head, d, inside, PLAN, gate is not None)


class Parts(NamedTuple):
    """Scratch of `attend_window`: float32 `[rows, heads, splits]`, the last one `[..., dim]`."""

    tops: torch.Tensor
    totals: torch.Tensor
    outs: torch.Tensor

    @classmethod
    def new(cls, plan: Plan, rows: int, device: torch.device) -> "Parts":
        shape = (rows, plan.heads, plan.splits)
        return cls(*(torch.empty(*shape, *last, device=device) for last in ((), (), (plan.kv.dim,))))


def plan_attention(
    kv: PagedKV,
    heads: int,
    window: int = 0,
    block: int = 0,
    budget: int = 0,
    min_split: int = MIN_SPLIT,
    max_splits: int = MAX_SPLITS,
) -> Plan:
    """How `heads` query heads attend to pages, see `Plan`."""
    keys = kv.shape.lane_pages * kv.shape.page
    if block:
        keys = min(keys, (budget + 1) * block - 1)
    if window:
        keys = min(keys, window)
    doublings = max(0, cdiv(keys, min_split * max_splits) - 1).bit_length()
    splits = min(max_splits, cdiv(keys, min_split)) + (window > 0)
    tile = SMALL_TILE if has_few_registers() else TILE
    return Plan(kv.shape, heads, window, block, budget, min_split, doublings, max_splits, splits, tile)


def attend_window(
    q: torch.Tensor,
    lane: torch.Tensor,
    position: torch.Tensor,
    kv: PagedKV,
    plan: Plan,
    scale: float,
    parts: Parts,
    out: torch.Tensor,
    gate: torch.Tensor | None = None,
    blocks: torch.Tensor | None = None,
    quantized: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Attention of a window's rows, of any lanes; their own keys and values are in their pages already.

    Args:
        q: float32 `[rows, heads, dim]`, normalised and rotated (`kv.append_kv`).
        lane, position: int32 `[rows]`; nothing is written for rows of lane -1.
        kv: the layer's pages.
        plan: see `plan_attention`.
        scale: factor of the scores.
        parts: scratch of at least as many rows.
        out: float32 `[rows, heads * dim]`, written.
        gate: float32 `[rows, heads, dim]`, any strides but the last; its sigmoid multiplies the result.
        blocks: int32 `[rows, budget]`, chosen blocks ascending, for a plan with blocks. Rows that have no
            more complete blocks than the budget attend to all, and what is written here does not matter.
        quantized: int8 codes and float32 scales of `out`, to fill in; where 128 divides dim.
    """
    rows = q.shape[0]
    if quantized is not None and plan.kv.dim % 128:
        raise ValueError(f"a head of {plan.kv.dim} values is no whole blocks of 128 activations")
    codes, scales = quantized or (out, out)
    members = max(16, triton.next_power_of_2(plan.heads // plan.kv.kv_heads))
    strides = None if gate is None else (gate.stride(0), gate.stride(1))
    _window_kernel[(rows, plan.kv.kv_heads, plan.splits)](
        q, (lane, position), scale * _LOG2_E, lane if blocks is None else blocks, parts, kv, PLAN=plan,
        MEMBERS=members, num_warps=warps(THREADS), num_stages=1, **loads_together(), **step_launch(),
    )  # fmt: skip
    width = min(plan.kv.dim, 128)
    _merge_kernel[(rows, plan.heads, plan.kv.dim // width)](
        (lane, position), parts, gate, strides, out, codes, scales, SPLITS=plan.splits, PLAN=plan,
        AHEAD=min(AHEAD, plan.splits), WIDTH=width, QUANTIZE=quantized is not None, num_warps=1,
        **loads_together(), **step_launch(),
    )  # fmt: skip


def attend_prompt(
    q: torch.Tensor,
    lane: torch.Tensor,
    position: torch.Tensor,
    kv: PagedKV,
    plan: Plan,
    scale: float,
    out: torch.Tensor,
    gate: torch.Tensor | None = None,
    blocks: torch.Tensor | None = None,
) -> None:
    """Attention of many rows of one lane, in the same bits as `attend_window`'s, whose arguments these are.

    `lane` may end with rows of lane -1, for which nothing is written.
    """
    rows = q.shape[0]
    members = triton.next_power_of_2(plan.heads // plan.kv.kv_heads)
    # In sparse attention every row has keys of its own. Matrix units take 16 rows.
    tokens = 1 if plan.block else max(PROMPT_ROWS // members, 1)
    members = max(members, 16 // tokens)
    strides = None if gate is None else (gate.stride(0), gate.stride(1))
    _prompt_kernel[(cdiv(rows + tokens - 1, tokens), plan.kv.kv_heads)](
        q,
        (lane, position),
        rows,
        scale * _LOG2_E,
        lane if blocks is None else blocks,
        gate,
        strides,
        out,
        kv,
        PLAN=plan, TOKENS=tokens, MEMBERS=members, num_warps=warps(THREADS), num_stages=1,
        enable_fp_fusion=False,
    )  # fmt: skip
