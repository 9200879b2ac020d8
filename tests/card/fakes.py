"""A card in host memory whose copies and windows end when the test says so."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import torch


class FakeTicket:
    def __init__(self) -> None:
        self.landed = False

    def done(self) -> bool:
        return self.landed

    def gate(self) -> None:
        pass


class FakeCard:
    """What `strata.card.device.Card` does, on the CPU.

    Args:
        refuse: called with memory to register; raises what a driver would.
    """

    def __init__(self, refuse: Callable[[np.ndarray], None] = lambda memory: None):
        self.device = torch.device("cpu")
        self.registered: set[int] = set()
        self.copies: list[tuple[FakeTicket, list[tuple[torch.Tensor, torch.Tensor]]]] = []
        self.marks: list[FakeTicket] = []
        self._refuse = refuse

    def empty(self, num_bytes: int) -> torch.Tensor:
        return torch.full((num_bytes,), 0xEE, dtype=torch.uint8)

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def register(self, memory: np.ndarray) -> None:
        self._refuse(memory)
        self.registered.add(memory.ctypes.data)

    def unregister(self, memory: np.ndarray) -> None:
        self.registered.remove(memory.ctypes.data)

    def copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> FakeTicket:
        """Destinations are spoiled at once, and right only when the copy has landed."""
        for destination, _ in pairs:
            destination.fill_(0xDD)
        self.copies.append((FakeTicket(), list(pairs)))
        return self.copies[-1][0]

    def mark(self) -> FakeTicket:
        self.marks.append(FakeTicket())
        return self.marks[-1]

    def land(self, count: int) -> None:
        """Finish the `count` oldest copies."""
        for ticket, pairs in self.copies[:count]:
            for destination, source in pairs:
                destination.copy_(source)
            ticket.landed = True
        del self.copies[:count]

    def synchronize(self) -> None:
        self.land(len(self.copies))
        for mark in self.marks:
            mark.landed = True


def read(address: int, num_bytes: int) -> np.ndarray:
    """The bytes at an address of this process."""
    return np.frombuffer(ctypes.string_at(address, num_bytes), dtype=np.uint8)
