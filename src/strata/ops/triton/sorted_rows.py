"""Rows of activations sorted by the matrix that each is multiplied with, for prompts."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

BLOCKS = (16, 32, 64)  # rows of activations in a program


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows (or entries, row * slots + slot) sorted by their matrix, cut in blocks.

    Args:
        order: int32 `[entries]`, those of one matrix in ascending order.
        matrix: int32 `[blocks]`: the matrix of a block, -1 behind the last one.
        begin, end: int32 `[blocks]`: the block's places in `order`.
        bounds: int32 `[matrices + 1]`: where the entries of each matrix begin in `order`.
        block: most entries of a block.
    """

    order: torch.Tensor
    matrix: torch.Tensor
    begin: torch.Tensor
    end: torch.Tensor
    bounds: torch.Tensor
    block: int


def _block_of(rows: float) -> int:
    """Rows of a block where a matrix has so many on average; by trying on an H200."""
    return next(block for block in BLOCKS if block >= min(0.4 * rows, BLOCKS[-1]))


def sort_rows(ids: torch.Tensor, num_matrices: int) -> SortedRows:
    """Sort entries by matrix; nothing is read back, the number of blocks is the largest there can be.

    Args:
        ids: integers `[entries]` below `num_matrices`; entries with a negative one are left out.
    """
    entries = ids.numel()
    block = _block_of(entries / num_matrices)
    key = torch.where(ids < 0, num_matrices, ids).int()
    sorted_key, order = torch.sort(key, stable=True)
    bounds = torch.searchsorted(
        sorted_key, torch.arange(num_matrices + 1, dtype=torch.int32, device=ids.device)
    )
    blocks = torch.cumsum((bounds.diff() + block - 1) // block, 0)
    most = entries // block + min(entries, num_matrices)
    at = torch.arange(most, device=ids.device)
    matrix = torch.searchsorted(blocks, at, right=True)
    used = matrix < num_matrices
    matrix = torch.where(used, matrix, 0)
    first = torch.where(matrix > 0, blocks[matrix - 1], 0)
    begin = bounds[matrix] + (at - first) * block
    end = torch.minimum(begin + block, bounds[matrix + 1])
    matrix = torch.where(used, matrix, -1)
    return SortedRows(order.int(), matrix.int(), begin.int(), end.int(), bounds.int(), block)


def rows_in_order(rows: int, device: torch.device) -> SortedRows:
    """All `rows` of one matrix."""
    block = _block_of(rows)
    begin = torch.arange(0, rows, block, dtype=torch.int32, device=device)
    order = torch.arange(rows, dtype=torch.int32, device=device)
    bounds = torch.arange(2, dtype=torch.int32, device=device) * rows
    return SortedRows(order, torch.zeros_like(begin), begin, (begin + block).clamp(max=rows), bounds, block)


@triton.jit
def rows_of_block(order, begin, end, block, slots, ROWS: tl.constexpr):
    """Of a block's places `[ROWS]`: bool, whether there is one; int32, its entry; int64, that entry's row."""
    place = tl.load(begin + block) + tl.arange(0, ROWS)
    exists = place < tl.load(end + block)
    entry = tl.load(order + place, mask=exists, other=0)
    return exists, entry, (entry // slots).to(tl.int64)
