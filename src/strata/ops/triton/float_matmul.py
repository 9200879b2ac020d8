"""Products with matrices that are not quantised: routers, hyper-connections, small projections.

A weight is widened to float32 and activations stay float32, as docs/NUMERICS.md says; the order of a sum is
the card's own (see `arithmetic.dot_parts`), not the processor's: the two agree to about 1e-6. It is the same
order for any number of rows: K is cut into slices, each is summed by itself, and slices are added ascending.

A window has too few tiles to keep a card busy. There each slice is a program of its own; whichever of a
tile's programs comes last adds the slices up. A prompt's activations are split into their bfloat16 parts
first, once for all columns, and its programs go through all slices.
"""

import torch
import triton
import triton.language as tl

from strata.ops.triton.arithmetic import (
    add_parts,
    dot_part,
    dot_parts,
    has_matrix_units,
    split_bfloat16,
    stack_parts,
    unstack,
)
from strata.ops.triton.capability import (
    has_few_registers,
    load_stages,
    loads_to_shared_memory,
    loads_together,
    multiplies_by_warp_groups,
    warps,
)
from strata.ops.triton.dependent_launch import launch_dependents, prefetch, step_launch, wait_for_earlier
from strata.ops.triton.intrinsics import INTERPRETED
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.workspace import Workspace

SLICE = 256
WINDOW_ROWS, STACKED_ROWS = 16, 4
WINDOW_COLUMNS = 32
# Columns whose tiles keep the memory of an H200 busy; in the interpreter every program takes long.
WIDE = 256 if INTERPRETED else 6144
_SCALAR_TILE = (16, 64, 256)  # without matrix units, whose part registers then have


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
def prefetch_slice(w, first, num_columns, index, COLUMNS: tl.constexpr, K: tl.constexpr, SLICE: tl.constexpr):
    """`prefetch` slice `index` of the columns `first` on of `w` `[num_columns, K]` that exist."""
    LENGTH: tl.constexpr = min(SLICE, K)
    w += tl.cast(first, tl.int64) * K + tl.minimum(index * SLICE, K - LENGTH)
    prefetch(w + tl.minimum(tl.arange(0, COLUMNS), num_columns - 1 - first) * K, LENGTH)


@triton.jit
def load_columns(w, first, start, num_columns, COLUMNS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """Elements `start` on of columns `first` on of `w` `[num_columns, K]`: `[COLUMNS, BLOCK]`, zeros beyond.

    In place of columns that do not exist it is the last one. Products transpose it; loaded so, it goes to
    matrix units by way of shared memory once.
    """
    column, k = tl.arange(0, COLUMNS)[None, :], start + tl.arange(0, BLOCK)[:, None]
    cells = w + tl.cast(first, tl.int64) * K + (tl.minimum(column, num_columns - 1 - first) * K + k)
    return tl.trans(tl.load(cells, k < K, other=0.0))


@triton.jit
def add_products(x, w, high, middle, low, STACKED: tl.constexpr):
    """Add `x @ w.T` of a window's rows to the sums of the activations' parts; with STACKED one has all three.

    Args:
        x: float32 `[16, k]`, with STACKED 1, 2 or 4 rows.
        w: `[columns, k]`.
        high, middle, low: float32 `[16, columns]`.
    """
    if STACKED:
        high = dot_part(stack_parts(x), w, high)
    else:
        x_high, x_middle, x_low = split_bfloat16(x)
        high, middle, low = dot_parts(x_high, x_middle, x_low, w, high, middle, low)
    return high, middle, low


@triton.jit
def store_slice(high, middle, low, sums, columns, num_rows, num_columns, STACKED: tl.constexpr):
    """Store the product of a slice at `sums`, float32 `[rows, columns]`."""
    COLUMNS: tl.constexpr = columns.shape[0]
    product = unstack(high, COLUMNS) if STACKED else add_parts(high, middle, low)
    rows = tl.arange(0, 4 if STACKED else 16)[:, None]
    mask = (rows < num_rows) & (columns < num_columns)[None, :]
    tl.store(sums + rows * num_columns + columns[None, :], product, mask)


@triton.jit
def add_slices(cells, mask, stride, SLICES: tl.constexpr):
    """Sums over SLICES slices as `store_slice` left them, those of an element `stride` apart."""
    total = tl.zeros(mask.shape, tl.float32)
    for index in tl.static_range(SLICES):  # unrolled: all are loaded at once
        total += tl.load(cells + index * stride, mask, other=0.0, cache_modifier=".cg")
    return total


@kernel
def _window(x, w, out, sums, arrived, num_rows, num_columns, x_stride, out_stride, K: tl.constexpr,
            STACKED: tl.constexpr, USED: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """A program is a tile of columns and a slice; `num_rows` is at most USED, with STACKED at most 4."""
    launch_dependents()
    SLICES: tl.constexpr = (K + SLICE - 1) // SLICE
    first, index = tl.program_id(0) * COLUMNS, tl.program_id(1)
    columns, row = first + tl.arange(0, COLUMNS), tl.arange(0, USED if STACKED else 16)[:, None]
    prefetch_slice(w, first, num_columns, index, COLUMNS, K, SLICE)
    wait_for_earlier()
    high = tl.zeros([16, COLUMNS], tl.float32)
    middle, low = high, high
    for start in range(index * SLICE, index * SLICE + SLICE, BLOCK):
        k = (start + tl.arange(0, BLOCK))[None, :]
        x_tile = tl.load(x + row * x_stride + k, (row < num_rows) & (k < K), other=0.0)
        w_tile = load_columns(w, first, start, num_columns, COLUMNS, K, BLOCK)
        high, middle, low = add_products(x_tile, w_tile, high, middle, low, STACKED)
    at = sums + index * num_rows * num_columns
    store_slice(high, middle, low, at, columns, num_rows, num_columns, STACKED)
    if last_of_tile(arrived + tl.program_id(0), SLICES):
        rows = tl.arange(0, USED)[:, None]
        mask = (rows < num_rows) & (columns < num_columns)[None, :]
        cells = sums + rows * num_columns + columns[None, :]
        total = add_slices(cells, mask, num_rows * num_columns, SLICES)
        tl.store(out + rows * out_stride + columns[None, :], total, mask)


@kernel
def _wide_window(x, w, out, num_rows, num_columns, x_stride, out_stride, K: tl.constexpr,
                 STACKED: tl.constexpr, USED: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr,
                 BLOCK: tl.constexpr):  # fmt: skip
    """`_window` of a matrix with so many tiles of columns that a program of each may do all slices."""
    launch_dependents()
    first = tl.program_id(0) * COLUMNS
    columns, row = first + tl.arange(0, COLUMNS), tl.arange(0, USED if STACKED else 16)[:, None]
    prefetch_slice(w, first, num_columns, 0, COLUMNS, K, SLICE)
    wait_for_earlier()
    total = tl.zeros([4 if STACKED else 16, COLUMNS], tl.float32)
    for begin in range(0, K, SLICE):
        high = tl.zeros([16, COLUMNS], tl.float32)
        middle, low = high, high
        for i in tl.static_range(SLICE // BLOCK):
            start = begin + i * BLOCK
            k = (start + tl.arange(0, BLOCK))[None, :]
            x_tile = tl.load(x + row * x_stride + k, (row < num_rows) & (k < K), other=0.0)
            w_tile = load_columns(w, first, start, num_columns, COLUMNS, K, BLOCK)
            high, middle, low = add_products(x_tile, w_tile, high, middle, low, STACKED)
        total += unstack(high, COLUMNS) if STACKED else add_parts(high, middle, low)
    rows = tl.arange(0, 4 if STACKED else 16)[:, None]
    mask = (rows < num_rows) & (columns < num_columns)[None, :]
    tl.store(out + rows * out_stride + columns[None, :], total, mask)


@kernel
def _split(x, parts, num_rows, x_stride, K: tl.constexpr, BLOCK: tl.constexpr):
    """A program is BLOCK elements of a row."""
    row = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    high, middle, low = split_bfloat16(tl.load(x + row * x_stride + k, k < K, other=0.0))
    plane = tl.cast(num_rows, tl.int64) * K
    cells = parts + row * K + k
    tl.store(cells, high, k < K)
    tl.store(cells + plane, middle, k < K)
    tl.store(cells + 2 * plane, low, k < K)


@triton.jit
def load_parts(x, w, plane, k, is_row, is_column, K: tl.constexpr):
    """Columns `k` `[1, n]` of activations in three parts, `plane` apart, and weights; zeros from `K` on."""
    return (
        tl.load(x + k, is_row & (k < K), other=0.0),
        tl.load(x + plane + k, is_row & (k < K), other=0.0),
        tl.load(x + 2 * plane + k, is_row & (k < K), other=0.0),
        tl.load(w + k, is_column & (k < K), other=0.0),
    )


@kernel
def _prompt(parts, scales, w, out, num_rows, num_columns, out_stride, K: tl.constexpr, GROUPS: tl.constexpr,
            ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A program is a tile. With GROUPS, each of so many equal parts of K is multiplied with a scale."""
    PIECES: tl.constexpr = 1 if GROUPS == 0 else GROUPS
    SLICES: tl.constexpr = (K // PIECES + SLICE - 1) // SLICE
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row, is_column = (rows < num_rows)[:, None], (columns < num_columns)[:, None]
    plane = tl.cast(num_rows, tl.int64) * K
    x = parts + rows.to(tl.int64)[:, None] * K
    w += columns.to(tl.int64)[:, None] * K
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for group in range(PIECES):
        sum_of_group = tl.zeros([ROWS, COLUMNS], tl.float32)
        for index in range(SLICES):
            high = tl.zeros([ROWS, COLUMNS], tl.float32)
            middle, low = high, high
            begin = group * (K // PIECES) + index * SLICE
            for start in range(begin, begin + SLICE, BLOCK):
                k = (start + tl.arange(0, BLOCK))[None, :]
                x_high, x_middle, x_low, w_tile = load_parts(x, w, plane, k, is_row, is_column, K)
                high, middle, low = dot_parts(x_high, x_middle, x_low, w_tile, high, middle, low)
            sum_of_group += add_parts(high, middle, low)
        if GROUPS > 0:
            scale = tl.load(scales + rows * GROUPS + group, rows < num_rows, other=0.0)
            sum_of_group = sum_of_group * scale[:, None]
        total += sum_of_group
    mask = is_row & (columns < num_columns)[None, :]
    tl.store(out + rows.to(tl.int64)[:, None] * out_stride + columns[None, :], total, mask)


def dot_block(weight: torch.Tensor, most: int) -> int:
    """Elements of K that are multiplied at once: `most` where that does not change the order of sums.

    Without matrix units registers hold what is multiplied at once, and the order is always the same.
    """
    return most if weight.dtype == torch.bfloat16 and has_matrix_units() else min(most, 32)


def window_block(weight: torch.Tensor) -> int:
    """Elements of K that a window of up to 4 rows multiplies at once.

    Of two stages only one is loaded before the first product, so a slice should be one; registers of a Radeon
    hold half of it.
    """
    if loads_to_shared_memory():
        return dot_block(weight, SLICE)
    return dot_block(weight, SLICE // 4 if has_few_registers() else SLICE // 2)


def workspace_size(num_columns: int, num_in: int, slice_length: int = SLICE) -> tuple[int, int]:
    """Sums and tiles of a `Workspace` for windows and a matrix `[num_columns, num_in]`."""
    slices = cdiv(num_in, slice_length)
    return slices * WINDOW_ROWS * num_columns, cdiv(num_columns, WINDOW_COLUMNS)


def window_options(weight: torch.Tensor, slice_length: int, num_rows: int) -> dict[str, object]:
    """Constants and options of kernels that multiply a window's rows with slices of a matrix."""
    stacked = num_rows <= STACKED_ROWS
    block = min(window_block(weight) if stacked else dot_block(weight, 64), slice_length)
    return {
        "STACKED": stacked,
        "USED": triton.next_power_of_2(num_rows),
        "COLUMNS": WINDOW_COLUMNS,
        "SLICE": slice_length,
        "BLOCK": block,
        "num_warps": 4,
        "num_stages": 1 if block == slice_length else 2,  # nothing is to be loaded ahead
        **loads_together(),
        **step_launch(),
    }


def _window_tile(weight: torch.Tensor, num_rows: int) -> tuple[bool, dict[str, object]]:
    """Whether `_wide_window` multiplies, and the options of that or of `_window`."""
    options = window_options(weight, SLICE, num_rows)
    # Without stages in shared memory, registers hold too few loads for one program to wait for them all.
    is_wide = weight.shape[0] >= WIDE and (loads_to_shared_memory() or INTERPRETED)
    if is_wide:
        options |= {"num_stages": load_stages(), "num_warps": 2}
        options.pop("maxnreg", None)  # it would keep a stage's loads together
    if options["BLOCK"] == SLICE:
        # By trying on an H200: 25.3 to 22.4 us for 16,480 x 2,560, 13.6 to 12.2 for 2,560 x 6,144.
        options["BLOCK"] = SLICE // 2
        options |= {"num_stages": 4} if is_wide else {"COLUMNS": 64, "num_stages": 2}
    return is_wide, options


def _prompt_tile(num_rows: int) -> tuple[int, int, int]:
    """Rows, columns and threads of a prompt's program; of few rows enough programs for an H200.

    Products of 64 rows take other instructions there than those of windows; sums have the same bits, see
    `checks/float_matmul.py`.
    """
    if not has_matrix_units():
        return _SCALAR_TILE
    if not multiplies_by_warp_groups():
        return 32, 128, 256
    if num_rows > 1024:
        return 64, 128, 256
    return 64, 32 if num_rows <= 512 else 64, 128


def multiply_parts(
    parts: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    slice_length: int = SLICE,
    scales: torch.Tensor | None = None,
) -> None:
    """`float_matmul` of a prompt's rows that are split already.

    Args:
        parts: bfloat16 `[3, rows, num_in]`, contiguous.
        weight, out: as there.
        slice_length: of the parts of K (or of a group) that are summed by themselves.
        scales: float32 `[rows, groups]`: K is cut into groups, whose sums are multiplied with these.
    """
    (num_rows, num_in), num_columns = parts.shape[1:], weight.shape[0]
    rows, columns, threads = _prompt_tile(num_rows)
    _prompt[(cdiv(num_columns, columns), cdiv(num_rows, rows))](
        parts, scales, weight, out, num_rows, num_columns, out.stride(0), K=num_in,
        GROUPS=0 if scales is None else scales.shape[1], ROWS=rows, COLUMNS=columns, SLICE=slice_length,
        BLOCK=min(dot_block(weight, 64), slice_length), num_warps=warps(threads), num_stages=load_stages(),
        enable_fp_fusion=False,
    )  # fmt: skip


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
    if num_rows <= WINDOW_ROWS:
        is_wide, options = _window_tile(weight, num_rows)
        tiles = cdiv(num_columns, options["COLUMNS"])
        if is_wide:
            _wide_window[(tiles,)](
                x, weight, out, num_rows, num_columns, x.stride(0), out.stride(0), K=num_in, **options
            )
            return out
        workspace.require(*workspace_size(num_columns, num_in))
        _window[(tiles, cdiv(num_in, SLICE))](
            x, weight, out, workspace.sums, workspace.arrived, num_rows, num_columns, x.stride(0),
            out.stride(0), K=num_in, **options,
        )  # fmt: skip
        return out
    parts = torch.empty(3, num_rows, num_in, dtype=torch.bfloat16, device=x.device)
    _split[(cdiv(num_in, 1024), num_rows)](
        x, parts, num_rows, x.stride(0), K=num_in, BLOCK=1024, num_warps=4, enable_fp_fusion=False
    )
    multiply_parts(parts, weight, out)
    return out
