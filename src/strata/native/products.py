"""Products with matrices in planes: the native form of the products in `strata.ops.reference`."""

from collections.abc import Sequence

import torch

from strata.native import _core
from strata.native.experts import Experts
from strata.native.matrix import Matrix


def _address(x: torch.Tensor, width: int) -> int:
    """Where contiguous float32 `x` `[..., width]` lies."""
    if x.shape[-1] != width or x.dtype is not torch.float32 or not x.is_contiguous():
        raise ValueError(f"expected contiguous float32 [..., {width}], not {x.dtype} {list(x.shape)}")
    return x.data_ptr()


def matmul(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """`x @ W.T` by the numeric contract: float32 `[..., num_in]` -> float32 `[..., num_out]`."""
    return matmul_all(x, (matrix,))[0]


def matmul_all(x: torch.Tensor, matrices: Sequence[Matrix]) -> list[torch.Tensor]:
    """`matmul` of the same rows, which are quantised once, with each of `matrices`."""
    x = x.contiguous()
    address = _address(x, matrices[0].num_in)
    outs = [x.new_empty(*x.shape[:-1], matrix.num_out) for matrix in matrices]
    rows = x.numel() // x.shape[-1]
    if rows:
        cores = [matrix.core for matrix in matrices]
        _core.multiply_all(address, rows, cores, [out.data_ptr() for out in outs])
    return [
        out if matrix.scale is None else out.mul_(matrix.scale)
        for out, matrix in zip(outs, matrices, strict=True)
    ]


def feed_forward(x: torch.Tensor, gate: Matrix, up: Matrix, down: Matrix) -> torch.Tensor:
    """`down(silu(gate(x)) * up(x))`: float32 `[n, width]` -> `[n, width]`."""
    x = x.contiguous()
    address = _address(x, gate.num_in)
    out = torch.empty_like(x)
    if x.shape[0]:
        _core.feed_forward(gate.core, up.core, down.core, address, x.shape[0], out.data_ptr())
    return out


def experts(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, layer: Experts) -> torch.Tensor:
    """As `strata.ops.reference.experts`, `layer` in the place of its `matrices`.

    Args:
        x: float32 `[n, width]`.
        ids: int64 `[n, slots]`; ValueError where an expert does not exist.
        weights: float32 `[n, slots]`.
        layer: the experts.
    """
    x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
    rows, slots = ids.shape
    if ids.dtype is not torch.int64 or len(x) != rows or len(weights) != rows:
        raise ValueError(f"expected int64 ids of {len(x)} rows, not {ids.dtype} {list(ids.shape)}")
    out = torch.empty_like(x)
    if rows:
        address = _address(x, layer.width)
        share = _address(weights, slots)
        _core.run_layer(layer.core, address, ids.data_ptr(), share, rows, slots, out.data_ptr())
    return out
