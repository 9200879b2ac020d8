"""Causal attention with grouped key-value heads, and the keys and values a sequence keeps for it."""

import torch

from strata.layers.linear import Linear, apply_all
from strata.layers.norm import RMSNorm
from strata.layers.weights import Weights
from strata.models.config import ModelConfig


class KVState:
    """Append-only keys and values, float32 `[length, kv_heads, dim]`, that can be cut at any length.

    The buffers grow by half of their size, so that appending one token costs constant time on average.
    """

    def __init__(self, head_count_kv: int, key_length: int, value_length: int):
        self.length = 0
        self._k = torch.empty(0, head_count_kv, key_length)
        self._v = torch.empty(0, head_count_kv, value_length)

    def append(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add `k`, `v` `[n, kv_heads, dim]` and return views of all keys and values."""
        begin, keys, values = self.extend(k.shape[0])
        keys[begin : self.length] = k
        values[begin : self.length] = v
        return keys[: self.length], values[: self.length]

    def extend(self, count: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        """Make room for `count` tokens, which the caller writes.

        Returns:
            where they begin, and the buffers of keys and values, `[capacity, kv_heads, dim]`.
        """
        begin, self.length = self.length, self.length + count
        if self.length > self._k.shape[0]:
            capacity = max(self.length, self._k.shape[0] * 3 // 2, 64)
            self._k = self._grown(self._k, begin, capacity)
            self._v = self._grown(self._v, begin, capacity)
        return begin, self._k, self._v

    def _grown(self, buffer: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
        grown = buffer.new_empty(capacity, *buffer.shape[1:])
        grown[:length] = buffer[:length]
        return grown

    def save(self) -> None:
        """Nothing: what was appended stays valid, `load` cuts."""
        return None

    def load(self, saved: None, length: int) -> None:
        assert length <= self.length
        self.length = length

    def num_bytes(self) -> int:
        return (self._k.numel() + self._v.numel()) * self._k.element_size()


class Attention:
    """`attn_output(softmax(q k^T / sqrt(dim)) v)` with rotary positions.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`.
        config: head counts and lengths.
        interleaved: pairing of the rotary positions, see `ops.rotary.rotate`.
        qk_norm: normalise each head of q and k (`attn_q_norm`, `attn_k_norm`) before the rotation, as Qwen3.
        window: attend to this many last positions only; None for all.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        interleaved: bool = False,
        qk_norm: bool = False,
        window: int | None = None,
    ):
        self.ops = weights.ops
        self.config = config
        self.interleaved = interleaved
        self.window = window
        width, num_heads, num_kv = config.embedding_length, config.head_count, config.head_count_kv
        self.attn_q = Linear(weights, f"{prefix}.attn_q.weight", num_heads * config.key_length, width)
        self.attn_k = Linear(weights, f"{prefix}.attn_k.weight", num_kv * config.key_length, width)
        self.attn_v = Linear(weights, f"{prefix}.attn_v.weight", num_kv * config.value_length, width)
        self.attn_output = Linear(
            weights, f"{prefix}.attn_output.weight", width, num_heads * config.value_length
        )
        self.attn_q_norm = self.attn_k_norm = None
        if qk_norm:
            self.attn_q_norm = RMSNorm(
                weights, f"{prefix}.attn_q_norm.weight", config.key_length, config.rms_epsilon
            )
            self.attn_k_norm = RMSNorm(
                weights, f"{prefix}.attn_k_norm.weight", config.key_length, config.rms_epsilon
            )

    def new_state(self) -> KVState:
        return KVState(self.config.head_count_kv, self.config.key_length, self.config.value_length)

    def __call__(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], state: KVState
    ) -> torch.Tensor:
        """float32 `[n, width]` -> `[n, width]`; `angles` are `Rotary.angles` of the `n` positions."""
        q, k, v = apply_all(x, self.attn_q, self.attn_k, self.attn_v)
        begin, keys, values = state.extend(x.shape[0])
        out = self.ops.attend_cached(
            q,
            k,
            v,
            *angles,
            keys,
            values,
            begin,
            self.config.key_length**-0.5,
            self.interleaved,
            self.window,
            *self._norms(),
            self.config.rms_epsilon,
        )
        return self.attn_output(out)

    def _norms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if self.attn_q_norm is None or self.attn_k_norm is None:
            return None, None
        return self.attn_q_norm.weight, self.attn_k_norm.weight
