"""Keys and values of one sequence in one attention layer."""

import torch

from strata.ops.attention import attend


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
        length = self.length + k.shape[0]
        if length > self._k.shape[0]:
            capacity = max(length, self._k.shape[0] * 3 // 2, 64)
            self._k = self._grown(self._k, capacity)
            self._v = self._grown(self._v, capacity)
        self._k[self.length : length] = k
        self._v[self.length : length] = v
        self.length = length
        return self._k[:length], self._v[:length]

    def _grown(self, buffer: torch.Tensor, capacity: int) -> torch.Tensor:
        grown = buffer.new_empty(capacity, *buffer.shape[1:])
        grown[: self.length] = buffer[: self.length]
        return grown

    def save(self) -> None:
        """Nothing: what was appended stays valid, `load` cuts."""
        return None

    def load(self, saved: None, length: int) -> None:
        assert length <= self.length
        self.length = length

    def num_bytes(self) -> int:
        return (self._k.numel() + self._v.numel()) * self._k.element_size()


__all__ = ["KVState", "attend"]
