"""Gated hyper-connections: a residual of several streams that blocks read from and write to.

The scheme of `qwen4_exp` (MODELS.md section 2.2; the idea: Zhu et al. 2024, arXiv 2409.19606). It is
also the only place where the residual is normalised.
"""

import torch

from strata.layers.linear import Linear, apply_all
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
        normalized = self._normalized(residual)
        return self._mix(normalized, self.down(normalized.flatten(1)))

    def read(self, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Streams float32 `[n, streams, width]` -> a block's input `[n, width]`, and `[n, streams]` that say
        how strongly its output is to be added to each, for `write`."""
        normalized = self._normalized(residual)
        down, inject = apply_all(normalized.flatten(1), self.down, self.inject)
        return self._mix(normalized, down), inject

    def write(self, residual: torch.Tensor, output: torch.Tensor, inject: torch.Tensor) -> torch.Tensor:
        """Add a block's output `[n, width]` to the streams `[n, streams, width]`."""
        return self.ops.write_streams(residual, output, inject)

    def _normalized(self, residual: torch.Tensor) -> torch.Tensor:
        return self.ops.rms_norm(residual, self.weights.get(self.norm).view(self.streams, -1), self.epsilon)

    def _mix(self, normalized: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return self.ops.read_streams(normalized, self.up(self.ops.silu(down / self.streams)))
