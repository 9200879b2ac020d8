"""Products of float32 rows with quantised matrices in planes: docs/NUMERICS.md, bit for bit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
import triton
import triton.language as tl

from strata.formats.quants.planes import QUANT_PLANES
from strata.ops.triton.dependent_launch import (
    begin_kernel,
    launch_dependents,
    step_launch,
    wait_for_earlier,
)
from strata.ops.triton.grouped_matmul import grouped_matmul, has_integer_dot
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.planes import TILE_ROWS, fact, tile_bytes
from strata.ops.triton.quantize import quantize_activations
from strata.ops.triton.sorted_rows import rows_in_order
from strata.ops.triton.tile_product import (
    SUMS,
    num_parts,
    num_terms,
    one_warp,
    ordered_sum,
    prefetch_part,
    rows_of_tile,
    spans_of_part,
    store_terms,
    tile_product,
)
from strata.ops.triton.unpack import PlaneMatrices
from strata.ops.triton.workspace import Workspace

_ROWS = tl.constexpr(TILE_ROWS)
FEW_ROWS = 16  # of a window
_ENOUGH_WARPS = 1024  # some for each scheduler of a large card


@cache
def codebook(format: str, device: torch.device) -> torch.Tensor:
    """The codebook of a format as int32 words of four weights; an empty tensor for formats without one.

    In IQ1 a nibble n of a word stands for 2 n - 9, low nibbles first, the second half with the minus.
    """
    if QUANT_PLANES[format].values != "grid":
        return torch.empty(4, dtype=torch.int32, device=device)
    from strata.formats.quants.grid import grid

    if not format.startswith("IQ1"):
        return torch.from_numpy(grid(format)).to(torch.int8).view(torch.int32).reshape(-1).to(device)
    entries = torch.from_numpy(grid("IQ1_S")).int()
    nibbles = torch.cat([4 * entries + 5, 4 * entries + 4])
    words = (nibbles[:, :4] | nibbles[:, 4:] << 4).to(torch.uint8)
    return words.view(torch.int32).reshape(-1).to(device)


@dataclass(frozen=True)
class PlaneMatrix:
    """A quantised matrix `[num_out, num_in]` on a card.

    Args:
        format: ggml's name.
        planes: uint8 `[plane bytes]`, aligned to 64.
        grid: see `codebook`.
    """

    format: str
    num_out: int
    num_in: int
    planes: torch.Tensor
    grid: torch.Tensor

    @cached_property
    def alone(self) -> PlaneMatrices:
        """As the only one of its kind."""
        address = torch.full((1,), self.planes.data_ptr(), dtype=torch.int64, device=self.planes.device)
        return PlaneMatrices(self.format, self.num_out, self.num_in, address, 0, self.grid)


@kernel
def _matmul_kernel(
    planes, grid, codes, scales, out, num_rows, num_out,
    FORMAT: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    begin_kernel()
    # Programs of a tile are neighbours, so that its weights are in a cache for all but one.
    rows = tl.program_id(0) * R + tl.arange(0, R)
    tile = tl.program_id(1)
    address = planes.to(tl.int64) + tile.to(tl.int64) * tile_bytes(FORMAT, K)
    y = tile_product(address, grid, codes, scales, tl.minimum(rows, num_rows - 1), FORMAT, K)
    n = tile * _ROWS + rows_of_tile(3)
    row = rows[:, None, None]
    tl.store(out + row.to(tl.int64) * num_out + n, y, mask=(row < num_rows) & (n < num_out))


@triton.jit
def _terms_of(matrix, codes, scales, row, tile, part, FORMAT: tl.constexpr, K: tl.constexpr):
    planes, grid, terms, padded = matrix
    if part * spans_of_part(FORMAT, K) < K // fact(FORMAT, "span"):
        address = planes.to(tl.int64) + tile.to(tl.int64) * tile_bytes(FORMAT, K)
        at = row.to(tl.int64) * (num_terms(FORMAT, K) * padded) + tile * _ROWS + rows_of_tile(3)
        store_terms(terms, at, padded, address, grid, codes, scales, row + tl.arange(0, 1), part, FORMAT, K)


@kernel
def _terms_kernel(
    planes, grid, terms, padded, more_planes, more_grid, more_terms, more_padded, codes, scales, tiles,
    FORMAT: tl.constexpr, MORE: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """A program is a part of a tile of a matrix, or behind its `tiles`, of one of format MORE."""
    launch_dependents()
    row, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if tile < tiles:
        prefetch_part(planes, tile, part, FORMAT, K)
    elif FORMAT != MORE:
        prefetch_part(more_planes, tile - tiles, part, MORE, K)
    wait_for_earlier()
    if tile < tiles:
        _terms_of((planes, grid, terms, padded), codes, scales, row, tile, part, FORMAT, K)
    elif FORMAT != MORE:
        more = more_planes, more_grid, more_terms, more_padded
        _terms_of(more, codes, scales, row, tile - tiles, part, MORE, K)


@triton.jit
def _sum_of(terms, out, padded, num_out, row, n, TERMS: tl.constexpr):
    y = ordered_sum(terms, row * (TERMS * padded) + n, padded, n < num_out, TERMS)
    tl.store(out + row * num_out + n, y, mask=n < num_out)


@kernel
def _sum_kernel(
    terms, out, padded, num_out, more_terms, more_out, more_padded, more_num_out, blocks,
    TERMS: tl.constexpr, MORE_TERMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    begin_kernel()
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = tl.arange(0, BLOCK)
    if block < blocks:
        _sum_of(terms, out, padded, num_out, row, block * BLOCK + n, TERMS)
    elif MORE_TERMS:
        _sum_of(
            more_terms, more_out, more_padded, more_num_out, row, (block - blocks) * BLOCK + n, MORE_TERMS
        )


def multiply_shared_tiles(
    matrices: Sequence[PlaneMatrix], codes: torch.Tensor, scales: torch.Tensor, outs: Sequence[torch.Tensor]
) -> None:
    """Products with several warps to a tile: for matrices whose tiles are too few to keep a card busy.

    Args:
        matrices: one, or two of different formats.
    """
    num_rows, first, more = codes.shape[0], matrices[0], matrices[-1]
    terms = product_terms(matrices, codes, scales)
    blocks = [cdiv(m.num_out, SUMS) for m in matrices]
    _sum_kernel[(sum(blocks), num_rows)](
        terms[0], outs[0], terms[0].shape[2], first.num_out, terms[-1], outs[-1], terms[-1].shape[2],
        more.num_out, blocks[0], TERMS=terms[0].shape[1],
        MORE_TERMS=terms[1].shape[1] if len(terms) > 1 else 0, BLOCK=SUMS, num_warps=1, **step_launch(),
    )  # fmt: skip


def product_terms(
    matrices: Sequence[PlaneMatrix], codes: torch.Tensor, scales: torch.Tensor
) -> list[torch.Tensor]:
    """What is to be added up in order for products, see `ordered_sum`: float32 `[rows, terms, tiles' rows]`.

    Args:
        matrices: one, or two of different formats.
    """
    num_rows, num_in, first, more = codes.shape[0], matrices[0].num_in, matrices[0], matrices[-1]
    tiles = [cdiv(m.num_out, TILE_ROWS) for m in matrices]
    counts = [num_terms(m.format, num_in) for m in matrices]
    padded = [n * TILE_ROWS for n in tiles]
    terms = [
        torch.empty(num_rows, count, width, dtype=torch.float32, device=codes.device)
        for count, width in zip(counts, padded, strict=True)
    ]
    parts = max(num_parts(m.format, num_in) for m in matrices)
    _terms_kernel[(num_rows, sum(tiles), parts)](
        first.planes, first.grid, terms[0], padded[0], more.planes, more.grid, terms[-1], padded[-1],
        codes.view(torch.int32), scales, tiles[0], FORMAT=first.format, MORE=more.format, K=num_in,
        **one_warp(),
    )  # fmt: skip
    return terms


def multiply_own_tiles(
    matrix: PlaneMatrix, codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor
) -> None:
    """The product with a warp to a tile."""
    num_rows = codes.shape[0]
    some = min(2, num_rows)
    _matmul_kernel[(cdiv(num_rows, some), cdiv(matrix.num_out, TILE_ROWS))](
        matrix.planes, matrix.grid, codes.view(torch.int32), scales, out, num_rows, matrix.num_out,
        FORMAT=matrix.format, K=matrix.num_in, R=some, **one_warp(),
    )  # fmt: skip


def _shares_tiles(matrix: PlaneMatrix, num_rows: int) -> bool:
    """Whether several warps are to share each of its tiles."""
    warps = num_rows * cdiv(matrix.num_out, TILE_ROWS)
    return warps < _ENOUGH_WARPS and num_parts(matrix.format, matrix.num_in) > 2


def quantized_matmuls(
    matrices: Sequence[PlaneMatrix],
    codes: torch.Tensor,
    scales: torch.Tensor,
    workspace: Workspace | None = None,
) -> list[torch.Tensor]:
    """`quantized_matmul` with each of some matrices, of a window's few rows with two at once."""
    num_rows = codes.shape[0]
    outs = [torch.empty(num_rows, m.num_out, dtype=torch.float32, device=codes.device) for m in matrices]
    done = 0
    while done < len(matrices):
        pair = matrices[done : done + 2]
        together = num_rows <= FEW_ROWS and len({m.format for m in pair}) == 2
        if together and all(_shares_tiles(m, num_rows) for m in pair):
            multiply_shared_tiles(pair, codes, scales, outs[done : done + 2])
            done += 2
        else:
            quantized_matmul(matrices[done], codes, scales, outs[done], workspace)
            done += 1
    return outs


def quantized_matmul(
    matrix: PlaneMatrix,
    codes: torch.Tensor,
    scales: torch.Tensor,
    out: torch.Tensor | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """Rows times a matrix: a window's few by dot products of bytes, a prompt's by matrix instructions.

    Args:
        codes, scales: from `quantize_activations`, of `[rows, num_in]`.
        workspace: what `grouped_matmul` is given of it; None: it gets nothing.

    Returns:
        float32 `[rows, num_out]`, or `out` with it.
    """
    num_rows, device = codes.shape[0], codes.device
    if out is None:
        out = torch.empty(num_rows, matrix.num_out, dtype=torch.float32, device=device)
    if num_rows > FEW_ROWS and has_integer_dot():
        rows = rows_in_order(num_rows, device) if workspace is None else workspace.in_order(num_rows)
        grouped_matmul(
            matrix.alone, rows, 1, codes, scales, out, 0, None if workspace is None else workspace.unpacked
        )
        return out
    if _shares_tiles(matrix, num_rows):
        multiply_shared_tiles([matrix], codes, scales, [out])
    else:
        multiply_own_tiles(matrix, codes, scales, out)
    return out


__all__ = ["PlaneMatrix", "codebook", "quantize_activations", "quantized_matmul", "quantized_matmuls"]
