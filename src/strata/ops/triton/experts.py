"""The experts of a layer for the rows of a window, wherever their planes lie: the bits of docs/NUMERICS.md.

Five launches: entries grouped by expert, so that its weights are read once (not for a single row); gate and
up; SwiGLU, and its result quantised; down; the sum over slots. Nothing here knows whether an address is in
the card's own memory or in the host's.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.triton.activation import swiglu
from strata.ops.triton.expert_groups import Groups, group_entries
from strata.ops.triton.planes import ACTIVATION_BLOCK, TILE_ROWS, fact, plane_bytes, tile_bytes
from strata.ops.triton.quantize import quantize_blocks
from strata.ops.triton.quantized_matmul import codebook
from strata.ops.triton.tile_product import (
    num_parts,
    num_terms,
    one_warp,
    ordered_sum,
    rows_of_tile,
    spans_of_part,
    store_terms,
    tile_product,
)

_ROWS = tl.constexpr(TILE_ROWS)
_BLOCK = tl.constexpr(ACTIVATION_BLOCK)


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """What an expert's record holds: gate and up planes `[ff, width]`, then down planes `[width, ff]`.

    Args:
        gate, up, down: ggml's names of the formats.
    """

    width: int
    ff: int
    gate: str
    up: str
    down: str

    @property
    def up_at(self) -> int:
        """Byte of a record where the planes of up begin."""
        return plane_bytes(self.gate, self.ff, self.width)

    @property
    def down_at(self) -> int:
        """Byte of a record where the planes of down begin."""
        return self.up_at + plane_bytes(self.up, self.ff, self.width)

    @property
    def terms(self) -> int:
        """The most terms that a product of gate or up has."""
        return max(num_terms(self.gate, self.width), num_terms(self.up, self.width))

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, a multiple of 64."""
        return self.down_at + plane_bytes(self.down, self.width, self.ff)


@triton.jit
def _group_of(lists, group, MANY: tl.constexpr):
    """A group's expert, the place of its first entry in the order, and how many there are.

    A single row needs no sorting: its slots are its groups (`MANY` is 1).
    """
    ids, host_entry, _, expert, start, count = lists
    if MANY == 1:
        who = tl.load(ids + group).to(tl.int64)
        return who, group, tl.where((who >= 0) & (tl.load(host_entry + group) < 0), 1, 0)
    else:
        members = tl.load(count + group)
        some = members > 0
        who = tl.load(expert + group, mask=some, other=0).to(tl.int64)
        return who, tl.load(start + group, mask=some, other=0), members


@triton.jit
def _some_entries(
    y, y_width, n, address, grid, codes, scales, order, begin, count,
    SLOTS: tl.constexpr, FORMAT: tl.constexpr, K: tl.constexpr, R: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Store the products of a tile with `R` entries from `begin` on, of which `count` exist."""
    i = tl.arange(0, R)
    entry = begin + i
    if MANY > 1:
        entry = tl.load(order + begin + tl.minimum(i, count - 1))
    product = tile_product(address, grid, codes, scales, entry // SLOTS, FORMAT, K)
    at = entry[:, None, None].to(tl.int64) * y_width + n
    tl.store(y + at, product, mask=(i < count)[:, None, None])


@triton.jit
def _all_entries(
    y, y_width, n, address, grid, codes, scales, order, begin, count,
    SLOTS: tl.constexpr, FORMAT: tl.constexpr, K: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Store the products of a tile with all entries of a group."""
    if MANY == 1 or count == 1:
        _some_entries(y, y_width, n, address, grid, codes, scales, order, begin, 1, SLOTS, FORMAT, K, 1, MANY)
    else:
        for done in range(0, count, MANY):
            _some_entries(
                y, y_width, n, address, grid, codes, scales, order, begin + done, count - done,
                SLOTS, FORMAT, K, MANY, MANY,
            )  # fmt: skip


@triton.jit
def _gate_or_up(
    y, n, address, grid, codes, scales, order, begin, count,
    FF: tl.constexpr, TERMS: tl.constexpr, SLOTS: tl.constexpr, FORMAT: tl.constexpr, K: tl.constexpr,
    MANY: tl.constexpr,
):  # fmt: skip
    """A tile of gate or up: the products with a group's entries, or a part's terms for the only one."""
    if MANY == 1:
        part = tl.program_id(2)
        if part * spans_of_part(FORMAT, K) < K // fact(FORMAT, "span"):
            at = begin.to(tl.int64) * (TERMS * 2 * FF) + n
            row = begin // SLOTS + tl.arange(0, 1)
            store_terms(y, at, 2 * FF, address, grid, codes, scales, row, part, FORMAT, K)
    else:
        _all_entries(y, 2 * FF, n, address, grid, codes, scales, order, begin, count, SLOTS, FORMAT, K, MANY)


@triton.jit
def _gate_up_kernel(
    addresses, gate_grid, up_grid, codes, scales, ids, host_entry, order, expert, start, count, y,
    GATE: tl.constexpr, UP: tl.constexpr, WIDTH: tl.constexpr, FF: tl.constexpr, UP_AT: tl.constexpr,
    TERMS: tl.constexpr, SLOTS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (FF + _ROWS - 1) // _ROWS
    who, begin, members = _group_of((ids, host_entry, order, expert, start, count), tl.program_id(1), MANY)
    if members > 0:
        address = tl.load(addresses + who)
        is_up = tl.program_id(0) >= TILES
        tile = (tl.program_id(0) % TILES).to(tl.int64)
        n = tile * _ROWS + rows_of_tile(3) + tl.where(is_up, FF, 0)
        if is_up & (GATE != UP):
            at = address + UP_AT + tile * tile_bytes(UP, WIDTH)
            _gate_or_up(
                y, n, at, up_grid, codes, scales, order, begin, members, FF, TERMS, SLOTS, UP, WIDTH, MANY
            )
        else:
            at = address + tl.where(is_up, UP_AT, 0) + tile * tile_bytes(GATE, WIDTH)
            _gate_or_up(
                y, n, at, gate_grid, codes, scales, order, begin, members, FF, TERMS, SLOTS, GATE, WIDTH, MANY
            )


@triton.jit
def _swiglu_kernel(
    ids, host_entry, y, factors, codes, scales,
    FF: tl.constexpr, TERMS: tl.constexpr, GATE_TERMS: tl.constexpr, UP_TERMS: tl.constexpr,
):  # fmt: skip
    entry, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    expert = tl.load(ids + entry)
    if (tl.load(host_entry + entry) < 0) & (expert >= 0):
        k = block * _BLOCK + tl.arange(0, _BLOCK)
        at = entry * (TERMS * 2 * FF) + k
        if TERMS == 1:
            gate = tl.load(y + at, mask=k < FF, other=0.0)
            up = tl.load(y + at + FF, mask=k < FF, other=0.0)
        else:
            gate = ordered_sum(y, at, 2 * FF, k < FF, GATE_TERMS)
            up = ordered_sum(y, at + FF, 2 * FF, k < FF, UP_TERMS)
        if factors is not None:
            gate *= tl.load(factors + 3 * expert)
            up *= tl.load(factors + 3 * expert + 1)
        code, scale = quantize_blocks(swiglu(gate, up))
        tl.store(codes + entry * FF + k, code, mask=k < FF)
        where = entry * ((FF + _BLOCK - 1) // _BLOCK) + block + tl.arange(0, 1)
        tl.store(scales + where, scale)


@triton.jit
def _down_kernel(
    addresses, grid, codes, scales, ids, host_entry, order, expert, start, count, y,
    DOWN: tl.constexpr, WIDTH: tl.constexpr, FF: tl.constexpr, DOWN_AT: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    who, begin, members = _group_of((ids, host_entry, order, expert, start, count), tl.program_id(1), MANY)
    if members > 0:
        tile = tl.program_id(0).to(tl.int64)
        at = tl.load(addresses + who) + DOWN_AT + tile * tile_bytes(DOWN, FF)
        n = tile * _ROWS + rows_of_tile(3)
        _all_entries(y, WIDTH, n, at, grid, codes, scales, order, begin, members, 1, DOWN, FF, MANY)


@triton.jit
def _combine_kernel(
    ids, host_entry, weights, y, host_y, factors, out, width,
    SLOTS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    slot = tl.arange(0, PADDED)[:, None]
    entry = row * SLOTS + slot
    expert = tl.load(ids + entry, mask=slot < SLOTS, other=-1)
    used = expert >= 0
    host = tl.load(host_entry + entry, mask=slot < SLOTS, other=-1).to(tl.int64)
    weight = tl.load(weights + entry, mask=slot < SLOTS, other=0.0)
    here = tl.load(y + entry * width + n, mask=used & (host < 0) & (n < width), other=0.0)
    if factors is not None:
        here *= tl.load(factors + 3 * expert + 2, mask=used, other=0.0)
    there = tl.load(host_y + host * width + n, mask=used & (host >= 0) & (n < width), other=0.0)
    terms = (weight * tl.where(host < 0, here, there)).to(tl.int32, bitcast=True)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(SLOTS):  # a slot's terms are picked as integers, which changes no bit of them
        total = total + tl.sum(tl.where(slot == i, terms, 0), axis=0).to(tl.float32, bitcast=True)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + row * width + n, total, mask=n < width)


@dataclass(frozen=True, slots=True)
class ExpertBuffers:
    """Where a window's experts leave what lies between launches, for `entries` = rows * slots.

    Args:
        groups: see there.
        hidden: float32 `[entries, terms, 2 * ff]`: gate's products, then up's; of a single row their terms.
        codes, scales: int8 `[entries, ff]` and float32 `[entries, ceil(ff / 128)]`: activations of down.
        y: float32 `[entries, width]`: each entry's expert, not weighed.
    """

    groups: Groups
    hidden: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor
    y: torch.Tensor

    @classmethod
    def allocate(cls, shape: ExpertShape, rows: int, slots: int, device: torch.device) -> "ExpertBuffers":
        """Buffers for windows of `rows` with `slots` experts each."""
        entries, blocks = rows * slots, -(-shape.ff // ACTIVATION_BLOCK)

        def empty(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        return cls(
            groups=Groups(*(empty(entries, dtype=torch.int32) for _ in range(4))),
            hidden=empty(entries, shape.terms if rows == 1 else 1, 2 * shape.ff),
            codes=empty(entries, shape.ff, dtype=torch.int8),
            scales=empty(entries, blocks),
            y=empty(entries, shape.width),
        )


def quantize_hidden(
    shape: ExpertShape,
    ids: torch.Tensor,
    host_entry: torch.Tensor,
    hidden: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    factors: torch.Tensor | None = None,
) -> None:
    """SwiGLU of what gate and up gave, quantised, for entries that this card computes.

    Args:
        ids, host_entry: of `compute_experts`.
        hidden: float32 `[entries, terms, 2 * ff]`: gate's products, then up's, or their terms.
        codes, scales: int8 `[entries, ff]` and float32 `[entries, ceil(ff / 128)]`, written.
        factors: of `compute_experts`.
    """
    entries, terms, _ = hidden.shape
    _swiglu_kernel[(entries, triton.cdiv(shape.ff, ACTIVATION_BLOCK))](
        ids, host_entry, hidden, factors, codes, scales, FF=shape.ff, TERMS=terms,
        GATE_TERMS=num_terms(shape.gate, shape.width), UP_TERMS=num_terms(shape.up, shape.width),
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip


def compute_experts(
    shape: ExpertShape,
    addresses: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    ids: torch.Tensor,
    host_entry: torch.Tensor,
    buffers: ExpertBuffers,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """`expert(x[row])` of every entry that this card computes.

    Args:
        addresses: int64 `[experts]`, of each expert's record in memory that the card reads, aligned to 64.
        codes, scales: `quantize_activations` of x, `[rows, width]`.
        ids: int32 or int64 `[rows, slots]`; an unused row has -1 in all slots.
        host_entry: int32 `[rows, slots]`; negative where this card computes the entry.
        factors: float32 `[experts, 3]`, of each expert's products with gate, up and down, where a file has
            them beside the matrices (NVFP4); down's is for `combine_experts`.

    Returns:
        float32 `[rows * slots, width]`, which is `buffers.y`; other entries hold anything.
    """
    rows, slots = ids.shape
    entries, many = rows * slots, min(2, rows)
    device, groups = codes.device, buffers.groups
    if many > 1:
        group_entries(ids, host_entry, groups)
    lists = (ids, host_entry, groups.order, groups.expert, groups.start, groups.count)
    grids = [codebook(format, device) for format in (shape.gate, shape.up, shape.down)]
    ff_tiles = triton.cdiv(shape.ff, TILE_ROWS)
    parts = max(num_parts(format, shape.width) for format in (shape.gate, shape.up)) if rows == 1 else 1
    _gate_up_kernel[(2 * ff_tiles, entries, parts)](
        addresses, grids[0], grids[1], codes.view(torch.int32), scales, *lists, buffers.hidden,
        GATE=shape.gate, UP=shape.up, WIDTH=shape.width, FF=shape.ff, UP_AT=shape.up_at,
        TERMS=shape.terms, SLOTS=slots, MANY=many, **one_warp(),
    )  # fmt: skip
    quantize_hidden(shape, ids, host_entry, buffers.hidden, buffers.codes, buffers.scales, factors)
    _down_kernel[(triton.cdiv(shape.width, TILE_ROWS), entries)](
        addresses, grids[2], buffers.codes.view(torch.int32), buffers.scales, *lists, buffers.y,
        DOWN=shape.down, WIDTH=shape.width, FF=shape.ff, DOWN_AT=shape.down_at, MANY=many, **one_warp(),
    )  # fmt: skip
    return buffers.y


def combine_experts(
    ids: torch.Tensor,
    host_entry: torch.Tensor,
    weights: torch.Tensor,
    y: torch.Tensor,
    host_y: torch.Tensor,
    out: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum over slots, ascending, of `weights * y`.

    Args:
        ids: int32 or int64 `[rows, slots]`; slots with -1 add nothing.
        host_entry: int32 `[rows, slots]`: the row of `host_y` that has an entry; negative where `y` has it.
        weights: float32 `[rows, slots]`.
        y: float32 `[rows * slots, width]`, from `compute_experts`.
        host_y: float32 `[anything, width]`, in memory that the card reads.
        factors: of `compute_experts`; `host_y` has its own already.

    Returns:
        float32 `[rows, width]`, or `out` with it.
    """
    rows, slots = ids.shape
    width = y.shape[1]
    if out is None:
        out = torch.empty(rows, width, dtype=torch.float32, device=y.device)
    _combine_kernel[(triton.cdiv(width, 128), rows)](
        ids, host_entry, weights, y, host_y, factors, out, width,
        SLOTS=slots, PADDED=triton.next_power_of_2(slots), BLOCK=128,
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out
