"""What one sequence owns between two calls of a model.

Keys and values are append-only and can be cut anywhere. Recurrent states (delta net, convolutions,
n-gram window) cannot: going back needs a copy, which `checkpoint` makes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class LayerState(Protocol):
    """The state of one layer; a layer without recurrent state saves None."""

    def save(self) -> Any: ...

    def load(self, saved: Any, length: int) -> None:
        """Return to the moment `saved` was taken, when the sequence had `length` tokens."""

    def num_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class StateCheckpoint:
    position: int
    saved: list[Any]
    num_bytes: int


class SequenceState:
    """Position and layer states of one sequence.

    `recurrent` is False when every layer can be cut at any length: then `rewind` needs no checkpoint.
    """

    def __init__(self, layers: list[LayerState], recurrent: bool):
        self.layers = layers
        self.recurrent = recurrent
        self.position = 0  # tokens seen so far

    def checkpoint(self) -> StateCheckpoint:
        saved = [layer.save() for layer in self.layers]
        return StateCheckpoint(self.position, saved, saved_bytes(saved))

    def rewind(self, checkpoint: StateCheckpoint) -> None:
        """Return to `checkpoint`, which must have been taken on this sequence's present prefix."""
        assert checkpoint.position <= self.position
        for layer, saved in zip(self.layers, checkpoint.saved, strict=True):
            layer.load(saved, checkpoint.position)
        self.position = checkpoint.position

    def truncate(self, length: int) -> None:
        """Cut a sequence without recurrent state to its first `length` tokens."""
        assert not self.recurrent and length <= self.position
        for layer in self.layers:
            layer.load(None, length)
        self.position = length

    def num_bytes(self) -> int:
        return sum(layer.num_bytes() for layer in self.layers)


def saved_bytes(saved: Any) -> int:
    """Bytes of the tensors in a checkpoint's saved layer states, however they are nested."""
    if isinstance(saved, torch.Tensor):
        return saved.numel() * saved.element_size()
    if isinstance(saved, Mapping):
        return sum(map(saved_bytes, saved.values()))
    if isinstance(saved, list | tuple):
        return sum(map(saved_bytes, saved))
    return 0
