"""The experts of a layer for the rows of a window, wherever their planes lie: the bits of docs/NUMERICS.md.

Five launches: entries grouped by expert, so that its weights are read once (not for a single row); gate and
up; SwiGLU, and its result quantised; down; the sum over slots. A shared expert that is quantised has programs
of its own in each. Nothing here knows whether an address is in the card's own memory or in the host's.
"""

import torch
import triton
import triton.language as tl

from strata.ops.triton.activation import swiglu
from strata.ops.triton.capability import warps
from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.expert_groups import group_entries
from strata.ops.triton.expert_records import Between, ExpertBuffers, ExpertShape, SharedExpert
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.planes import ACTIVATION_BLOCK, TILE_ROWS, fact, tile_bytes
from strata.ops.triton.quantize import quantize_blocks
from strata.ops.triton.quantized_matmul import FEW_ROWS, PlaneMatrix, codebook
from strata.ops.triton.tile_product import (
    SUMS,
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
def _shared_tile(
    y, planes, grid, codes, scales, tile, index, num_rows,
    N: tl.constexpr, FORMAT: tl.constexpr, K: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """A tile of a matrix `[N, K]` of the shared expert: products with the `index`-th `MANY` rows, or of the
    only row the terms of the `index`-th part."""
    address = planes.to(tl.int64) + tile.to(tl.int64) * tile_bytes(FORMAT, K)
    n = tile * _ROWS + rows_of_tile(3)
    if MANY == 1:
        if index * spans_of_part(FORMAT, K) < K // fact(FORMAT, "span"):
            store_terms(y, n, N, address, grid, codes, scales, tl.arange(0, 1), index, FORMAT, K)
    else:
        row = index * MANY + tl.arange(0, MANY)
        product = tile_product(address, grid, codes, scales, tl.minimum(row, num_rows - 1), FORMAT, K)
        row = row[:, None, None]
        tl.store(y + row.to(tl.int64) * N + n, product, mask=row < num_rows)


@kernel
def _gate_up_kernel(
    addresses, gate_grid, up_grid, codes, scales, ids, host_entry, order, expert, start, count, y,
    shared, shared_grid, shared_y, num_entries, num_rows,
    GATE: tl.constexpr, UP: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr, FF: tl.constexpr,
    SHARED_FF: tl.constexpr, UP_AT: tl.constexpr, TERMS: tl.constexpr, SLOTS: tl.constexpr,
    MANY: tl.constexpr,
):  # fmt: skip
    begin_kernel()
    TILES: tl.constexpr = (FF + _ROWS - 1) // _ROWS
    if tl.program_id(1) >= num_entries:
        if SHARED_FF:
            index = tl.program_id(2) if MANY == 1 else tl.program_id(1) - num_entries
            if tl.program_id(0) < 2 * SHARED_FF // _ROWS:
                _shared_tile(
                    shared_y, shared, shared_grid, codes, scales, tl.program_id(0), index, num_rows,
                    2 * SHARED_FF, SHARED, WIDTH, MANY,
                )  # fmt: skip
        return
    if tl.program_id(0) >= 2 * TILES:
        return
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
def _product_of(y, at, stride, mask, TERMS: tl.constexpr):
    """A product that lies at `at`, or whose terms do."""
    return tl.load(y + at, mask=mask, other=0.0) if TERMS == 1 else ordered_sum(y, at, stride, mask, TERMS)


@triton.jit
def _swiglu_block(
    y, factors, expert, is_here, codes, scales, entry, block,
    FF: tl.constexpr, TERMS: tl.constexpr, GATE_TERMS: tl.constexpr, UP_TERMS: tl.constexpr,
):  # fmt: skip
    """SwiGLU of a block of an entry, quantised, and stored if `is_here`: reading need not wait for that."""
    k = block * _BLOCK + tl.arange(0, _BLOCK)
    at = entry * (TERMS * 2 * FF) + k
    gate = _product_of(y, at, 2 * FF, k < FF, GATE_TERMS)
    up = _product_of(y, at + FF, 2 * FF, k < FF, UP_TERMS)
    if factors is not None:
        gate *= tl.load(factors + 3 * expert, mask=is_here, other=0.0)
        up *= tl.load(factors + 3 * expert + 1, mask=is_here, other=0.0)
    code, scale = quantize_blocks(swiglu(gate, up))
    tl.store(codes + entry * FF + k, code, mask=k < tl.where(is_here, FF, 0))
    BLOCKS: tl.constexpr = (FF + _BLOCK - 1) // _BLOCK
    where = block + tl.arange(0, 1)
    tl.store(scales + entry * BLOCKS + where, scale, mask=where < tl.where(is_here, BLOCKS, 0))


@kernel
def _swiglu_kernel(
    ids, host_entry, y, factors, codes, scales, shared_y, shared_codes, shared_scales, num_entries,
    FF: tl.constexpr, SHARED_FF: tl.constexpr, TERMS: tl.constexpr, GATE_TERMS: tl.constexpr,
    UP_TERMS: tl.constexpr, SHARED_TERMS: tl.constexpr,
):  # fmt: skip
    """A program is a block of an entry, or behind those, of a row of the shared expert."""
    begin_kernel()
    entry, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if entry < num_entries:
        expert = tl.load(ids + entry)
        is_here = (tl.load(host_entry + entry) < 0) & (expert >= 0)
        _swiglu_block(
            y, factors, expert, is_here, codes, scales, entry, block, FF, TERMS, GATE_TERMS, UP_TERMS
        )
    elif SHARED_FF:
        _swiglu_block(
            shared_y, None, entry, entry >= 0, shared_codes, shared_scales, entry - num_entries, block,
            SHARED_FF, SHARED_TERMS, SHARED_TERMS, SHARED_TERMS,
        )  # fmt: skip


@kernel
def _down_kernel(
    addresses, grid, codes, scales, ids, host_entry, order, expert, start, count, y,
    shared, shared_grid, shared_codes, shared_scales, shared_y, num_entries, num_rows,
    DOWN: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr, FF: tl.constexpr, SHARED_FF: tl.constexpr,
    DOWN_AT: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    begin_kernel()
    if tl.program_id(1) >= num_entries:
        if SHARED_FF:
            _shared_tile(
                shared_y, shared, shared_grid, shared_codes, shared_scales, tl.program_id(0),
                tl.program_id(1) - num_entries, num_rows, WIDTH, SHARED, SHARED_FF, MANY,
            )  # fmt: skip
        return
    who, begin, members = _group_of((ids, host_entry, order, expert, start, count), tl.program_id(1), MANY)
    if members > 0:
        tile = tl.program_id(0).to(tl.int64)
        at = tl.load(addresses + who) + DOWN_AT + tile * tile_bytes(DOWN, FF)
        n = tile * _ROWS + rows_of_tile(3)
        _all_entries(y, WIDTH, n, at, grid, codes, scales, order, begin, members, 1, DOWN, FF, MANY)


@kernel
def _combine_kernel(
    ids, host_entry, weights, y, host_y, factors, shared_y, shared_share, out, width,
    SLOTS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, SHARED_TERMS: tl.constexpr,
):  # fmt: skip
    begin_kernel()
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    slot = tl.arange(0, PADDED)[:, None]
    entry = row * SLOTS + slot
    expert = tl.load(ids + entry, mask=slot < SLOTS, other=-1)
    used = expert >= 0
    host = tl.load(host_entry + entry, mask=slot < SLOTS, other=-1).to(tl.int64)
    weight = tl.load(weights + entry, mask=slot < SLOTS, other=0.0)
    # Wherever an entry was computed: to ask for its row only there would be to wait for `host_entry` first.
    here = tl.load(y + entry * width + n, mask=(slot < SLOTS) & (n < width), other=0.0)
    if factors is not None:
        here *= tl.load(factors + 3 * expert + 2, mask=used, other=0.0)
    there = tl.load(host_y + host * width + n, mask=used & (host >= 0) & (n < width), other=0.0)
    terms = weight * tl.where(used, tl.where(host < 0, here, there), 0.0)
    terms = terms.to(tl.int32, bitcast=True)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(SLOTS):  # a slot's terms are picked as integers, which changes no bit of them
        total = total + tl.sum(tl.where(slot == i, terms, 0), axis=0).to(tl.float32, bitcast=True)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if SHARED_TERMS:
        at = row * SHARED_TERMS * width + n
        total += tl.load(shared_share + row) * _product_of(shared_y, at, width, n < width, SHARED_TERMS)
    tl.store(out + row * width + n, total, mask=n < width)


def quantize_hidden(
    shape: ExpertShape,
    ids: torch.Tensor,
    host_entry: torch.Tensor,
    hidden: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    factors: torch.Tensor | None = None,
    shared: Between | None = None,
) -> None:
    """SwiGLU of what gate and up gave, quantised, for entries that this card computes.

    Args:
        ids, host_entry: of `compute_experts`.
        hidden: float32 `[entries, terms, 2 * ff]`: gate's products, then up's, or their terms.
        codes, scales: int8 `[entries, ff]` and float32 `[entries, ceil(ff / 128)]`, written.
        factors: of `compute_experts`.
        shared: the same of the shared expert.
    """
    entries, terms, _ = hidden.shape
    gate, up = (num_terms(f, shape.width) if terms > 1 else 1 for f in (shape.gate, shape.up))
    rows = shared_ff = 0
    beside, shared_terms = (hidden, codes, scales), 1  # without a shared expert nobody reads it
    if shared is not None:
        beside = (shared.hidden, shared.codes, shared.scales)
        rows, shared_terms, shared_ff = *shared.hidden.shape[:2], shared.codes.shape[1]
    _swiglu_kernel[(entries + rows, cdiv(max(shape.ff, shared_ff), ACTIVATION_BLOCK))](
        ids, host_entry, hidden, factors, codes, scales, *beside, entries, FF=shape.ff, SHARED_FF=shared_ff,
        TERMS=terms, GATE_TERMS=gate, UP_TERMS=up, SHARED_TERMS=shared_terms,
        num_warps=warps(ACTIVATION_BLOCK), **step_launch(),
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
    shared: SharedExpert | None = None,
) -> torch.Tensor:
    """`expert(x[row])` of every entry that this card computes.

    Args:
        addresses: int64 `[experts]`, of each expert's record in memory that the card reads, aligned to 64.
        codes, scales: `quantize_activations` of x, `[rows, width]`.
        ids: int32 or int64 `[rows, slots]`; an unused row has -1 in all slots.
        host_entry: int32 `[rows, slots]`; negative where this card computes the entry.
        factors: float32 `[experts, 3]`, of each expert's products with gate, up and down, where a file has
            them beside the matrices (NVFP4); down's is for `combine_experts`.
        shared: computed for all rows, into `buffers.shared`, of which `combine_experts` takes its `y`.

    Returns:
        float32 `[rows * slots, width]`, which is `buffers.routed.y`; other entries hold anything.
    """
    rows, slots = ids.shape
    entries, many = rows * slots, min(2, rows)
    device, groups, routed = codes.device, buffers.groups, buffers.routed
    if many > 1:
        group_entries(ids, host_entry, groups)
    lists = (ids, host_entry, groups.order, groups.expert, groups.start, groups.count)
    grids = [codebook(format, device) for format in (shape.gate, shape.up, shape.down)]
    words, formats = codes.view(torch.int32), {shape.gate, shape.up}
    tiles, shared_ff, beside = 2 * cdiv(shape.ff, TILE_ROWS), 0, buffers.shared or routed
    first = second = PlaneMatrix(shape.gate, 0, shape.width, codes, grids[0])  # of no use
    row_groups = down_groups = 0
    if shared is not None:
        first, second, shared_ff = shared.gate_up, shared.down, shared.ff
        formats.add(first.format)
        tiles = max(tiles, 2 * shared_ff // TILE_ROWS)
        row_groups = down_groups = cdiv(rows, many)
        if rows == 1:
            down_groups = num_parts(second.format, shared_ff)
    parts = max(num_parts(format, shape.width) for format in formats) if rows == 1 else 1
    _gate_up_kernel[(tiles, entries + row_groups, parts)](
        addresses, grids[0], grids[1], words, scales, *lists, routed.hidden, first.planes, first.grid,
        beside.hidden, entries, rows, GATE=shape.gate, UP=shape.up, SHARED=first.format, WIDTH=shape.width,
        FF=shape.ff, SHARED_FF=shared_ff, UP_AT=shape.up_at, TERMS=shape.terms, SLOTS=slots, MANY=many,
        **one_warp(),
    )  # fmt: skip
    quantize_hidden(
        shape, ids, host_entry, routed.hidden, routed.codes, routed.scales, factors, buffers.shared
    )
    _down_kernel[(cdiv(shape.width, TILE_ROWS), entries + down_groups)](
        addresses, grids[2], routed.codes.view(torch.int32), routed.scales, *lists, routed.y, second.planes,
        second.grid, beside.codes.view(torch.int32), beside.scales, beside.y, entries, rows, DOWN=shape.down,
        SHARED=second.format, WIDTH=shape.width, FF=shape.ff, SHARED_FF=shared_ff, DOWN_AT=shape.down_at,
        MANY=many, **one_warp(),
    )  # fmt: skip
    return routed.y


def combine_experts(
    ids: torch.Tensor,
    host_entry: torch.Tensor,
    weights: torch.Tensor,
    y: torch.Tensor,
    host_y: torch.Tensor,
    out: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
    shared: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Sum over slots, ascending, of `weights * y`; then the shared expert.

    Args:
        ids: int32 or int64 `[rows, slots]`; slots with -1 add nothing.
        host_entry: int32 `[rows, slots]`: the row of `host_y` that has an entry; negative where `y` has it.
        weights: float32 `[rows, slots]`.
        y: float32 `[rows * slots, width]`, from `compute_experts`.
        host_y: float32 `[anything, width]`, in memory that the card reads.
        factors: of `compute_experts`; `host_y` has its own already.
        shared: `y` of the shared expert from `compute_experts`, or what else is float32 `[rows, terms,
            width]` and contiguous, and how much of it is added, float32 `[rows]`.

    Returns:
        float32 `[rows, width]`, or `out` with it.
    """
    rows, slots = ids.shape
    width = y.shape[1]
    if out is None:
        out = torch.empty(rows, width, dtype=torch.float32, device=y.device)
    shared_y, shared_share = shared or (y, weights)
    block = SUMS if rows <= FEW_ROWS else 128
    _combine_kernel[(cdiv(width, block), rows)](
        ids, host_entry, weights, y, host_y, factors, shared_y, shared_share, out, width,
        SLOTS=slots, PADDED=triton.next_power_of_2(slots), BLOCK=block,
        SHARED_TERMS=0 if shared is None else shared_y.shape[1], num_warps=1, **step_launch(),
    )  # fmt: skip
    return out
