"""Who is in VRAM: experts earn a slot by how often and how lately they were used.

The score is LFRU's, frequency / (age + 1), over all layers at once. It missed least in published replays
(FIELD.md F 3.2; vLLM pull request 37190), where LRU lets early layers push out late ones and quotas by layer
lose 3 to 34 %. Its frequency is of the text at hand: with one that fades in thousands of tokens, what another
text used keeps its slots for hundreds. This part is numbers only: the device's part copies what
`Policy.moves` names and says what has happened.
"""

import zipfile
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata.errors import StrataError
from strata.outputs import whole_file

HALVE_EVERY = 4096  # rounds after which all that was learned is halved
# In tokens. By replays of made-up traces (`tests/helpers/replay.py`), in which 64 to 512 are as good: with
# 0.08 to 0.37 of the experts held a tenth less is missed than with 4,096, and a fifth to a half less in the
# first 600 tokens behind another text.
HALF_LIFE = 256
PRIOR = 32  # what was learned counts as so many tokens of the text at hand
MARGIN = (
    1.5  # a newcomer's score must exceed its victim's by this factor: about 5 % fewer copies, the same hits
)
SLOT_ALIGNMENT = 256  # bytes
VERSION = 1  # of the file with the learned order
_SLACK_SHARE = 4  # of a class's slots, one in so many at most is kept free
# What NumPy and zipfile make of single bytes that were changed.
_DAMAGED = (ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class LearnedError(StrataError):
    """A file of learned frequencies is damaged or another model's."""


@dataclass(frozen=True, slots=True)
class Move:
    """Copy an expert from host memory into a slot that nobody reads.

    Args:
        expert: `layer * experts + index`.
        slot: where to.
        evicted: the expert that leaves VRAM when this one has arrived; -1 where the slot was never used.
    """

    expert: int
    slot: int
    evicted: int


class Residency:
    """Which expert is in which slot, and when a slot may be written.

    Windows are numbered as they are launched and read the table as it was at their launch. A slot that its
    expert has left is written again only when all windows launched before that are finished. So a class has
    more slots than experts held: as many as copies can be under way.

    Args:
        expert_bytes: int64 `[layers * experts]`; experts of equal size (aligned up) form a class, in which
            anybody's slot can be anybody's.
        slots: how many of each size; see `slot_classes`.
        slack: slots of each class that are kept free, or a quarter of them, at least one, where that is
            less; none is needed where all its experts have one.
    """

    def __init__(self, expert_bytes: np.ndarray, slots: dict[int, int], slack: int):
        self.size = align(expert_bytes)
        self.slot_of = np.full(len(expert_bytes), -1, np.int32)  # what the device's table is made from
        self.moving = np.zeros(len(expert_bytes), bool)  # in or out
        self.launched = self.finished = 0  # windows
        self.slot_size = np.repeat(np.array(list(slots), np.int64), list(slots.values()))
        self._free = {size: deque(np.flatnonzero(self.slot_size == size).tolist()) for size in slots}
        self._retired: deque[tuple[int, int]] = deque()  # last window that may read it, slot
        self._room = {}  # size -> experts that may be held
        for size, count in slots.items():
            experts = int((self.size == size).sum())
            spare = min(slack, max(1, count // _SLACK_SHARE))
            self._room[size] = experts if count >= experts else max(0, count - spare)

    @property
    def classes(self) -> list[int]:
        """Sizes of slots, in bytes."""
        return list(self._room)

    @property
    def held(self) -> np.ndarray:
        """bool `[layers * experts]`: has a slot that windows may read."""
        return self.slot_of >= 0

    def free(self, size: int) -> int:
        """Slots of a class that may be written."""
        return len(self._free[size])

    def room(self, size: int) -> int:
        """How many experts of a class can come without another's leaving."""
        of_class = self.size == size
        held = self.held[of_class]
        leaving = held & self.moving[of_class]
        arriving = ~held & self.moving[of_class]
        return self._room[size] - int(held.sum() - leaving.sum() + arriving.sum())

    def launch(self) -> int:
        """A window begins, and reads the table as it is now; returns its number."""
        self.launched += 1
        return self.launched

    def finish(self, window: int) -> None:
        """All windows up to number `window` are finished; ValueError where that cannot be."""
        if not self.finished <= window <= self.launched:
            raise ValueError(
                f"window {window} cannot end: {self.finished} have ended, {self.launched} have begun"
            )
        self.finished = window
        while self._retired and self._retired[0][0] <= window:
            _, slot = self._retired.popleft()
            self._free[int(self.slot_size[slot])].append(slot)

    def begin(self, expert: int, evicted: int = -1) -> Move:
        """Take a free slot for `expert`; `evicted` (-1: nobody) stays readable until `land`."""
        if self.moving[expert] or self.slot_of[expert] >= 0:
            raise ValueError(f"expert {expert} has a slot already")
        slot = self._free[int(self.size[expert])].popleft()
        self.moving[expert] = True
        if evicted >= 0:
            self.moving[evicted] = True
        return Move(expert, slot, evicted)

    def land(self, move: Move) -> None:
        """The copy is done: windows launched from now on find the newcomer, and not the evicted one."""
        self.moving[move.expert] = False
        self.slot_of[move.expert] = move.slot
        if move.evicted >= 0:
            self.moving[move.evicted] = False
            self._retired.append((self.launched, int(self.slot_of[move.evicted])))
            self.slot_of[move.evicted] = -1
            self.finish(self.finished)  # without a window under way the slot is free at once

    def fill(self, order: Iterable[int]) -> list[Move]:
        """Moves that give slots to experts in this order as long as there is room, for the start."""
        room = {size: self.room(size) for size in self.classes}
        moves = []
        for expert in order:
            size = int(self.size[expert])
            if room.get(size, 0) > 0 and not self.moving[expert] and self.slot_of[expert] < 0:
                room[size] -= 1
                moves.append(self.begin(expert))
        return moves


class Policy:
    """Counts uses and proposes moves.

    Args:
        num_experts: `layers * experts`.
        frequency: what an earlier run has learned, float32 `[num_experts]`; none has when None.

    Attributes:
        frequency: uses of all texts, which fade slowly: the order that slots are given out in at a start.
        recent: uses of the text at hand.
    """

    def __init__(self, num_experts: int, frequency: np.ndarray | None = None):
        self.frequency = np.zeros(num_experts, np.float32) if frequency is None else frequency.copy()
        self.recent = np.zeros(num_experts, np.float32)
        self._uses = 1.0  # of a token; anything until one was seen
        self.last_used = np.full(num_experts, -1, np.int64)  # round
        self.round = 0

    def observe(self, counts: np.ndarray, tokens: int = 1) -> None:
        """Add a step's uses of each expert, `[num_experts]`, by so many tokens: not by drafts that failed."""
        self.frequency += counts
        kept = 0.5 ** (1 / HALF_LIFE)
        self.recent *= kept**tokens
        self.recent += counts * ((1 - kept**tokens) / (1 - kept) / tokens)  # each token's has faded since
        self._uses = float(counts.sum()) / tokens
        self.last_used[counts > 0] = self.round
        self.round += 1
        if self.round % HALVE_EVERY == 0:
            self.frequency *= 0.5

    def frequencies(self) -> np.ndarray:
        """How often each expert is used in the text at hand, and before that is known, in others.

        float32 `[num_experts]`, in uses by the last `HALF_LIFE / ln 2` tokens.
        """
        learned = PRIOR * self._uses / max(1.0, float(self.frequency.sum()))
        return self.recent + learned * self.frequency

    def scores(self) -> np.ndarray:
        """float32 `[num_experts]`."""
        return self.frequencies() / (self.round - self.last_used).astype(np.float32)

    def moves(self, residency: Residency, at_most: int) -> list[Move]:
        """The best exchanges, at most `at_most` and no more than there are free slots: all are begun."""
        scores = self.scores()
        proposals = []
        for size in residency.classes:
            proposals += self._exchanges(residency, scores, size, min(at_most, residency.free(size)))
        proposals.sort(key=lambda pair: -pair[0])
        return [residency.begin(expert, evicted) for _, expert, evicted in proposals[:at_most]]

    @staticmethod
    def _exchanges(
        residency: Residency, scores: np.ndarray, size: int, at_most: int
    ) -> list[tuple[float, int, int]]:
        """(gain, newcomer, victim) of one class, the best newcomer with the worst victim."""
        of_class = (residency.size == size) & ~residency.moving
        held = residency.held
        newcomers = _largest(np.where(of_class & ~held & (scores > 0), scores, -np.inf), at_most)
        victims = _largest(np.where(of_class & held, -scores, -np.inf), at_most)
        room = residency.room(size)
        pairs = []
        for rank, newcomer in enumerate(newcomers):
            if rank < room:
                pairs.append((float(scores[newcomer]), int(newcomer), -1))
            elif rank - room < len(victims) and scores[newcomer] > MARGIN * scores[victims[rank - room]]:
                victim = victims[rank - room]
                pairs.append((float(scores[newcomer] - scores[victim]), int(newcomer), int(victim)))
        return pairs


def align(num_bytes: np.ndarray) -> np.ndarray:
    """Sizes rounded up to what a slot takes."""
    return -(-num_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def slot_classes(expert_bytes: np.ndarray, budget: int) -> dict[int, int]:
    """Slots of each size that `budget` bytes are cut into; each class of experts gets its share."""
    sizes, counts = np.unique(align(expert_bytes), return_counts=True)
    share = min(1.0, budget / int((sizes * counts).sum()))
    return {int(size): int(share * count) for size, count in zip(sizes, counts, strict=True)}


def affordable_moves(link_bandwidth: float, window_s: float, expert_bytes: float) -> int:
    """Copies that a window hides: as many as take a quarter of its time on the link (FIELD.md F 3.2)."""
    return max(1, int(0.25 * window_s * link_bandwidth / expert_bytes))


def save_frequency(path: Path, frequency: np.ndarray, model: str) -> None:
    """Write what a run has learned, for the next one; the file appears only when it is complete.

    Args:
        frequency: float32 `[layers * experts]`.
        model: what identifies the model: an order learned on another one is worth nothing.

    Raises:
        StrataError: it cannot be written.
    """
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, version=VERSION, model=model, frequency=frequency)


def load_frequency(path: Path, num_experts: int, model: str) -> np.ndarray:
    """Read what `save_frequency` wrote.

    Raises:
        LearnedError: the file is missing, damaged, of another version or another model.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            version, of_model, frequency = int(file["version"]), str(file["model"]), file["frequency"]
    except OSError as error:
        raise LearnedError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise LearnedError(f"{path}: holds no learned order of experts: {error}") from error
    if version != VERSION or of_model != model:
        raise LearnedError(
            f"{path}: is of version {version} and model {of_model!r:.60}, "
            f"not {VERSION} and {model!r:.60}; delete it"
        )
    if frequency.shape != (num_experts,) or frequency.dtype != np.float32:
        raise LearnedError(
            f"{path}: has {frequency.dtype} {frequency.shape} for {num_experts} experts; delete it"
        )
    if not (np.isfinite(frequency).all() and (frequency >= 0).all()):
        raise LearnedError(f"{path}: holds frequencies that are none; delete it")
    return frequency


def _largest(values: np.ndarray, n: int) -> np.ndarray:
    """Indices of the `n` largest finite values, largest first; equal ones in the order of their indices."""
    n = min(n, len(values))
    if n == 0:
        return np.empty(0, np.int64)
    top = np.sort(np.argpartition(-values, n - 1)[:n])
    top = top[np.isfinite(values[top])]
    return top[np.argsort(-values[top], kind="stable")]
