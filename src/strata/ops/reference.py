"""The torch reference of every op that layers call: the truth, float32, on decoded weights.

A set of ops is a module with these names and signatures; `layers.weights.Weights.ops` says which one a model
uses. The other one is `strata.native.ops`.
"""

from collections.abc import Callable, Sequence

import torch

from strata.ops.activation import sigmoid, silu, softplus, swiglu
from strata.ops.attention import attend
from strata.ops.block_selection import select_blocks
from strata.ops.cached_attention import attend_cached
from strata.ops.convolution import causal_convolution
from strata.ops.delta_rule import delta_rule
from strata.ops.gated_delta_net import gated_delta_net
from strata.ops.gathered_attention import attend_gathered
from strata.ops.hyper_connection import read_streams, write_streams
from strata.ops.rms_norm import add_rms_norm, rms_norm
from strata.ops.rotary import rotate
from strata.ops.router import route

__all__ = [
    "add_rms_norm",
    "attend",
    "attend_cached",
    "attend_gathered",
    "causal_convolution",
    "delta_rule",
    "experts",
    "feed_forward",
    "gated_delta_net",
    "matmul",
    "matmul_all",
    "read_streams",
    "rms_norm",
    "rotate",
    "route",
    "select_blocks",
    "sigmoid",
    "silu",
    "softplus",
    "swiglu",
    "write_streams",
]


def matmul(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """`x @ matrix.T`: float32 `[..., num_in]`, `[num_out, num_in]` -> `[..., num_out]`."""
    return x @ matrix.T


def matmul_all(x: torch.Tensor, matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`matmul` of the same rows with each of `matrices`."""
    return [matmul(x, matrix) for matrix in matrices]


def feed_forward(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """`down(silu(gate(x)) * up(x))`: float32 `[n, width]` -> `[n, width]`."""
    return matmul(swiglu(matmul(x, gate), matmul(x, up)), down)


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    matrices: Callable[[int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Sum over slots, ascending, of `weights[row, slot] * feed_forward(x[row], *matrices(ids[row, slot]))`.

    Args:
        x: float32 `[n, width]`.
        ids: int64 `[n, slots]`.
        weights: float32 `[n, slots]`.
        matrices: gate, up and down of an expert; asked once for each expert that a row has chosen.
    """
    outputs = x.new_empty(*ids.shape, x.shape[-1])  # [n, slots, width]
    for expert in ids.unique().tolist():
        rows, slots = (ids == expert).nonzero(as_tuple=True)
        outputs[rows, slots] = feed_forward(x[rows], *matrices(expert))
    out = torch.zeros_like(x)
    for slot in range(ids.shape[1]):  # in the router's order, wherever an expert ran
        out += weights[:, slot, None] * outputs[:, slot]
    return out
