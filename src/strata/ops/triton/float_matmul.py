"""Products with matrices that are not quantised: routers, hyper-connections, small projections.

A weight is widened to float32 and activations stay float32, as docs/NUMERICS.md says; the order of a sum is
the card's own (see `arithmetic.split_dot`), not the processor's: the two agree to about 1e-6. It is the same
order for any number of rows: K is cut into slices, each is summed by itself, and slices are added ascending.

A window has too few tiles to keep a card busy. There each slice is a program of its own; whichever of a
tile's programs comes last adds the slices up. A prompt's programs go through all slices.
"""

import torch
import triton
import triton.language as tl

from strata.ops.triton.arithmetic import split_dot

SLICE = 512
WINDOW_ROWS = 16


class Workspace:
    """Memory in which programs of one launch leave sums for the last of them; one for each stream of work.

    Args:
        device: of the tensors that it works for.
        sums: float32 elements; `workspace_size` says how many a product needs.
        tiles: tiles of outputs of the largest product.
    """

    def __init__(self, device: torch.device | str, sums: int, tiles: int):
        self.sums = torch.empty(sums, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(tiles, dtype=torch.int32, device=device)  # every launch leaves zeros

    def reserve(self, sums: int, tiles: int) -> None:
        """Make it at least this large, before anything works with it."""
        if sums > self.sums.numel():
            self.sums = self.sums.new_empty(sums)
        if tiles > self.arrived.numel():
            self.arrived = self.arrived.new_zeros(tiles)

    def require(self, sums: int, tiles: int) -> None:
        """Raise ValueError where the workspace is smaller than this."""
        if sums > self.sums.numel() or tiles > self.arrived.numel():
            raise ValueError(
                f"the workspace holds {self.sums.numel()} sums and {self.arrived.numel()} tiles, "
                f"this product needs {sums} and {tiles}"
            )


@triton.jit
def last_of_tile(arrived, count):
    """Whether this program is the last of `count` of its tile to say so: then what they stored is visible."""
    tl.debug_barrier()  # all threads have stored
    is_last = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == count - 1
    tl.debug_barrier()
    if is_last:
        tl.store(arrived, 0)
    return is_last


@triton.jit
def _slice_product(x, w, rows, columns, begin, K, num_rows, num_columns, x_stride,
                   ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """Products `[ROWS, COLUMNS]` of elements `begin` to `begin + SLICE`."""
    high = tl.zeros([ROWS, COLUMNS], tl.float32)
    middle, low = high, high
    for start in range(begin, tl.minimum(begin + SLICE, K), BLOCK):
        k = start + tl.arange(0, BLOCK)
        x_tile = tl.load(
            x + rows[:, None] * x_stride + k[None, :],
            mask=(rows < num_rows)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        w_tile = tl.load(
            w + columns.to(tl.int64)[:, None] * K + k[None, :],
            mask=(columns < num_columns)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        high, middle, low = split_dot(x_tile, w_tile, high, middle, low)
    return (low + middle) + high


@triton.jit
def _float_matmul(x, w, out, sums, arrived, num_rows, num_columns, K, num_slices, x_stride, out_stride,
                  ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr, BLOCK: tl.constexpr,
                  SPLIT: tl.constexpr):  # fmt: skip
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    if SPLIT:
        part = _slice_product(x, w, rows, columns, tl.program_id(2) * SLICE, K, num_rows, num_columns,
                              x_stride, ROWS, COLUMNS, SLICE, BLOCK)  # fmt: skip
        cells = sums + rows[:, None] * num_columns + columns[None, :]
        size = num_rows * num_columns
        tl.store(cells + tl.program_id(2) * size, part, mask)
        if last_of_tile(arrived + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), num_slices):
            for index in range(num_slices):
                total += tl.load(cells + index * size, mask, other=0.0, cache_modifier=".cg")
            tl.store(out + rows[:, None] * out_stride + columns[None, :], total, mask)
    else:
        for index in range(num_slices):
            total += _slice_product(x, w, rows, columns, index * SLICE, K, num_rows, num_columns,
                                    x_stride, ROWS, COLUMNS, SLICE, BLOCK)  # fmt: skip
        tl.store(out + rows[:, None] * out_stride + columns[None, :], total, mask)


def dot_block(weight: torch.Tensor) -> int:
    """Elements of K that are multiplied at once: fewer where weights are split, which takes registers.

    The order of sums depends on it, so it is the same for windows and prompts.
    """
    return 64 if weight.dtype == torch.bfloat16 else 32


def workspace_size(num_rows: int, num_columns: int, num_in: int) -> tuple[int, int]:
    """Sums and tiles of a `Workspace` for a window of `num_rows` and a matrix `[num_columns, num_in]`."""
    return triton.cdiv(num_in, SLICE) * num_rows * num_columns, triton.cdiv(num_columns, 16)


def float_matmul(
    x: torch.Tensor, weight: torch.Tensor, workspace: Workspace, out: torch.Tensor | None = None
) -> torch.Tensor:
    """`x @ weight.T`.

    Args:
        x: float32 `[rows, num_in]`, rows may lie apart.
        weight: float32, float16 or bfloat16 `[num_out, num_in]`, contiguous.
        workspace: used for up to 16 rows.
        out: float32 `[rows, num_out]`, rows may lie apart.

    Returns:
        `out`, or a new tensor. A row has the same bits whatever the others are and how many.
    """
    (num_rows, num_in), num_columns = x.shape, weight.shape[0]
    out = x.new_empty(num_rows, num_columns) if out is None else out
    num_slices = triton.cdiv(num_in, SLICE)
    is_window = num_rows <= WINDOW_ROWS
    tile_rows, tile_columns = (16, 16) if is_window else (32, 64)
    grid = (triton.cdiv(num_columns, tile_columns), triton.cdiv(num_rows, tile_rows))
    if is_window:
        workspace.require(*workspace_size(num_rows, num_columns, num_in))
        grid += (num_slices,)
    _float_matmul[grid](
        x, weight, out, workspace.sums, workspace.arrived, num_rows, num_columns, num_in, num_slices,
        x.stride(0), out.stride(0), ROWS=tile_rows, COLUMNS=tile_columns, SLICE=SLICE,
        BLOCK=dot_block(weight), SPLIT=is_window, num_warps=4 if is_window else 8, num_stages=2,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out
