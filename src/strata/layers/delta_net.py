"""Gated delta net: linear attention with a state of fixed size (Qwen3-Next and its heirs)."""

from dataclasses import dataclass
from typing import Literal

import torch

from strata.errors import ModelFileError
from strata.layers.linear import Linear, apply_all
from strata.layers.norm import RMSNorm
from strata.layers.rotary import Angles
from strata.layers.weights import Weights
from strata.models.config import Keys, ModelConfig


@dataclass(frozen=True, slots=True)
class DeltaNetConfig:
    """Sizes by the names of the `ssm.*` keys, and the two conventions that differ between architectures."""

    conv_kernel: int
    num_key_heads: int  # ssm.group_count
    num_value_heads: int  # ssm.time_step_rank
    key_length: int  # ssm.state_size
    value_length: int  # ssm.inner_size / ssm.time_step_rank
    # Which key head value head h reads. grouped: h // (value heads / key heads), as in HF checkpoints;
    # tiled: h % key heads, as llama.cpp's converter writes qwen35 and later.
    value_head_order: Literal["grouped", "tiled"]
    gate: Literal["silu", "sigmoid"]

    @classmethod
    def from_keys(
        cls,
        keys: Keys,
        value_head_order: Literal["grouped", "tiled"],
        gate: Literal["silu", "sigmoid"] = "silu",
    ) -> "DeltaNetConfig":
        num_value_heads, inner_size = keys.count("ssm.time_step_rank"), keys.count("ssm.inner_size")
        num_key_heads = keys.count("ssm.group_count")
        if inner_size % num_value_heads or num_value_heads % num_key_heads:
            raise ModelFileError(
                f"{keys.checkpoint.path}: {keys.prefix}ssm.inner_size {inner_size} and ssm.time_step_rank "
                f"{num_value_heads} must be multiples of ssm.time_step_rank and ssm.group_count "
                f"{num_key_heads}"
            )
        return cls(
            conv_kernel=keys.count("ssm.conv_kernel"),
            num_key_heads=num_key_heads,
            num_value_heads=num_value_heads,
            key_length=keys.count("ssm.state_size"),
            value_length=inner_size // num_value_heads,
            value_head_order=value_head_order,
            gate=gate,
        )

    @property
    def key_width(self) -> int:
        return self.num_key_heads * self.key_length

    @property
    def value_width(self) -> int:
        return self.num_value_heads * self.value_length


class DeltaNetState:
    """The last rows before the convolution, and each value head's matrix.

    `past` is replaced and never changed; so is `memory` while a checkpoint may hold it.
    """

    def __init__(self, past: torch.Tensor, memory: torch.Tensor):
        self.length = 0  # tokens seen so far
        self.past = past  # [conv_kernel - 1, channels]
        self.memory = memory  # [value heads, key_length, value_length]
        self.is_held = False  # `memory`, by a checkpoint

    def save(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.is_held = True
        return self.past, self.memory

    def load(self, saved: tuple[torch.Tensor, torch.Tensor], length: int) -> None:
        self.past, self.memory = saved
        self.is_held = True
        self.length = length

    def num_bytes(self) -> int:
        return self.past.nbytes + self.memory.nbytes


class DeltaNet:
    """Projections, short convolution, gated delta rule, gated norm, output projection.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`.
        config: the model's hyper-parameters.
        delta: the layer's own.
    """

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, delta: DeltaNetConfig):
        self.delta = delta
        self.weights, self.ops = weights, weights.ops
        width, channels = config.embedding_length, 2 * delta.key_width + delta.value_width
        projections = FusedProjections if delta.value_head_order == "grouped" else SeparateProjections
        self.project = projections(weights, prefix, width, delta)
        self.ssm_conv1d = weights.require(f"{prefix}.ssm_conv1d.weight", channels, delta.conv_kernel)
        self.ssm_a = weights.require(f"{prefix}.ssm_a", delta.num_value_heads)  # -exp(A_log)
        self.ssm_dt = weights.require(f"{prefix}.ssm_dt.bias", delta.num_value_heads)
        self.ssm_norm = RMSNorm(weights, f"{prefix}.ssm_norm.weight", delta.value_length, config.rms_epsilon)
        self.ssm_out = Linear(weights, f"{prefix}.ssm_out.weight", width, delta.value_width)

    def new_state(self) -> DeltaNetState:
        delta = self.delta
        memory = torch.zeros(delta.num_value_heads, delta.key_length, delta.value_length)
        past = torch.zeros(delta.conv_kernel - 1, 2 * delta.key_width + delta.value_width)
        return DeltaNetState(past, memory)

    def __call__(self, x: torch.Tensor, angles: Angles, state: DeltaNetState) -> torch.Tensor:
        """float32 `[n, width]` -> `[n, width]`; advances `state`. The recurrence knows no `angles`."""
        qkv, z, beta, alpha = self.project(x)
        out, state.past, state.memory = self.ops.gated_delta_net(
            qkv,
            z,
            beta,
            alpha,
            self.weights.get(self.ssm_conv1d),
            self.weights.get(self.ssm_a),
            self.weights.get(self.ssm_dt),
            self.ssm_norm.weight,
            self.ssm_norm.epsilon,
            state.past,
            state.memory,
            state.length,
            tiled=self.delta.value_head_order == "tiled",
            sigmoid_gate=self.delta.gate == "sigmoid",
            in_place=not state.is_held,
        )
        state.is_held = False
        state.length += x.shape[0]
        return self.ssm_out(out)


class SeparateProjections:
    """`qkv`, `z` and one matrix each for beta and alpha; value heads tiled (qwen35, qwen35moe, qwen4exp)."""

    def __init__(self, weights: Weights, prefix: str, width: int, delta: DeltaNetConfig):
        channels = 2 * delta.key_width + delta.value_width
        self.attn_qkv = Linear(weights, f"{prefix}.attn_qkv.weight", channels, width)
        self.attn_gate = Linear(weights, f"{prefix}.attn_gate.weight", delta.value_width, width)
        self.ssm_beta = Linear(weights, f"{prefix}.ssm_beta.weight", delta.num_value_heads, width)
        self.ssm_alpha = Linear(weights, f"{prefix}.ssm_alpha.weight", delta.num_value_heads, width)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """`[n, width]` -> qkv `[n, channels]`, z `[n, value_width]`, beta and alpha `[n, value heads]`."""
        return tuple(apply_all(x, self.attn_qkv, self.attn_gate, self.ssm_beta, self.ssm_alpha))


class FusedProjections:
    """qwen3next: beta and alpha in `ssm_ba`, by key head; in early files qkv and z in `ssm_in` likewise."""

    def __init__(self, weights: Weights, prefix: str, width: int, delta: DeltaNetConfig):
        self.delta = delta
        channels = 2 * delta.key_width + delta.value_width
        self.ssm_ba = Linear(weights, f"{prefix}.ssm_ba.weight", 2 * delta.num_value_heads, width)
        self.ssm_in = self.attn_qkv = self.attn_gate = None
        if f"{prefix}.ssm_in.weight" in weights:
            self.ssm_in = Linear(weights, f"{prefix}.ssm_in.weight", channels + delta.value_width, width)
        else:
            self.attn_qkv = Linear(weights, f"{prefix}.attn_qkv.weight", channels, width)
            self.attn_gate = Linear(weights, f"{prefix}.attn_gate.weight", delta.value_width, width)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `SeparateProjections`."""
        heads = x.shape[0], self.delta.num_key_heads, -1
        if self.ssm_in is None:
            ba, qkv, z = apply_all(x, self.ssm_ba, self.attn_qkv, self.attn_gate)
        else:
            ba, qkvz = apply_all(x, self.ssm_ba, self.ssm_in)
        beta, alpha = (part.flatten(1) for part in ba.view(heads).chunk(2, -1))
        if self.ssm_in is None:
            return qkv, z, beta, alpha
        values = self.delta.value_width // self.delta.num_key_heads
        sizes = [self.delta.key_length, self.delta.key_length, values, values]
        parts = qkvz.view(heads).split(sizes, -1)
        q, k, v, z = (part.flatten(1) for part in parts)
        return torch.cat([q, k, v], 1), z, beta, alpha
