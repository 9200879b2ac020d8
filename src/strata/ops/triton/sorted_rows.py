"""Rows of activations sorted by the matrix that each is multiplied with, for prompts."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

# By trying on an H200. To unpack a matrix and multiply a block of 64 rows takes as long as three blocks of 16
# with the weights taken out of their planes each time; with 32 rows a block takes little less than with 64.
FEW_BLOCK, MANY_BLOCK = 16, 64  # most rows of a block
MANY = 33  # rows of a matrix from which on it is worth unpacking,
SOME = 16  # where all have so many on average: with less, one launch for all is best

_FEW_BLOCK, _MANY_BLOCK = tl.constexpr(FEW_BLOCK), tl.constexpr(MANY_BLOCK)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Places of `SortedRows.order` with rows of one matrix each.

    Attributes:
        rows: most of a block.
        matrix, begin: int32 `[most blocks there can be]`: a block's matrix, and its first place.
        count: int32 `[1]`, how many there are.
    """

    rows: int
    matrix: torch.Tensor
    begin: torch.Tensor
    count: torch.Tensor


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows (or entries, row * slots + slot) sorted by their matrix, cut in blocks.

    Attributes:
        order: int32 `[entries]`, those of one matrix in ascending order.
        bounds: int32 `[matrices + 1]`: where the entries of each matrix begin in `order`.
        few, many: blocks of matrices with few entries and with many; None: there are none.
        matrices: int32 `[most there can be]`, those that have `many`, in order; behind the last, -1.
        starts: int32 `[one more]`: where the blocks of each of them begin in `many`; then, where they end.
        number: int32 `[most blocks]`: the place of a block's matrix in `matrices`.
    """

    order: torch.Tensor
    bounds: torch.Tensor
    few: Blocks | None
    many: Blocks | None
    matrices: torch.Tensor
    starts: torch.Tensor
    number: torch.Tensor


def sort_rows(ids: torch.Tensor, num_matrices: int) -> SortedRows:
    """Sort entries by matrix; nothing is read back, memory is for the most blocks there can be.

    Args:
        ids: integers `[entries]` below `num_matrices`; entries with a negative one are left out.
    """
    key = torch.where(ids < 0, num_matrices, ids).int()
    sorted_key, order = torch.sort(key, stable=True)
    first = torch.arange(num_matrices + 1, dtype=torch.int32, device=ids.device)
    bounds = torch.searchsorted(sorted_key, first, out_int32=True)
    return _cut(order.int(), bounds, True, MANY if ids.numel() >= SOME * num_matrices else None)


def rows_in_order(rows: int, device: torch.device) -> SortedRows:
    """All `rows` of one matrix."""
    order = torch.arange(rows, dtype=torch.int32, device=device)
    bounds = torch.arange(0, 2 * rows, rows, dtype=torch.int32, device=device)
    return _cut(order, bounds, rows < MANY, MANY if rows >= MANY else None)


def _cut(order: torch.Tensor, bounds: torch.Tensor, has_few: bool, many_from: int | None) -> SortedRows:
    """Matrices with `many_from` entries have many; None: none has."""
    entries, matrices = order.numel(), bounds.numel() - 1
    few = entries // FEW_BLOCK + min(entries, matrices)
    number = many = 0
    if many_from is not None:
        few = min(few, matrices * -(-(many_from - 1) // FEW_BLOCK))
        number = min(entries // many_from, matrices)
        many = entries // MANY_BLOCK + number
    sizes = few, few, 1, many, many, 1, number, number + 1, many
    # Each begins at a multiple of 16 bytes, so that Triton has one kind of pointer to compile for.
    padded = [-(-size // 4) * 4 for size in sizes]
    whole = torch.empty(sum(padded), dtype=torch.int32, device=order.device).split(padded)
    memory = [part[:size] for part, size in zip(whole, sizes, strict=True)]
    _cut_kernel[(1,)](
        bounds, *memory, matrices, number, many_from or entries + 1,
        MATRICES=triton.next_power_of_2(max(matrices + 1, 32)), num_warps=4,
    )  # fmt: skip
    return SortedRows(
        order,
        bounds,
        Blocks(FEW_BLOCK, *memory[:3]) if has_few else None,
        Blocks(MANY_BLOCK, *memory[3:6]) if many else None,
        *memory[6:],
    )


@triton.jit(do_not_specialize=["num_matrices", "most_many", "many_from"])
def _cut_kernel(
    bounds, few_matrix, few_begin, num_few, many_matrix, many_begin, num_many, matrices, starts, number,
    num_matrices, most_many, many_from, MATRICES: tl.constexpr,
):  # fmt: skip
    """Fill what `SortedRows` consists of, with one program."""
    e = tl.arange(0, MATRICES)
    begin = tl.load(bounds + e, mask=e < num_matrices, other=0)
    rows = tl.load(bounds + e + 1, mask=e < num_matrices, other=0) - begin
    is_many = rows >= many_from
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
