"""Products of float32 rows with quantised matrices in planes: docs/NUMERICS.md, bit for bit."""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from strata.formats.quants.planes import QUANT_PLANES
from strata.ops.triton.grouped_matmul import grouped_matmul, has_integer_dot, rows_in_order
from strata.ops.triton.planes import TILE_ROWS, tile_bytes
from strata.ops.triton.quantize import quantize_activations
from strata.ops.triton.tile_product import one_warp, rows_of_tile, tile_product

_ROWS = tl.constexpr(TILE_ROWS)
FEW_ROWS = 16  # of a window


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


@dataclass(frozen=True, slots=True)
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


@triton.jit
def _matmul_kernel(
    planes, grid, codes, scales, out, num_rows, num_out,
    FORMAT: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    rows = tl.program_id(1) * R + tl.arange(0, R)
    address = planes.to(tl.int64) + tile.to(tl.int64) * tile_bytes(FORMAT, K)
    y = tile_product(address, grid, codes, scales, tl.minimum(rows, num_rows - 1), FORMAT, K)
    n = tile * _ROWS + rows_of_tile(3)
    row = rows[:, None, None]
    tl.store(out + row.to(tl.int64) * num_out + n, y, mask=(row < num_rows) & (n < num_out))


def quantized_matmul(
    matrix: PlaneMatrix,
    codes: torch.Tensor,
    scales: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows times a matrix: a window's few by dot products of bytes, a prompt's by matrix instructions.

    Args:
        codes, scales: from `quantize_activations`, of `[rows, num_in]`.

    Returns:
        float32 `[rows, num_out]`, or `out` with it.
    """
    num_rows, device = codes.shape[0], codes.device
    if out is None:
        out = torch.empty(num_rows, matrix.num_out, dtype=torch.float32, device=device)
    if num_rows > FEW_ROWS and has_integer_dot():
        address = torch.full((1,), matrix.planes.data_ptr(), dtype=torch.int64, device=device)
        grouped_matmul(
            matrix.format, matrix.num_out, matrix.num_in, address, 0, matrix.grid,
            rows_in_order(num_rows, device), 1, codes, scales, out,
        )  # fmt: skip
        return out
    some = min(4, triton.next_power_of_2(num_rows))
    launch = (triton.cdiv(matrix.num_out, TILE_ROWS), triton.cdiv(num_rows, some))
    _matmul_kernel[launch](
        matrix.planes, matrix.grid, codes.view(torch.int32), scales, out, num_rows, matrix.num_out,
        FORMAT=matrix.format, K=matrix.num_in, R=some, **one_warp(some),
    )  # fmt: skip
    return out


__all__ = ["PlaneMatrix", "codebook", "quantize_activations", "quantized_matmul"]
