"""Gated hyper-connections: a residual of several streams that blocks read from and write to.

The scheme of `qwen4_exp` (MODELS.md section 2.2; the idea: Zhu et al. 2024, arXiv 2409.19606). It is
also the only place where the residual is normalised.
"""

import torch

from strata.layers.linear import Linear
from strata.layers.weights import Weights
from strata.models.config import Keys, ModelConfig


class HyperConnection:
    """Read a block's input from the streams, and say how strongly its output is added to each.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N.hc_attn`, `blk.N.hc_ffn`, `output_hc`, ...
        config: the model's hyper-parameters.
        inject: False for a mixer at the end, which nothing is written back from.
    """

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, inject: bool = True):
        keys = Keys(weights.checkpoint)
        self.weights, self.ops = weights, weights.ops
        self.streams = keys.count("hyper_connection.count")
        self.epsilon = config.rms_epsilon
        low_rank, width = keys.count("hyper_connection.low_rank"), self.streams * config.embedding_length
        self.norm = weights.require(f"{prefix}_norm.weight", width)
        self.down = Linear(weights, f"{prefix}_down.weight", low_rank, width)
        self.up = Linear(weights, f"{prefix}_up.weight", width, low_rank)
        self.inject = Linear(weights, f"{prefix}_inject.weight", self.streams, width) if inject else None

    def mix(self, residual: torch.Tensor) -> torch.Tensor:
        """Streams float32 `[n, streams, width]` -> a block's input `[n, width]`."""
        return self._mix(self._normalized(residual))

    def read(self, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Streams float32 `[n, streams, width]` -> a block's input `[n, width]`, strength `[n, streams]`."""
        normalized = self._normalized(residual)
        strength = 2 * self.ops.sigmoid(self.inject(normalized.flatten(1)) / self.streams)
        return self._mix(normalized), strength

    @staticmethod
    def write(residual: torch.Tensor, output: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
        """Add a block's output `[n, width]` to the streams `[n, streams, width]`."""
        return residual + strength[:, :, None] * output[:, None]

    def _normalized(self, residual: torch.Tensor) -> torch.Tensor:
        return self.ops.rms_norm(residual, self.weights.get(self.norm).view(self.streams, -1), self.epsilon)

    def _mix(self, normalized: torch.Tensor) -> torch.Tensor:
        low = self.ops.silu(self.down(normalized.flatten(1)) / self.streams)
        gated = (self.ops.sigmoid(self.up(low)).view_as(normalized) * normalized).unbind(1)
        return sum(gated[1:], gated[0]) / self.streams  # in the order of the streams, however many rows
