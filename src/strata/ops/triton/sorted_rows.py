"""Rows of activations sorted by the matrix that each is multiplied with, for prompts."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.triton.capability import warps
from strata.ops.triton.kernel import cdiv, kernel

# By trying on an H200. To unpack a matrix and multiply a block of 64 rows takes as long as three blocks of 16
# with the weights taken out of their planes each time; with 32 rows a block takes little less than with 64.
FEW_BLOCK, MANY_BLOCK = 16, 64  # most rows of a block
MANY = 33  # rows of a matrix from which on it is worth unpacking
SOME = 16  # rows of all on average, below which no more are unpacked than there is room for at once

_SORTED, _SORTED_THREADS, _AMONG = 512, 128, 32  # entries of a sort's block, compared with so many at once
_FEW_BLOCK, _MANY_BLOCK, _MANY = (tl.constexpr(value) for value in (FEW_BLOCK, MANY_BLOCK, MANY))


@dataclass(frozen=True, slots=True)
class Blocks:
    """Places of `SortedRows.order` with rows of one matrix each.

    Attributes:
        rows: most of a block.
        matrix, begin: int32 `[most blocks there can be, or more]`: a block's matrix, and its first place.
        count: int32 `[1, or more]`, how many there are.
    """

    rows: int
    matrix: torch.Tensor
    begin: torch.Tensor
    count: torch.Tensor


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows (or entries, row * slots + slot) sorted by their matrix, cut in blocks.

    Attributes:
        order: int32 `[entries, or more]`, those of one matrix in ascending order.
        bounds: int32 `[matrices + 1, or more]`: where the entries of each matrix begin in `order`.
        few, many: blocks of matrices with few entries and with many; None: there are none.
        matrices: int32 `[most there can be]`, those that have `many`, in order; then -1.
        starts: int32 `[one more, or more]`: where the blocks of each begin in `many`; then, where they end.
        number: int32 `[most blocks, or more]`: the place of a block's matrix in `matrices`.
    """

    order: torch.Tensor
    bounds: torch.Tensor
    few: Blocks | None
    many: Blocks | None
    matrices: torch.Tensor
    starts: torch.Tensor
    number: torch.Tensor


def sort_rows(
    ids: torch.Tensor, num_matrices: int, at_once: int, elsewhere: torch.Tensor | None = None
) -> SortedRows:
    """Sort entries by matrix; nothing is read back, memory is for the most blocks there can be.

    Args:
        ids: contiguous integers of any shape, below `num_matrices`; entries with a negative one are left out.
        at_once: matrices that there is room to unpack.
        elsewhere: int32, as many, contiguous; entries with one that is not negative are left out, too.
    """
    entries, device = ids.numel(), ids.device
    blocks = cdiv(entries, _SORTED)
    counts, ranks, order, bounds = _memory(device, blocks * num_matrices, entries, entries, num_matrices + 1)
    work = (entries, num_matrices)
    options = {"BLOCK": _SORTED, "num_warps": warps(_SORTED_THREADS)}
    _rank_kernel[(blocks,)](ids, elsewhere, counts, ranks, *work, AMONG=_AMONG, **options)
    number = min(entries // MANY, num_matrices)
    if entries < SOME * num_matrices:
        number = min(number, at_once)
    rows = _cut(order, bounds, counts, blocks, *work, number, True)
    _order_kernel[(blocks,)](ids, elsewhere, counts, ranks, bounds, order, *work, **options)
    return rows


def rows_in_order(rows: int, device: torch.device) -> SortedRows:
    """All `rows` of one matrix."""
    order = torch.arange(rows, dtype=torch.int32, device=device)
    counts = torch.full((1,), rows, dtype=torch.int32, device=device)
    (bounds,) = _memory(device, 2)
    return _cut(order, bounds, counts, 1, rows, 1, int(rows >= MANY), rows < MANY)


def _memory(device: torch.device, *sizes: int) -> list[torch.Tensor]:
    """Int32, at least so many each, beginning where Triton has compiled for: at 16 bytes."""
    padded = [cdiv(size, 4) * 4 for size in sizes]
    return list(torch.empty(sum(padded), dtype=torch.int32, device=device).split(padded))


def _cut(
    order: torch.Tensor,
    bounds: torch.Tensor,
    counts: torch.Tensor,
    sorted_blocks: int,
    entries: int,
    matrices: int,
    number: int,
    has_few: bool,
) -> SortedRows:
    """Fill in `bounds` and what `_order_kernel` is to find in `counts`, of `_rank_kernel`.

    Args:
        number: the most matrices that may have many rows.
    """
    few = entries // FEW_BLOCK + min(entries, matrices)
    many = entries // MANY_BLOCK + number if number else 0
    memory = _memory(order.device, few, few, 1, many, many, 1, number, number + 1, many)
    memory[6] = memory[6][:number]  # each would be unpacked
    _cut_kernel[(1,)](
        counts, bounds, *memory, sorted_blocks, matrices, number,
        MATRICES=triton.next_power_of_2(max(matrices + 1, 32)), num_warps=4,
    )  # fmt: skip
    return SortedRows(
        order,
        bounds,
        Blocks(FEW_BLOCK, *memory[:3]) if has_few else None,
        Blocks(MANY_BLOCK, *memory[3:6]) if many else None,
        *memory[6:],
    )


@triton.jit
def _matrix_of(ids, elsewhere, entry, num_entries):
    """Int32, negative for entries that are left out."""
    matrix = tl.load(ids + entry, mask=entry < num_entries, other=-1).to(tl.int32)
    if elsewhere is not None:
        matrix = tl.where(tl.load(elsewhere + entry, mask=entry < num_entries, other=0) < 0, matrix, -1)
    return matrix


@kernel(do_not_specialize=["num_entries", "num_matrices"])
def _rank_kernel(
    ids, elsewhere, counts, ranks, num_entries, num_matrices, BLOCK: tl.constexpr, AMONG: tl.constexpr
):
    """Of a block's entries, how many before each are of its matrix; of its matrices, how many entries."""
    at = tl.arange(0, BLOCK)
    counts += tl.program_id(0) * num_matrices
    for first in range(0, num_matrices, BLOCK):
        tl.store(counts + first + at, at * 0, mask=first + at < num_matrices)
    tl.debug_barrier()  # an entry's thread is not that of its matrix
    entry = tl.program_id(0) * BLOCK + at
    matrix = _matrix_of(ids, elsewhere, entry, num_entries)
    before, behind = at * 0, at * 0
    for first in range(0, BLOCK, AMONG):
        other = tl.program_id(0) * BLOCK + first + tl.arange(0, AMONG)
        # The axis that is summed up lies in one thread, as the first one does.
        is_same = _matrix_of(ids, elsewhere, other, num_entries)[:, None] == matrix[None, :]
        before += tl.sum((is_same & (other[:, None] < entry[None, :])).to(tl.int32), 0)
        behind += tl.sum((is_same & (other[:, None] > entry[None, :])).to(tl.int32), 0)
    tl.store(ranks + entry, before, mask=entry < num_entries)
    tl.store(counts + matrix, before + 1, mask=(matrix >= 0) & (behind == 0))


@kernel(do_not_specialize=["num_entries", "num_matrices"])
def _order_kernel(
    ids, elsewhere, counts, ranks, bounds, order, num_entries, num_matrices, BLOCK: tl.constexpr
):
    """Put each entry behind those of lower matrices, of earlier blocks and of its own."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    matrix = _matrix_of(ids, elsewhere, entry, num_entries)
    exists = matrix >= 0
    place = tl.load(bounds + matrix, mask=exists, other=0) + tl.load(ranks + entry, mask=exists, other=0)
    place += tl.load(counts + tl.program_id(0) * num_matrices + matrix, mask=exists, other=0)
    tl.store(order + place, entry, mask=exists)


@kernel(do_not_specialize=["sorted_blocks", "num_matrices", "most_many"])
def _cut_kernel(
    counts, bounds, few_matrix, few_begin, num_few, many_matrix, many_begin, num_many, matrices, starts,
    number, sorted_blocks, num_matrices, most_many, MATRICES: tl.constexpr,
):  # fmt: skip
    """Fill what `SortedRows` consists of, with one program; of counts make those of earlier blocks."""
    e = tl.arange(0, MATRICES)
    rows = e * 0
    for block in range(sorted_blocks):
        at = counts + block * num_matrices + e
        more = tl.load(at, mask=e < num_matrices, other=0)
        tl.debug_barrier()  # few matrices are several threads' each, which all have read what is overwritten
        tl.store(at, rows, mask=e < num_matrices)
        rows += more
    begin = tl.cumsum(rows, 0) - rows
    tl.store(bounds + e, begin, mask=e <= num_matrices)
    least = _MANY
    while tl.sum((rows >= least).to(tl.int32), 0) > most_many:
        least += _FEW_BLOCK
    is_many = rows >= least
    blocks = tl.where(is_many, 0, (rows + (_FEW_BLOCK - 1)) // _FEW_BLOCK)
    at = tl.cumsum(blocks, 0) - blocks
    for i in range(tl.max(blocks, 0)):
        tl.store(few_matrix + at + i, e, mask=i < blocks)
        tl.store(few_begin + at + i, begin + i * _FEW_BLOCK, mask=i < blocks)
    tl.store(num_few, tl.sum(blocks, 0))
    blocks = tl.where(is_many, (rows + (_MANY_BLOCK - 1)) // _MANY_BLOCK, 0)
    at = tl.cumsum(blocks, 0) - blocks
    place = tl.cumsum(is_many.to(tl.int32), 0) - 1
    for i in range(tl.max(blocks, 0)):
        tl.store(many_matrix + at + i, e, mask=i < blocks)
        tl.store(many_begin + at + i, begin + i * _MANY_BLOCK, mask=i < blocks)
        tl.store(number + at + i, place, mask=i < blocks)
    tl.store(matrices + place, e, mask=is_many)
    tl.store(starts + place, at, mask=is_many)
    tl.store(num_many, tl.sum(blocks, 0))
    is_behind = e >= tl.sum(is_many.to(tl.int32), 0)
    tl.store(matrices + e, -1, mask=is_behind & (e < most_many))
    tl.store(starts + e, tl.sum(blocks, 0), mask=is_behind & (e <= most_many))


@triton.jit
def rows_of_block(order, bounds, matrix, begin, slots, ROWS: tl.constexpr):
    """Of a block's places `[ROWS]`: bool, whether there is one; int32, its entry; int64, that entry's row."""
    place = begin + tl.arange(0, ROWS)
    exists = place < tl.load(bounds + matrix + 1)
    entry = tl.load(order + place, mask=exists, other=0)
    return exists, entry, (entry // slots).to(tl.int64)
