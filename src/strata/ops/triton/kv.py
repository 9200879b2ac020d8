"""Keys and values in pages, and what writes them: normalise, rotate, append.

A lane's tokens lie in pages of a pool that all lanes share; `page_table[lane, i]` is the page of its tokens
`i * page` and following. A page holds float16, or int8 codes with a float16 scale for 64 values; such a value
is `float16(code * scale)`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.intrinsics import to_half
from strata.ops.triton.kernel import kernel
from strata.ops.triton.rotary import load_head

GROUP = 64  # values that share a scale


class KVShape(NamedTuple):
    """What is fixed about a layer's pages when a kernel is compiled."""

    kv_heads: int
    page: int
    dim: int
    lane_pages: int
    quantised: bool


class PagedKV(NamedTuple):
    """Keys and values of one layer; kernels take it whole.

    Attributes:
        k, v: float16 or int8 `[pages, kv_heads, page, dim]`; `dim` is a power of two, at least 16.
        page_table: int32 `[lanes, pages of a lane]`, the same for all layers.
        k_scales, v_scales: float16 `[pages, kv_heads, page, ceil(dim / 64)]` beside int8.
    """

    k: torch.Tensor
    v: torch.Tensor
    page_table: torch.Tensor
    k_scales: torch.Tensor | None = None
    v_scales: torch.Tensor | None = None

    @classmethod
    def new(
        cls, page_table: torch.Tensor, pages: int, kv_heads: int, page: int, dim: int, dtype: torch.dtype
    ) -> "PagedKV":
        """Empty pages on the device of `page_table`; `dtype` is float16 or int8."""
        shape, device = (pages, kv_heads, page), page_table.device
        k, v = (torch.zeros(*shape, dim, dtype=dtype, device=device) for _ in range(2))
        if dtype != torch.int8:
            return cls(k, v, page_table)
        groups = -(-dim // GROUP)
        scales = [torch.zeros(*shape, groups, dtype=torch.float16, device=device) for _ in range(2)]
        return cls(k, v, page_table, *scales)

    @property
    def bytes_per_token(self) -> int:
        """Of keys, values and scales."""
        pages, _, page, _ = self.k.shape
        return sum(t.nbytes for t in (self.k, self.v, self.k_scales, self.v_scales) if t is not None) // (
            pages * page
        )

    @property
    def shape(self) -> KVShape:
        _, kv_heads, page, dim = self.k.shape
        return KVShape(kv_heads, page, dim, self.page_table.shape[1], self.k_scales is not None)


@triton.jit
def page_of(page_table, lane, token, mask, SHAPE: tl.constexpr):
    """int64: the page that holds `token` of `lane`."""
    entry = lane.to(tl.int64) * SHAPE.lane_pages + token // SHAPE.page
    return tl.load(page_table + entry, mask=mask, other=0).to(tl.int64)


@triton.jit
def cell_of(page_table, lane, token, mask, kv_head, SHAPE: tl.constexpr):
    """int64: which row of `[pages * kv_heads * page, dim]` holds a head of `token` of `lane`."""
    page = page_of(page_table, lane, token, mask, SHAPE)
    return (page * SHAPE.kv_heads + kv_head) * SHAPE.page + token % SHAPE.page


@triton.jit
def load_cells(pages, scales, cell, mask, SHAPE: tl.constexpr):
    """What `cell_values` makes float16 `[cells, dim]` of; zero where `mask` is not."""
    DIM: tl.constexpr = SHAPE.dim
    if SHAPE.quantised:
        GROUPS: tl.constexpr = (DIM + 63) // 64
        WIDTH: tl.constexpr = DIM // GROUPS
        group, inside = tl.arange(0, GROUPS), tl.arange(0, WIDTH)
        at = cell[:, None, None] * DIM + (group[:, None] * WIDTH + inside[None, :])[None]
        return _load_both(
            pages + at, scales + cell[:, None] * GROUPS + group[None], mask[:, None, None], mask[:, None]
        )
    else:
        at = pages + cell[:, None] * DIM + tl.arange(0, DIM)[None]
        return (tl.load(at, mask=mask[:, None], other=0.0),)


@triton.jit
def cell_values(cells, SHAPE: tl.constexpr):
    """float16 `[cells, dim]`, of what `load_cells` has loaded."""
    if SHAPE.quantised:
        x = to_half(cells[0]) * cells[1][:, :, None]
        return tl.reshape(x, [cells[0].shape[0], SHAPE.dim])
    else:
        return cells[0]


@triton.jit
def load_part(pages, scales, cell, mask, part, WIDTH: tl.constexpr, SHAPE: tl.constexpr):
    """What `part_values` makes float16 `[WIDTH, cells]` of: values `part * WIDTH` on; WIDTH share a scale."""
    at = pages + cell[None] * SHAPE.dim + (part * WIDTH + tl.arange(0, WIDTH))[:, None]
    if SHAPE.quantised:
        GROUPS: tl.constexpr = (SHAPE.dim + 63) // 64
        return _load_both(at, scales + cell * GROUPS + part * WIDTH // 64, mask[None], mask)
    else:
        return (tl.load(at, mask=mask[None], other=0.0),)


@triton.jit
def part_values(part, SHAPE: tl.constexpr):
    """float16 `[WIDTH, cells]`, of what `load_part` has loaded."""
    return to_half(part[0]) * part[1][None] if SHAPE.quantised else part[0]


@triton.jit
def _load_both(codes, scales, is_code, is_scale):
    """Codes and scales. What is only loaded, Triton would convert for its use at once, and wait for it.

    Codes are used by `to_half` in the layout in which they are loaded; to choose them would unpack bytes.
    """
    code, scale = tl.load(codes, is_code, other=0), tl.load(scales, is_scale, other=0.0)
    return code, tl.where(is_scale, scale, 0.0)


@triton.jit
def _store_cell(x, pages, scales, cell, SHAPE: tl.constexpr):
    """Write float32 `[dim]`."""
    DIM: tl.constexpr = SHAPE.dim
    if SHAPE.quantised:
        GROUPS: tl.constexpr = (DIM + 63) // 64
        WIDTH: tl.constexpr = DIM // GROUPS
        x = tl.reshape(x, [GROUPS, WIDTH])
        group, inside = tl.arange(0, GROUPS), tl.arange(0, WIDTH)
        scale = tl.div_rn(tl.max(tl.abs(x), 1), tl.full([GROUPS], 127.0, tl.float32)).to(tl.float16)
        divisor = tl.where(scale == 0, 1.0, scale.to(tl.float32))
        quotient = tl.div_rn(x, tl.broadcast_to(divisor[:, None], [GROUPS, WIDTH]))
        quotient = tl.minimum(tl.maximum(quotient, -127.0), 127.0)
        codes = (quotient + 12582912.0) - 12582912.0  # 1.5 * 2**23: rounds to an integer, half to even
        codes = tl.where(scale[:, None] == 0, 0.0, codes)
        tl.store(pages + cell * DIM + group[:, None] * WIDTH + inside[None, :], codes.to(tl.int8))
        tl.store(scales + cell * GROUPS + group, scale)
    else:
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
        tl.store(pages + cell * DIM + tl.arange(0, DIM), x.to(tl.float16))


@kernel
def _append_kernel(
    q,
    k,
    v,
    rope,
    rows,
    norms,
    epsilon,
    q_out,
    kv,
    strides,
    HEADS: tl.constexpr,
    Q_WIDTH: tl.constexpr,
    SHAPE: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """One head of a row: HEADS of q, then the heads of k, then of v."""
    begin_kernel()
    DIM: tl.constexpr = SHAPE.dim
    lane, position = rows
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    which = tl.load(lane + row)
    if which < 0:
        return
    cos, sin = rope[0] + row * PAIRS, rope[1] + row * PAIRS
    if head < HEADS:
        x = q + row * strides[0] + head * Q_WIDTH
        x = load_head(x, norms[0], cos, sin, epsilon, DIM, PAIRS, INTERLEAVED)
        tl.store(q_out + (row * HEADS + head) * DIM + tl.arange(0, DIM), x)
    else:
        kv_head = (head - HEADS) % SHAPE.kv_heads
        cell = cell_of(kv.page_table, which, tl.load(position + row), True, kv_head, SHAPE)
        if head < HEADS + SHAPE.kv_heads:
            x = k + row * strides[1] + kv_head * DIM
            x = load_head(x, norms[1], cos, sin, epsilon, DIM, PAIRS, INTERLEAVED)
            _store_cell(x, kv.k, kv.k_scales, cell, SHAPE)
        else:
            x = tl.load(v + row * strides[2] + kv_head * DIM + tl.arange(0, DIM))
            _store_cell(x, kv.v, kv.v_scales, cell, SHAPE)


def append_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    lane: torch.Tensor,
    position: torch.Tensor,
    kv: PagedKV,
    q_out: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    epsilon: float = 0.0,
    interleaved: bool = False,
) -> None:
    """Write the rows' keys and values into their pages, and their queries, ready for attention, to `q_out`.

    Args:
        q: float32 `[rows, heads * dim]`, or `[rows, heads * 2 * dim]`: `[query | gate]` of each head. The
            gate stays where it is (`gate_of`). Rows of `q`, `k` and `v` may be parts of longer ones.
        k, v: float32 `[rows, kv_heads * dim]`.
        cos, sin: float32 `[rows, pairs]`, see `rotary.angles`.
        lane, position: int32 `[rows]`; nothing is written for rows of lane -1.
        kv: the layer's pages.
        q_out: float32 `[rows, heads, dim]`, written.
        q_norm, k_norm: float32 `[dim]`, RMS norms of each head before the rotation.
        epsilon: of the norms.
        interleaved: pairing of the rotation, see `ops.rotary.rotate`.
    """
    rows, heads, _ = q_out.shape
    _append_kernel[(rows, heads + 2 * kv.shape.kv_heads)](
        q,
        k,
        v,
        (cos, sin),
        (lane, position),
        (q_norm, k_norm),
        epsilon,
        q_out,
        kv,
        (q.stride(0), k.stride(0), v.stride(0)),
        HEADS=heads,
        Q_WIDTH=q.shape[1] // heads,
        SHAPE=kv.shape,
        PAIRS=cos.shape[1],
        INTERLEAVED=interleaved,
        num_warps=1,
        **step_launch(),
    )


def gate_of(q: torch.Tensor, heads: int) -> torch.Tensor:
    """The gates, a view `[rows, heads, dim]` of `q` `[rows, heads * 2 * dim]`."""
    return q.unflatten(1, (heads, 2, -1))[:, :, 1]
