"""Cards in host memory: one whose copies and windows end as the test says, one that plays its streams."""

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from random import Random

import numpy as np
import torch


class FakeTicket:
    """One microsecond after the one that was made before."""

    _times = count()

    def __init__(self) -> None:
        self.landed, self._time = False, next(self._times)

    def done(self) -> bool:
        return self.landed

    def gate(self) -> None:
        pass

    def seconds_since(self, earlier: "FakeTicket") -> float:
        return (self._time - earlier._time) * 1e-6


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

    def copy(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: FakeTicket | None = None
    ) -> FakeTicket:
        """Destinations are spoiled at once, and right only when the copy has landed."""
        assert after is None
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


class StreamTicket(FakeTicket):
    def __init__(self, work: deque[Callable[[], bool]]):
        super().__init__()
        self._work = work

    def gate(self) -> None:
        self._work.append(self.done)


class StreamCard(FakeCard):
    """A card that plays its two streams against each other: kernels, and copies.

    What is queued runs in turns that `random` chooses, as far as gates allow it; a copy first spoils its
    destination, and fills it later.

    Args:
        random: chooses.
        eagerness: how likely a turn is the copies', 0 to 1.
    """

    def __init__(self, random: Random, eagerness: float):
        super().__init__()
        self._random, self._eagerness = random, eagerness
        self._kernels: deque[Callable[[], bool]] = deque()  # true: done
        self._copying: deque[Callable[[], bool]] = deque()

    def launch(self, kernel: Callable[[], object]) -> None:
        """Queue what a kernel does."""

        def run() -> bool:
            kernel()
            return True

        self._kernels.append(run)

    def copy(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: FakeTicket | None = None
    ) -> FakeTicket:
        ticket, pairs = StreamTicket(self._kernels), list(pairs)

        def spoil() -> bool:
            for destination, _ in pairs:
                destination.fill_(0xDD)
            return True

        def fill() -> bool:
            for destination, source in pairs:
                destination.copy_(source)
            ticket.landed = True
            return True

        self._copying += [spoil, fill] if after is None else [after.done, spoil, fill]
        return ticket

    def mark(self) -> FakeTicket:
        ticket = StreamTicket(self._kernels)

        def reached() -> bool:
            ticket.landed = True
            return True

        self._kernels.append(reached)
        return ticket

    def wait(self) -> None:
        """Return when all kernels are done."""
        while self._kernels:
            streams = [self._kernels, self._copying]
            if self._random.random() < self._eagerness:
                streams.reverse()
            assert any(_turn(stream) for stream in streams), "the streams wait for each other"

    def synchronize(self) -> None:
        self.wait()
        while self._copying:
            assert _turn(self._copying)


def _turn(stream: deque[Callable[[], bool]]) -> bool:
    """Do what a stream comes to next, unless that waits for the other."""
    if not stream or not stream[0]():
        return False
    stream.popleft()
    return True


def read(address: int, num_bytes: int) -> np.ndarray:
    """The bytes at an address of this process."""
    return np.frombuffer(ctypes.string_at(address, num_bytes), dtype=np.uint8)
