"""The dense feed-forward layer."""

import torch

from strata.layers.linear import Linear
from strata.layers.weights import Weights
from strata.ops.activation import swiglu


class FeedForward:
    """`ffn_down(silu(ffn_gate(x)) * ffn_up(x))`.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`.
        width: embedding length.
        length: inner length.
        suffix: end of the tensors' names: `""`, or `"_shexp"` for a shared expert.
    """

    def __init__(self, weights: Weights, prefix: str, width: int, length: int, suffix: str = ""):
        self.ffn_gate = Linear(weights, f"{prefix}.ffn_gate{suffix}.weight", length, width)
        self.ffn_up = Linear(weights, f"{prefix}.ffn_up{suffix}.weight", length, width)
        self.ffn_down = Linear(weights, f"{prefix}.ffn_down{suffix}.weight", width, length)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 `[n, width]` -> float32 `[n, width]`."""
        return self.ffn_down(swiglu(self.ffn_gate(x), self.ffn_up(x)))
