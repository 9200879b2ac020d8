"""Matrices in planes, and products with them."""

import threading
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from strata.formats.mapping import let_go
from strata.formats.quants.grid import GRID, grid
from strata.hardware.cpu import usable_cpus
from strata.native import _core

_GRID_NAMES = frozenset(f.name for f in GRID)
_TILE_ROWS = 16
_ALIGNMENT = 64  # bytes: a cache line, and the widest vector
_POOL_BYTES = 1 << 25  # small matrices share memory: NumPy asks for huge pages from 4 MiB on


def isa() -> str:
    """Name of the instruction set whose kernels this process uses."""
    return _core.isa()


def num_threads() -> int:
    """Threads that share a product, the caller among them."""
    return _core.num_threads()


def set_num_threads(n: int) -> None:
    """Use `n` threads, 1 to 1024, from the next call on; the first of the usable cores get one each."""
    _core.set_num_threads(n, [(core.cpus, core.speed) for core in usable_cpus()])


_pool_lock = threading.Lock()
_pool = np.empty(0, dtype=np.uint8)  # what is left of the memory that small matrices share


def empty_planes(num_bytes: int) -> np.ndarray:
    """Uninitialised uint8 `[num_bytes]` whose first byte starts a cache line.

    Its memory is given back with the last of the neighbours that share it.
    """
    global _pool
    taken = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    if taken > _POOL_BYTES // 2:
        return _aligned(taken)[:num_bytes]
    with _pool_lock:
        if taken > len(_pool):
            _pool = _aligned(_POOL_BYTES)
        planes, _pool = _pool[:num_bytes], _pool[taken:]
    return planes


def _aligned(num_bytes: int) -> np.ndarray:
    buffer = np.empty(num_bytes + _ALIGNMENT, dtype=np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + num_bytes]


@cache
def load_codebook(format: str) -> None:
    """Hand the kernels the codebook of `format`, where it has one, as native/grids.hpp describes it."""
    if format not in _GRID_NAMES:
        return
    name = "IQ1_S" if format == "IQ1_M" else format
    entries = grid(name).astype(np.int8)
    if name == "IQ1_S":
        nibbles = np.concatenate([4 * entries + 5, 4 * entries + 4])  # 8 * weight + 1, then - 1: 2n - 9
        entries = nibbles[:, :4] | nibbles[:, 4:] << 4
    _core.set_grid(name, entries.view(np.uint8).reshape(-1))


def as_rows(x: torch.Tensor) -> np.ndarray:
    """`x` `[..., n]` as `[rows, n]`, contiguous. NumPy arrays reach C++ three times as fast as tensors."""
    if x.dim() != 2:
        x = x.reshape(-1, x.shape[-1])
    return x.contiguous().numpy()


class Activations:
    """Rows to be multiplied with any number of matrices, quantised once, when a quantised one asks.

    Args:
        x: float32 `[..., num_in]`; must not change meanwhile.
    """

    def __init__(self, x: torch.Tensor):
        self.shape = x.shape[:-1]
        self.core = _core.Activations(as_rows(x))


@cache
def formats() -> frozenset[str]:
    """ggml's names of the formats that have kernels."""
    return frozenset(_core.formats())


def plane_bytes(format: str, num_out: int, num_in: int) -> int:
    """Bytes of the planes of a matrix `[num_out, num_in]`."""
    return _core.plane_bytes(format, num_out, num_in)


def pack(format: str, num_out: int, num_in: int, blocks: np.ndarray, planes: np.ndarray) -> None:
    """Rearrange GGUF blocks, uint8 of any shape, into `planes` `[plane bytes]`; ValueError: wrong sizes.

    `planes` starts a cache line (`empty_planes`). If `blocks` lie in a mapped file, their pages are let go.
    """
    _core.pack(format, num_out, num_in, blocks.reshape(-1), planes)
    let_go(blocks)


def pack_scales(num_out: int, num_in: int, scales: np.ndarray, planes: np.ndarray) -> None:
    """Write the scales of an F8_E4M3 matrix into its `planes`, where `pack` puts the weights.

    Args:
        scales: float32 `[ceil(num_out / 128), ceil(num_in / 128)]`, one for a block of 128 x 128 weights.
    """
    blocks = -(-num_in // 128)
    tiles = planes.reshape(-(-num_out // _TILE_ROWS), -1)
    rows = np.zeros((len(tiles) * _TILE_ROWS, blocks), dtype=np.float32)
    rows[:num_out] = scales.repeat(128, axis=0)[:num_out]
    begin = num_in * _TILE_ROWS
    plane = tiles[:, begin : begin + blocks * _TILE_ROWS * 4].view(np.float32)
    plane[:] = rows.reshape(len(tiles), _TILE_ROWS, blocks).transpose(0, 2, 1).reshape(len(tiles), -1)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix `[num_out, num_in]` in the planes of its format.

    Args:
        format: ggml's name of the format, or F8_E4M3.
        planes: uint8 `[plane bytes]` as docs/NUMERICS.md lays them out; kept, not copied.
    """

    format: str
    num_out: int
    num_in: int
    planes: np.ndarray
    core: _core.Matrix

    @classmethod
    def from_planes(
        cls, format: str, num_out: int, num_in: int, planes: np.ndarray, scale: float = 1
    ) -> "Matrix":
        """Use planes that are packed already; ValueError where their size or the shape does not fit.

        `scale` multiplies every product, as the factor does that NVFP4 files have beside a matrix.
        """
        load_codebook(format)
        return cls(format, num_out, num_in, planes, _core.Matrix(format, num_out, num_in, planes, scale))

    @classmethod
    def from_gguf(
        cls, format: str, num_out: int, num_in: int, blocks: np.ndarray, scale: float = 1
    ) -> "Matrix":
        """Pack GGUF blocks, uint8 of any shape, into new planes; ValueError where sizes do not fit."""
        planes = empty_planes(plane_bytes(format, num_out, num_in))
        pack(format, num_out, num_in, blocks, planes)
        return cls.from_planes(format, num_out, num_in, planes, scale)

    @classmethod
    def from_fp8(cls, num_out: int, num_in: int, weights: np.ndarray, scales: np.ndarray) -> "Matrix":
        """Pack F8_E4M3 weights, uint8 `[num_out, num_in]`, and their scales (see `pack_scales`)."""
        planes = empty_planes(plane_bytes("F8_E4M3", num_out, num_in))
        pack("F8_E4M3", num_out, num_in, weights, planes)
        pack_scales(num_out, num_in, scales, planes)
        return cls.from_planes("F8_E4M3", num_out, num_in, planes)

    def multiply(self, x: Activations | torch.Tensor) -> torch.Tensor:
        """`x @ W.T` by the numeric contract: float32 `[..., num_in]` -> float32 `[..., num_out]`."""
        if isinstance(x, torch.Tensor):
            x = Activations(x)
        out = np.empty((x.core.rows, self.num_out), dtype=np.float32)
        self.core.multiply(x.core, out)
        y = torch.from_numpy(out)
        return y if len(x.shape) == 1 else y.view(*x.shape, self.num_out)
