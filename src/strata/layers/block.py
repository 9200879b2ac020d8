"""Decoder blocks: how a mixer and a feed-forward layer sit on the residual."""

from collections.abc import Iterable
from typing import Protocol

import torch

from strata.layers.feed_forward import FeedForward
from strata.layers.hyper_connection import HyperConnection
from strata.layers.moe import Experts
from strata.layers.norm import RMSNorm
from strata.layers.rotary import Angles
from strata.layers.state import LayerState
from strata.layers.weights import Weights
from strata.models.config import ModelConfig


class Mixer(Protocol):
    """The part of a block that looks at other positions."""

    def new_state(self) -> LayerState: ...

    def __call__(self, x: torch.Tensor, angles: Angles, state: LayerState) -> torch.Tensor: ...


def expert_layers(blocks: Iterable["Block | HyperBlock"]) -> dict[int, Experts]:
    """The mixtures of experts among a model's blocks, by the number of their block."""
    return {layer: block.ffn for layer, block in enumerate(blocks) if isinstance(block.ffn, Experts)}


class Block:
    """`x += mixer(attn_norm(x)); x += ffn(norm(x))`.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`.
        config: width and epsilon of the norms.
        mixer: attention, or what stands in its place.
        ffn: dense or mixture of experts.
        ffn_norm: name of the norm before `ffn`, which architectures call differently.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        mixer: Mixer,
        ffn: FeedForward | Experts,
        ffn_norm: str = "ffn_norm",
    ):
        self.ops = weights.ops
        self.attn_norm = RMSNorm(
            weights, f"{prefix}.attn_norm.weight", config.embedding_length, config.rms_epsilon
        )
        self.mixer = mixer
        self.ffn_norm = RMSNorm(
            weights, f"{prefix}.{ffn_norm}.weight", config.embedding_length, config.rms_epsilon
        )
        self.ffn = ffn

    def __call__(
        self, x: torch.Tensor, angles: Angles, state: LayerState, last: bool = False
    ) -> torch.Tensor:
        """float32 `[n, width]` -> `[n, width]`, or `[1, width]` of the `last` row only."""
        mixed = self.mixer(self.attn_norm(x), angles, state)
        if last:
            x, mixed = x[-1:], mixed[-1:]
        x, normalized = self.ops.add_rms_norm(x, mixed, self.ffn_norm.weight, self.ffn_norm.epsilon)
        return x + self.ffn(normalized)


class HyperBlock:
    """Several residual streams, each part between a read and a write of a hyper-connection (qwen4exp).

    Arguments as for `Block`; the norms are the hyper-connections'.
    """

    def __init__(
        self, weights: Weights, prefix: str, config: ModelConfig, mixer: Mixer, ffn: FeedForward | Experts
    ):
        self.hc_attn = HyperConnection(weights, f"{prefix}.hc_attn", config)
        self.mixer = mixer
        self.hc_ffn = HyperConnection(weights, f"{prefix}.hc_ffn", config)
        self.ffn = ffn

    def __call__(
        self, residual: torch.Tensor, angles: Angles, state: LayerState, last: bool = False
    ) -> torch.Tensor:
        """float32 `[n, streams, width]` -> the same, or `[1, streams, width]` of the `last` row only;
        advances `state`."""
        x, inject = self.hc_attn.read(residual)
        mixed = self.mixer(x, angles, state)
        if last:
            residual, mixed, inject = residual[-1:], mixed[-1:], inject[-1:]
        residual = self.hc_attn.write(residual, mixed, inject)
        x, inject = self.hc_ffn.read(residual)
        return self.hc_ffn.write(residual, self.ffn(x), inject)
