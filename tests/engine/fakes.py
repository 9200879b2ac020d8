"""Models whose logits are a hash of every token they were given: any slip in reuse changes them."""

import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from strata.layers.state import SequenceState
from strata.models.base import Model

VOCAB = 64


class Cells:
    """Append-only, as keys and values are: cut at any length."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def append(self, token: int) -> None:
        self.tokens.append(token)

    def digest(self) -> int:
        return zlib.crc32(bytes(self.tokens))

    def save(self) -> None:
        return None

    def load(self, saved: None, length: int) -> None:
        assert length <= len(self.tokens)
        del self.tokens[length:]

    def num_bytes(self) -> int:
        return len(self.tokens)


class Recurrence:
    """A running hash, as a recurrent state is: only a copy brings an earlier one back."""

    def __init__(self) -> None:
        self.hash = 0

    def append(self, token: int) -> None:
        self.hash = (self.hash * 31 + token + 1) % 1_000_003

    def digest(self) -> int:
        return self.hash

    def save(self) -> dict[str, torch.Tensor]:
        return {"hash": torch.tensor(self.hash)}

    def load(self, saved: dict[str, torch.Tensor], length: int) -> None:
        self.hash = int(saved["hash"])

    def num_bytes(self) -> int:
        return 8


class HashModel(Model):
    """Logits that depend on all tokens so far; notes where each call's tokens began and ended."""

    def __init__(self, recurrent: bool):
        self.config: Any = SimpleNamespace(vocab_size=VOCAB)
        self.recurrent = recurrent
        self.calls: list[tuple[int, int]] = []

    def new_state(self) -> SequenceState:
        return SequenceState([Cells(), Recurrence()] if self.recurrent else [Cells()], self.recurrent)

    def forward(self, tokens: list[int], state: SequenceState, all_logits: bool = False) -> torch.Tensor:
        assert tokens
        self.calls.append((state.position, state.position + len(tokens)))
        for layer in state.layers:
            for token in tokens:
                layer.append(token)
        state.position += len(tokens)
        digest = zlib.crc32(repr([layer.digest() for layer in state.layers]).encode())
        return torch.from_numpy(np.random.default_rng(digest).normal(size=(1, VOCAB)).astype(np.float32))
