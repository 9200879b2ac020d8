"""The dense feed-forward layer."""

import torch

from strata.layers.linear import Linear
from strata.layers.weights import Weights


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
        self.ops = weights.ops
        self.ffn_gate = Linear(weights, f"{prefix}.ffn_gate{suffix}.weight", length, width)
        self.ffn_up = Linear(weights, f"{prefix}.ffn_up{suffix}.weight", length, width)
        self.ffn_down = Linear(weights, f"{prefix}.ffn_down{suffix}.weight", width, length)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 `[n, width]` -> float32 `[n, width]`."""
        if self.ffn_gate.bias or self.ffn_up.bias or self.ffn_down.bias:
            return self.ffn_down(self.ops.swiglu(self.ffn_gate(x), self.ffn_up(x)))
        return self.ops.feed_forward(x, self.ffn_gate.matrix, self.ffn_up.matrix, self.ffn_down.matrix)
