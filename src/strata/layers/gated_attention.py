"""Full attention with normalised queries and keys and a gated output (Qwen3-Next and its heirs)."""

import torch

from strata.layers.attention import KVState
from strata.layers.linear import Linear, apply_all
from strata.layers.norm import RMSNorm
from strata.layers.rotary import Angles
from strata.layers.weights import Weights
from strata.models.config import ModelConfig


class GatedAttention:
    """`attn_output(attention(q, k, v) * sigmoid(gate))`; `attn_q` holds `[query | gate]` of each head.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`.
        config: the model's hyper-parameters.
    """

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig):
        self.ops = weights.ops
        self.config = config
        width, heads, heads_kv = config.embedding_length, config.head_count, config.head_count_kv
        key_length, value_length = config.key_length, config.value_length
        self.scale = key_length**-0.5
        self.attn_q = Linear(weights, f"{prefix}.attn_q.weight", heads * (key_length + value_length), width)
        self.attn_k = Linear(weights, f"{prefix}.attn_k.weight", heads_kv * key_length, width)
        self.attn_v = Linear(weights, f"{prefix}.attn_v.weight", heads_kv * value_length, width)
        self.attn_q_norm = RMSNorm(weights, f"{prefix}.attn_q_norm.weight", key_length, config.rms_epsilon)
        self.attn_k_norm = RMSNorm(weights, f"{prefix}.attn_k_norm.weight", key_length, config.rms_epsilon)
        self.attn_output = Linear(weights, f"{prefix}.attn_output.weight", width, heads * value_length)

    def new_state(self) -> KVState:
        return KVState(self.config.head_count_kv, self.config.key_length, self.config.value_length)

    def __call__(self, x: torch.Tensor, angles: Angles, state: KVState) -> torch.Tensor:
        """float32 `[n, width]` -> `[n, width]`; advances `state`."""
        q, gate, k, v = self._projections(x)
        begin, keys, values = state.extend(x.shape[0])
        out = self.ops.attend_cached(
            q,
            k,
            v,
            *angles,
            keys,
            values,
            begin,
            self.scale,
            q_norm=self.attn_q_norm.weight,
            k_norm=self.attn_k_norm.weight,
            epsilon=self.config.rms_epsilon,
            gate=gate,
        )
        return self.attn_output(out)

    def project(
        self, x: torch.Tensor, angles: Angles
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, gates `[n, heads, dim]`, keys, values `[n, kv_heads, dim]`, turned to their positions."""
        q, gate, k, v = self._projections(x)
        q = self.ops.rotate(self.attn_q_norm(q), *angles)
        k = self.ops.rotate(self.attn_k_norm(k), *angles)
        return q, gate, k, v

    def _projections(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        config, num_tokens = self.config, x.shape[0]
        q, k, v = apply_all(x, self.attn_q, self.attn_k, self.attn_v)
        q, gate = q.view(num_tokens, config.head_count, -1).split(
            [config.key_length, config.value_length], -1
        )
        k = k.view(num_tokens, config.head_count_kv, -1)
        v = v.view(num_tokens, config.head_count_kv, -1)
        return q, gate, k, v

    def output(self, attended: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Gate and project `[n, heads, dim]` -> `[n, width]`."""
        return self.attn_output((attended * self.ops.sigmoid(gate)).flatten(1))
