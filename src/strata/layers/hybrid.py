"""What the models that mix delta net and attention share: which layer is which, experts, blocks."""

from typing import Protocol

import torch

from strata.errors import ModelFileError
from strata.layers.feed_forward import FeedForward
from strata.layers.hyper_connection import HyperConnection
from strata.layers.moe import Experts, require_softmax_router
from strata.layers.norm import RMSNorm
from strata.layers.state import LayerState
from strata.layers.weights import Weights
from strata.models.config import Keys, ModelConfig


class Mixer(Protocol):
    """Delta net or attention: what lets a token see those before it."""

    def new_state(self) -> LayerState: ...

    def __call__(self, x: torch.Tensor, state: LayerState, position: int) -> torch.Tensor: ...


def recurrent_layers(keys: Keys, config: ModelConfig) -> list[bool]:
    """True for each decoder layer that is a delta net, False for attention."""
    key = "attention.recurrent_layers"
    if key not in keys:
        interval = keys.count("full_attention_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(config.block_count)]
    recurrent = keys.list(key)
    if len(recurrent) < config.block_count:
        raise ModelFileError(
            f"{keys.checkpoint.path}: metadata key {keys.prefix}{key} has {len(recurrent)} entries "
            f"for {config.block_count} layers"
        )
    return [bool(value) for value in recurrent[: config.block_count]]


def feed_forward(weights: Weights, prefix: str, config: ModelConfig) -> Experts | FeedForward:
    """The layer's experts with their shared expert, or a dense layer where it has no router."""
    keys = Keys(weights.checkpoint)
    router = weights.checkpoint.tensors.get(f"{prefix}.ffn_gate_inp.weight")
    if router is None and (not config.expert_count or f"{prefix}.ffn_gate.weight" in weights):
        return FeedForward(weights, prefix, config.embedding_length, keys.count("feed_forward_length"))
    require_softmax_router(weights)
    # files with some experts cut out may keep the key of the full model: the router says how many there are
    expert_count = config.expert_count or (router.shape[0] if router is not None else 0)
    expert_used_count = keys.count("expert_used_count")
    if expert_used_count > expert_count:
        raise ModelFileError(
            f"{weights.checkpoint.path}: {keys.prefix}expert_used_count {expert_used_count} exceeds the "
            f"{expert_count} experts of {prefix}"
        )
    length = keys.count("expert_feed_forward_length")
    return Experts(
        weights,
        prefix,
        config.embedding_length,
        length,
        expert_count,
        expert_used_count,
        shared_length=keys.count("expert_shared_feed_forward_length", length),
        normalize=keys.flag("expert_weights_norm", True),
    )


class PreNormBlock:
    """One residual stream, each part behind a norm (Qwen3-Next, Qwen3.5)."""

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, mixer: Mixer):
        width, epsilon = config.embedding_length, config.rms_epsilon
        self.attn_norm = RMSNorm(weights, f"{prefix}.attn_norm.weight", width, epsilon)
        self.mixer = mixer
        self.post_attention_norm = RMSNorm(weights, f"{prefix}.post_attention_norm.weight", width, epsilon)
        self.ffn = feed_forward(weights, prefix, config)

    def __call__(self, x: torch.Tensor, state: LayerState, position: int) -> torch.Tensor:
        """`n` tokens from `position` on: float32 `[n, width]` -> the same; advances `state`."""
        x = x + self.mixer(self.attn_norm(x), state, position)
        return x + self.ffn(self.post_attention_norm(x))


class HyperBlock:
    """Several residual streams, each part between a read and a write of a hyper-connection (qwen4exp)."""

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, mixer: Mixer):
        self.hc_attn = HyperConnection(weights, f"{prefix}.hc_attn", config)
        self.mixer = mixer
        self.hc_ffn = HyperConnection(weights, f"{prefix}.hc_ffn", config)
        self.ffn = feed_forward(weights, prefix, config)

    def __call__(self, residual: torch.Tensor, state: LayerState, position: int) -> torch.Tensor:
        """`n` tokens from `position` on: float32 `[n, streams, width]` -> the same; advances `state`."""
        x, strength = self.hc_attn.read(residual)
        residual = self.hc_attn.write(residual, self.mixer(x, state, position), strength)
        x, strength = self.hc_ffn.read(residual)
        return self.hc_ffn.write(residual, self.ffn(x), strength)
