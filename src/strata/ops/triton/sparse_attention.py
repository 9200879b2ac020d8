"""The indexer of QSA on the card: index queries, and the keys of blocks as they become complete.

See `layers/sparse_attention.py`. A block's key is made of its tokens' raw index keys. Those of a lane's last
tokens are kept in a ring; a token's slot is its position modulo the ring: a draft's row is overwritten
by the row that takes its position, and the block that a rejected row completed is completed again by it.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import kernel
from strata.ops.triton.kv import PagedKV, page_of
from strata.ops.triton.rotary import load_head

RING = 32  # tokens: a window, and the open block before it
MAX_WINDOW = 16  # rows


@triton.jit
def _raw_key(raw, ring, lanes, row, lane, token, back, stride, d, DIM: tl.constexpr, RING: tl.constexpr):
    """The raw index key of the token `back` before a row's own: of a row of this step, or from the ring."""
    is_here = tl.load(lanes + row - back, mask=row >= back, other=-1) == lane
    if is_here:
        key = raw + (row - back) * stride
    else:
        key = ring + (lane.to(tl.int64) * RING + (token - back) % RING) * DIM
    return tl.load(key + d)


@triton.jit
def _keep(raw, ring, row, lane, token, stride, DIM: tl.constexpr, RING: tl.constexpr):
    d = tl.arange(0, DIM)
    tl.store(ring + (lane.to(tl.int64) * RING + token % RING) * DIM + d, tl.load(raw + row * stride + d))


@kernel
def _index_kernel(
    q,
    raw,
    rows,
    rope,
    block_rope,
    norms,
    epsilon,
    state,
    page_table,
    q_out,
    strides,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    SHAPE: tl.constexpr,
    PAIRS: tl.constexpr,
    RING: tl.constexpr,
    KEEPS: tl.constexpr,
):
    """One index query of a row; or, last, its raw key and the block that it completes."""
    begin_kernel()
    row, head, d = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, DIM)
    lane = tl.load(rows[0] + row)
    if lane < 0:
        return
    if head < HEADS:
        x = q + row * strides[0] + head * DIM
        cos, sin = rope[0] + row * PAIRS, rope[1] + row * PAIRS
        x = load_head(x, norms[0], cos, sin, epsilon, DIM, PAIRS, False)
        tl.store(q_out + (row * HEADS + head) * DIM + d, x)
    else:
        token = tl.load(rows[1] + row)
        if KEEPS:
            _keep(raw, state.ring, row, lane, token, strides[1], DIM, RING)
        if (token + 1) % BLOCK == 0:
            is_first, turns = d < PAIRS, d < 2 * PAIRS
            partner = tl.where(turns, tl.where(is_first, d + PAIRS, d - PAIRS), d)
            mean, other = tl.zeros([DIM], tl.float32), tl.zeros([DIM], tl.float32)
            for i in tl.static_range(BLOCK):
                back = BLOCK - 1 - i
                mean += _raw_key(raw, state.ring, rows[0], row, lane, token, back, strides[1], d, DIM, RING)
                other += _raw_key(
                    raw, state.ring, rows[0], row, lane, token, back, strides[1], partner, DIM, RING
                )
            mean, other = mean / BLOCK, other / BLOCK
            factor = 1 / tl.sqrt(tl.sum(mean * mean, 0) / DIM + epsilon)
            mean, other = mean * factor * tl.load(norms[1] + d), other * factor * tl.load(norms[1] + partner)
            pair = row * PAIRS + tl.where(is_first, d, d - PAIRS)
            c = tl.load(block_rope[0] + pair, mask=turns, other=1.0)
            s = tl.load(block_rope[1] + pair, mask=turns, other=0.0)
            key = mean * c + tl.where(is_first, -other, other) * s
            key = tl.minimum(tl.maximum(key, -65504.0), 65504.0).to(tl.float16)
            page = page_of(page_table, lane, token, True, SHAPE)
            cell = page * (SHAPE.page // BLOCK) + token % SHAPE.page // BLOCK
            tl.store(state.block_keys + cell * DIM + d, key)


@kernel
def _keep_kernel(
    raw, rows, num_rows, ring, stride, DIM: tl.constexpr, BLOCK: tl.constexpr, RING: tl.constexpr
):
    """Keep the raw keys of the last BLOCK rows of a lane."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.load(rows[0] + row)
    if lane < 0:
        return
    later = tl.load(rows[0] + row + BLOCK, mask=row + BLOCK < num_rows, other=-1)
    if later != lane:
        _keep(raw, ring, row, lane, tl.load(rows[1] + row), stride, DIM, RING)


class IndexState(NamedTuple):
    """What the indexer of one layer keeps; kernels take it whole.

    Attributes:
        ring: float32 `[lanes, RING, dim]`, raw index keys of a lane's last tokens.
        block_keys: float16 `[pages, blocks of a page, dim]`, in the pages of the layer's keys and values.
    """

    ring: torch.Tensor
    block_keys: torch.Tensor

    @classmethod
    def new(cls, kv: PagedKV, block: int, dim: int) -> "IndexState":
        """Empty, for blocks of `block` tokens, a divisor of the page."""
        pages, device = kv.k.shape[0], kv.k.device
        ring = torch.zeros(kv.page_table.shape[0], RING, dim, device=device)
        return cls(ring, torch.zeros(pages, kv.shape.page // block, dim, dtype=torch.float16, device=device))


def append_index(
    q: torch.Tensor,
    raw: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    block_rope: tuple[torch.Tensor, torch.Tensor],
    lane: torch.Tensor,
    position: torch.Tensor,
    kv: PagedKV,
    state: IndexState,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    epsilon: float,
    q_out: torch.Tensor,
) -> None:
    """Index queries of the rows, ready for `select_blocks`, and the keys of the blocks that they complete.

    Args:
        q: float32 `[rows, heads * dim]`; rows of `q` and `raw` may be parts of longer ones.
        raw: float32 `[rows, dim]`, index keys as projected.
        rope: cos and sin of the rows' positions, float32 `[rows, pairs]`, see `rotary.angles`.
        block_rope: those of `position - (block - 1)`, where a block that ends at a row begins.
        lane, position: int32 `[rows]`; nothing is written for rows of lane -1.
        kv: whose page table says where a lane's blocks are.
        state: read and written.
        q_norm, k_norm: float32 `[dim]`.
        epsilon: of the norms.
        q_out: float32 `[rows, heads, dim]`, written.
    """
    rows, heads, dim = q_out.shape
    block = kv.shape.page // state.block_keys.shape[1]
    is_window = rows <= MAX_WINDOW
    _index_kernel[(rows, heads + 1)](
        q,
        raw,
        (lane, position),
        rope,
        block_rope,
        (q_norm, k_norm),
        epsilon,
        state,
        kv.page_table,
        q_out,
        (q.stride(0), raw.stride(0)),
        HEADS=heads,
        DIM=dim,
        BLOCK=block,
        SHAPE=kv.shape,
        PAIRS=rope[0].shape[1],
        RING=RING,
        KEEPS=is_window,
        num_warps=1,
        **step_launch(),
    )
    if not is_window:
        # In a kernel of its own: the last rows may take slots that the first row's block is still made of.
        _keep_kernel[(rows,)](
            raw,
            (lane, position),
            rows,
            state.ring,
            raw.stride(0),
            DIM=dim,
            BLOCK=block,
            RING=RING,
            num_warps=1,
            enable_fp_fusion=False,
        )
