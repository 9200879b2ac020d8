"""Experts in the card's memory: slots, the addresses that kernels read, and the copies that fill slots."""

from collections import deque
from collections.abc import Iterable

import numpy as np
import torch

from strata.card.device import Card, Ticket
from strata.card.store import ExpertStore
from strata.experts.policy import Move, Policy, Residency, slot_classes


class AddressTable:
    """`address[layer, expert]` on the card, changed between windows.

    Windows read it in the order of the stream: `publish` queues the new table behind the windows that were
    launched before, and in front of those that will be.

    Args:
        card: where it lives.
        addresses: int64 `[layers, experts]`, the first ones.
    """

    def __init__(self, card: Card, addresses: np.ndarray):
        self._card = card
        self._hosts = [card.pinned(*addresses.shape, dtype=torch.int64) for _ in range(2)]
        self._sent: list[Ticket | None] = [None, None]
        self.reset(addresses)
        self.tensor = torch.empty_like(self._hosts[0], device=card.device)
        self.publish()

    def current(self) -> np.ndarray:
        """int64 `[layers, experts]`, as noted."""
        return self._current

    def reset(self, addresses: np.ndarray) -> None:
        """Note the addresses of all experts."""
        self._current = addresses.copy()
        self._dirty = True

    def set(self, expert: int, address: int) -> None:
        """Note a new address of expert `layer * experts + index`."""
        self._current.reshape(-1)[expert] = address
        self._dirty = True

    def publish(self) -> None:
        """Queue what was noted."""
        if not self._dirty:
            return
        self._hosts.reverse()
        self._sent.reverse()
        if self._sent[0] is not None and not self._sent[0].done():  # still read by the copy before the last
            self._card.synchronize()
        self._hosts[0].numpy()[:] = self._current
        self.tensor.copy_(self._hosts[0], non_blocking=True)
        self._sent[0] = self._card.mark()
        self._dirty = False


class ExpertCache:
    """Which experts the card holds, and their exchange for better ones between windows.

    There are no slots before `allocate`: all else that needs the card's memory comes first.

    Args:
        card: where the slots will be.
        store: all experts.
        frequency: what an earlier run has learned; None: nothing.

    Attributes:
        card, store: as given.
        table: the addresses that kernels read.
        slots: int64 `[2]` on the card, first address of the slots, and the first behind them.
        hits: of the windows that were finished, experts that were found in the card's memory.
        misses: and those that were not.
    """

    def __init__(self, card: Card, store: ExpertStore, frequency: np.ndarray | None = None):
        self.card, self.store = card, store
        experts = store.addresses.shape[1]
        self._expert_bytes = np.repeat(np.array(store.record_bytes, np.int64), experts)
        self.residency = Residency(self._expert_bytes, {}, 0)
        self.policy = Policy(len(self._expert_bytes), frequency)
        self.table = AddressTable(card, store.addresses)
        self.slots = torch.zeros(2, dtype=torch.int64, device=card.device)
        self.hits = self.misses = 0
        self._moving: deque[tuple[Ticket, list[Move]]] = deque()
        self._windows: deque[tuple[int, Ticket]] = deque()
        self._starts = np.zeros(0, np.int64)
        self.memory = card.empty(0)

    def allocate(self, budget: int, slack: int) -> None:
        """Take memory for slots, in place of those there were; nothing may be computing.

        Args:
            budget: bytes for the slots.
            slack: slots of each size that are kept free for copies under way.
        """
        if not len(self._expert_bytes):
            return  # a dense model
        self.memory = self.card.empty(0)
        self.table.reset(self.store.addresses)
        self._moving.clear()
        self._windows.clear()
        slots = slot_classes(self._expert_bytes, budget)
        self.residency = Residency(self._expert_bytes, slots, slack)
        ends = np.cumsum(self.residency.slot_size)
        self._starts = ends - self.residency.slot_size
        self.memory = self.card.empty(int(ends[-1]) if len(ends) else 0)
        first = self.memory.data_ptr()
        self.slots.copy_(torch.tensor([first, first + self.num_bytes]))

    @property
    def num_bytes(self) -> int:
        """Memory of the slots."""
        return self.memory.numel()

    @property
    def mean_bytes(self) -> float:
        """Of an expert."""
        return float(self._expert_bytes.mean()) if len(self._expert_bytes) else 0.0

    def fill(self, order: Iterable[int]) -> None:
        """Give slots to experts in this order, and wait until they are there."""
        moves = self.residency.fill(order)
        step = 1024
        for start in range(0, len(moves), step):
            self._copy(moves[start : start + step])
        self.card.synchronize()
        self.refresh()

    def refresh(self) -> None:
        """Take note of copies that have landed and windows that are finished; call it before a window."""
        while self._windows and self._windows[0][1].done():
            self.residency.finish(self._windows.popleft()[0])
        while self._moving and self._moving[0][0].done():
            for move in self._moving.popleft()[1]:
                self.residency.land(move)
                self.table.set(move.expert, self._slot_address(move.slot))
                if move.evicted >= 0:
                    self.table.set(move.evicted, int(self.store.addresses.reshape(-1)[move.evicted]))
        self.table.publish()

    def launched(self) -> None:
        """A window was queued on the current stream."""
        self._windows.append((self.residency.launch(), self.card.mark()))

    def adapt(self, counts: np.ndarray, at_most: int, tokens: int = 1, answer: bool = True) -> None:
        """Learn from a step's uses, `[layers * experts]`, and begin at most `at_most` exchanges.

        Those of an answer are hits or misses; a prompt's are neither, for it uses nearly all experts.
        """
        if answer:
            used, held = counts > 0, self.residency.held
            self.hits += int((used & held).sum())
            self.misses += int((used & ~held).sum())
        self.policy.observe(counts, tokens)
        if at_most and not self.residency.held.all():
            self._copy(self.policy.moves(self.residency, at_most))

    def settle(self, counts: np.ndarray, at_most: int, tokens: int) -> None:
        """Learn from a long prompt's uses, `[layers * experts]`, and begin at most `at_most` exchanges.

        They are as many at a time as there are free slots; the last ones are not waited for. Nothing may be
        computing.
        """
        self.policy.observe(counts, tokens)
        self.refresh()
        while at_most > 0 and (moves := self.policy.moves(self.residency, at_most)):
            self._copy(moves)
            at_most -= len(moves)
            if at_most > 0:
                self.card.synchronize()
                self.refresh()

    def _copy(self, moves: list[Move]) -> None:
        if moves:
            self._moving.append((self.card.copy([self._pair(move) for move in moves]), moves))

    def _pair(self, move: Move) -> tuple[torch.Tensor, torch.Tensor]:
        layer, expert = divmod(move.expert, self.store.addresses.shape[1])
        source = torch.from_numpy(self.store.records(layer)[expert])
        start = int(self._starts[move.slot])
        return self.memory[start : start + source.numel()], source

    def _slot_address(self, slot: int) -> int:
        return self.memory.data_ptr() + int(self._starts[slot])
