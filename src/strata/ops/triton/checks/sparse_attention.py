"""The indexer, the choice of blocks, and attention over them, against the reference's parts."""

from collections.abc import Iterator

import torch

from strata.ops.attention import attend
from strata.ops.rms_norm import rms_norm
from strata.ops.rotary import rotate
from strata.ops.triton.attention import Parts, attend_prompt, attend_window, plan_attention
from strata.ops.triton.block_selection import Scratch, select_blocks
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.checks.attention import (
    Heads,
    filled_pages,
    lane_values,
    page_table,
    random,
    run_prompt,
    run_window,
    small_plan,
)
from strata.ops.triton.kv import PagedKV
from strata.ops.triton.rotary import angles
from strata.ops.triton.sparse_attention import RING, IndexState, append_index

_EPSILON = 1e-6
_BLOCK, _PAIRS, _DIM, _HEADS = 4, 8, 32, 1
_Cases = Iterator[tuple[str, torch.Tensor, torch.Tensor]]


class _Indexer:
    """Index queries and keys of one lane of two, step by step, on the card and by the reference."""

    def __init__(self, device: torch.device):
        self.device = device
        table = page_table(2, 4, device)
        self.kv = PagedKV.new(table, 8, 1, 16, 16, torch.float16)
        self.state = IndexState.new(self.kv, _BLOCK, _DIM)
        self.norms = random(2, _DIM, seed=11) + 1
        self.inv_freq = 1e4 ** -(torch.arange(_PAIRS) / _PAIRS)
        self.raw = torch.zeros(64, _DIM)  # of the tokens that stand

    def step(self, first: int, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows from position `first` on; queries as made, and as they should be."""
        q, raw = random(rows, _HEADS * _DIM, seed=seed), random(rows, _DIM, seed=seed + 1)
        self.raw[first : first + rows] = raw
        lane = torch.ones(rows, dtype=torch.int32, device=self.device)
        position = torch.arange(first, first + rows, dtype=torch.int32, device=self.device)
        rope, block_rope = torch.empty(2, 2, rows, _PAIRS, device=self.device)
        angles(position, self.inv_freq.to(self.device), 1.0, *rope)
        angles(position, self.inv_freq.to(self.device), 1.0, *block_rope, back=_BLOCK - 1)
        out = torch.empty(rows, _HEADS, _DIM, device=self.device)
        append_index(
            q.to(self.device),
            raw.to(self.device),
            tuple(rope),
            tuple(block_rope),
            lane,
            position,
            self.kv,
            self.state,
            *self.norms.to(self.device),
            _EPSILON,
            out,
        )
        want = rms_norm(q.view(rows, _HEADS, _DIM), self.norms[0], _EPSILON)
        return out, self._rotated(want, position.cpu())

    def _rotated(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        theta = position[:, None] * self.inv_freq
        return rotate(x, theta.cos(), theta.sin())

    def block_keys(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys of the complete blocks of `tokens` tokens: as they are, and as they should be."""
        blocks = tokens // _BLOCK
        got = self.state.block_keys[self.kv.page_table[1].long()].flatten(0, 1)[:blocks].float()
        pooled = self.raw[: blocks * _BLOCK].view(blocks, _BLOCK, _DIM).mean(1)
        want = rms_norm(pooled, self.norms[1], _EPSILON)[:, None]
        return got, self._rotated(want, torch.arange(blocks) * _BLOCK)[:, 0]


def _compare_index(device: torch.device) -> _Cases:
    indexer = _Indexer(device)
    tokens = 0
    for step, (rows, accepted) in enumerate([(19, 19), (6, 1), (7, 3), (1, 1), (4, 4), (17, 17)]):
        got, want = indexer.step(tokens, rows, seed=20 + 2 * step)
        yield f"queries, {rows} rows at {tokens}", got, want
        tokens += accepted
        # float16 keys: half a step of its last bit
        got, want = indexer.block_keys(tokens)
        far = (got.cpu() - want).abs() - want.abs() * 2**-11
        yield f"block keys of {tokens}", far.clamp(min=1e-6), torch.full_like(far, 1e-6)


def _choose(scores: torch.Tensor, budget: int) -> torch.Tensor:
    """The best of `scores` `[n]`, ties the lowest, ascending."""
    order = scores.argsort(descending=True, stable=True)
    return order[:budget].sort().values.int()


def _compare_selection(device: torch.device) -> _Cases:
    """Rows of two lanes; keys whose scores tie by the dozen, since they are few integers."""
    budget, dim, pages = 5, 16, 18
    kv = PagedKV.new(page_table(2, pages, device), 2 * pages, 1, 16, 16, torch.float16)
    keys = torch.randint(-1, 2, (2 * pages, 4, dim), generator=torch.Generator().manual_seed(3)).half()
    q = torch.randint(-1, 2, (7, 2, dim), generator=torch.Generator().manual_seed(4)).float()
    q[2] = 0  # all scores are zero
    lane = torch.tensor([1, 1, 1, 0, -1, 0, 0], dtype=torch.int32)
    position = torch.tensor([285, 286, 287, 23, 9, 26, 27], dtype=torch.int32)
    for rows, segment in ((4, 128), (7, 16)):
        blocks = torch.full((7, budget), -1, dtype=torch.int32, device=device)
        scratch = Scratch(rows, pages * 4, budget, device, segment)
        select_blocks(
            q.to(device), lane.to(device), position.to(device), keys.to(device), kv, scratch, blocks
        )
        want = torch.full_like(blocks, -1, device="cpu")
        for row, (which, at) in enumerate(zip(lane.tolist(), position.tolist(), strict=True)):
            complete = (at + 1) // 4
            if which >= 0 and complete > budget:
                mine = keys[kv.page_table[which].long().cpu()].flatten(0, 1)[:complete].float()
                want[row] = _choose((q[row] @ mine.T).relu().sum(0), budget)
        yield f"{rows} rows at once, segments of {segment}", blocks, want


def _compare_sparse(device: torch.device) -> _Cases:
    """Attention over chosen blocks and the tail; of all blocks, it is dense attention."""
    shape = Heads(6, 2, 32)
    kv = filled_pages(shape, 1, 8, 16, device)
    budget, first, rows = 20, 83, 2
    lane = torch.zeros(rows, dtype=torch.int32, device=device)
    position = torch.arange(first, first + rows, dtype=torch.int32, device=device)
    q, gate = random(2, rows, shape.heads, shape.dim, seed=7).to(device)
    picks = [
        torch.randperm((first + i + 1) // 4, generator=torch.Generator().manual_seed(i)) for i in range(rows)
    ]
    blocks = torch.stack([pick[:budget].sort().values for pick in picks]).int()
    plan = small_plan(kv, shape, block=4, budget=budget)
    got = run_window(q, lane, position, kv, plan, gate, blocks.to(device))
    k, v = lane_values(kv, 0)
    want = torch.empty_like(got, device="cpu")
    for row in range(rows):
        tokens = (blocks[row][:, None] * 4 + torch.arange(4)).flatten().long()
        at = first + row + 1
        tokens = torch.cat([tokens, torch.arange(at // 4 * 4, at)])
        x = attend(q[row : row + 1].cpu(), k[tokens], v[tokens], shape.dim**-0.5)
        want[row] = (x[0] * gate[row].cpu().sigmoid()).flatten()
    yield "window", got, want


def _compare_sparse_bits(device: torch.device) -> _Cases:
    shape = Heads(2, 1, 16)
    kv = filled_pages(shape, 1, 8, 16, device)
    lane = torch.zeros(2, dtype=torch.int32, device=device)
    position = torch.tensor([82, 83], dtype=torch.int32, device=device)
    q, gate = random(2, 2, shape.heads, shape.dim, seed=7).to(device)
    dense = run_window(q, lane, position, kv, small_plan(kv, shape), gate)
    blocks = torch.arange(21, dtype=torch.int32).expand(2, -1).contiguous().to(device)
    wide = small_plan(kv, shape, block=4, budget=21)
    unused = torch.full_like(blocks, 1 << 30)
    yield "all blocks", run_window(q, lane, position, kv, wide, gate, unused), dense
    sparse = small_plan(kv, shape, block=4, budget=20)
    window = run_window(q, lane, position, kv, sparse, gate, blocks[:, :20].contiguous())
    yield "all but the last", window[:1], dense[:1]
    blocks = blocks[:, 1:].contiguous()
    window = run_window(q, lane, position, kv, sparse, gate, blocks)
    yield "prompt", run_prompt(q, lane, position, kv, sparse, gate, blocks), window


def _launch(rows: int, tokens: int, dtype: torch.dtype, prompt: bool = False) -> None:
    """QSA of Qwen3.8-Flash-Next."""
    heads, dim, kv_heads, page, budget = 24, 256, 2, 16, 512
    pages = tokens // page
    cells = [meta(pages, kv_heads, page, dim, dtype=dtype) for _ in range(2)]
    scales = [meta(pages, kv_heads, page, dim // 64, dtype=torch.float16) for _ in range(2)]
    kv = PagedKV(*cells, meta(4, pages, dtype=torch.int32), *(scales if dtype == torch.int8 else ()))
    state = IndexState(meta(4, RING, 128), meta(pages, page // 4, 128, dtype=torch.float16))
    ints, cos, q_out = meta(rows, dtype=torch.int32), meta(rows, 32), meta(rows, 4, 128)
    q, raw = meta(rows, 640).split([512, 128], 1)
    norm = meta(128)
    append_index(q, raw, (cos, cos), (cos, cos), ints, ints, kv, state, norm, norm, _EPSILON, q_out)
    blocks = meta(rows, budget, dtype=torch.int32)
    select_blocks(q_out, ints, ints, state.block_keys, kv, Scratch(rows, tokens // 4, budget, "meta"), blocks)
    plan = plan_attention(kv, heads, block=4, budget=budget)
    q, out, gate = meta(rows, heads, dim), meta(rows, heads * dim), meta(rows, heads, 2, dim)[:, :, 1]
    if prompt:
        attend_prompt(q, ints, ints, kv, plan, dim**-0.5, out, gate, blocks)
    else:
        parts = Parts(*(meta(rows, heads, plan.splits, *last) for last in ((), (), (dim,))))
        attend_window(q, ints, ints, kv, plan, dim**-0.5, parts, out, gate, blocks)


CHECKS = [
    Check("append_index", _compare_index, 1e-5),
    Check("select_blocks", _compare_selection),
    Check("attend blocks", _compare_sparse, 1e-5),
    Check("attend blocks bits", _compare_sparse_bits),
]
LAUNCHES = [
    Launch("sparse window fp16", lambda: _launch(4, 1 << 18, torch.float16)),
    Launch("sparse window int8", lambda: _launch(4, 1 << 18, torch.int8)),
    Launch("sparse prompt fp16", lambda: _launch(256, 1 << 18, torch.float16, prompt=True)),
    Launch("sparse prompt int8", lambda: _launch(256, 1 << 18, torch.int8, prompt=True)),
]
