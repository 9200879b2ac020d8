"""What computes the steps of all lanes on a card, and lets experts move between them."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from strata.card.cache import ExpertCache
from strata.card.device import whole_step
from strata.card.host_experts import HostExperts
from strata.card.model import CardModel
from strata.card.prompts import PromptReader, Saved
from strata.card.sampling import CardSampler
from strata.card.window import Row, Window
from strata.experts.policy import affordable_moves
from strata.ops.triton.float_matmul import WINDOW_ROWS
from strata.prompt_memory import SHORT

_SETTLING = 0.05  # of a chunk's time is given to exchanges for the answer behind it
_USUAL = 0.1  # weight of a window's time in the average


def window_sizes(lanes: int) -> list[int]:
    """Rows of the windows that are captured, ascending."""
    return sorted({WINDOW_ROWS, *(size for size in (1, 2, 4, 8) if size < 2 * lanes)})


@dataclass(frozen=True, slots=True)
class _Uses:
    """What a step has used, and not been learned from yet.

    Attributes:
        counts: int32 `[layers with experts, experts]`.
        tokens: of so many tokens.
        moves: exchanges that may be begun for it.
        answer: whether they are hits and misses; a prompt uses nearly all experts.
    """

    counts: np.ndarray
    tokens: int
    moves: int
    answer: bool


class CardRunner:
    """Steps on a card: windows for answers, chunks for prompts. One at a time.

    Rows of a window are pending until the next step; all of them stand, as long as nobody calls `forget`.

    Args:
        model: with all its memory.
        cache: of its experts.
        reader: of prompts.
        link_bandwidth: bytes per second that copies to the card get.
        learn: called with how often each expert was used, int32 `[layers with experts, experts]`, and by how
            many tokens.

    Attributes:
        sampler: of all lanes.
    """

    def __init__(
        self,
        model: CardModel,
        cache: ExpertCache,
        reader: PromptReader,
        link_bandwidth: float,
        learn: Callable[[np.ndarray, int], None] = lambda counts, tokens: None,
    ):
        self.model, self.cache, self._reader = model, cache, reader
        card, config = model.weights.card, model.model.config
        self.sampler = CardSampler(model.lanes, config.vocab_size, card.device)
        self._windows = {
            size: Window(model, self.sampler, size).capture() for size in window_sizes(model.lanes)
        }
        self._pending = [0] * model.lanes
        self._link_bandwidth, self._learn = link_bandwidth, learn
        self._window_s = 0.01
        self._uses: _Uses | None = None  # of the last step
        self._logits: torch.Tensor

    @whole_step()
    def window(self, rows: Sequence[Row]) -> list[int]:
        """Compute rows of any lanes, at most `WINDOW_ROWS`; returns the token that follows each.

        While the card computes, the policy looks at the step before and begins exchanges of experts.

        Raises:
            CardError: the engine cannot go on.
        """
        window = next(w for size, w in self._windows.items() if size >= len(rows))
        start = time.perf_counter()
        self.cache.refresh()
        window.run(rows, self._pending)
        self.cache.launched()
        self._adapt()
        chosen = window.wait()[: len(rows)]
        self._window_s += _USUAL * (time.perf_counter() - start - self._window_s)
        counts, moves = window.counts.numpy().copy(), 0
        if counts.size:
            moves = affordable_moves(self._link_bandwidth, self._window_s, self.cache.mean_bytes)
        self._uses = _Uses(counts, len(rows), moves, answer=True)
        self._pending = [0] * len(self._pending)
        for row in rows:
            self._pending[row.lane] += 1
        self._logits = window.logits[: len(rows)]
        return chosen

    def logits(self, index: int) -> np.ndarray:
        """Float32 `[vocab]` of a row of the last step; a prompt has only its last."""
        return self._logits[index].cpu().numpy()

    @whole_step()
    def prompt(
        self,
        lane: int,
        first: int,
        tokens: Sequence[int],
        embedding: torch.Tensor,
        ngrams: torch.Tensor | None,
        mask: np.ndarray | None,
        keep: int | None,
    ) -> tuple[int, Saved | None]:
        """Compute a chunk of a prompt; returns the token that follows it, and the lane's state at `keep`.

        An answer uses what its prompt has used: the experts exchanged behind a chunk are those that tokens of
        the answer would else miss one by one. Behind a short one the next step begins them.

        Args:
            lane: whose.
            first: position of the first of `tokens`.
            embedding, ngrams: of the tokens, as of `PromptReader.read`.
            mask: as of `Row`, of what follows the last token.
            keep: see `PromptReader.read`.

        Raises:
            CardError: the engine cannot go on.
        """
        start = time.perf_counter()
        result = self._compute(lane, first, tokens, embedding, ngrams, mask, keep)
        counts = self._take_counts()
        seconds = _SETTLING * (time.perf_counter() - start)
        copies = int(seconds * self._link_bandwidth / self.cache.mean_bytes) if counts.size else 0
        if len(tokens) <= SHORT:
            self._uses = _Uses(counts, len(tokens), copies, answer=False)
            return result
        self._learn(counts, len(tokens))
        if counts.size:
            self.cache.settle(counts.reshape(-1), copies, len(tokens))
        return result

    def _compute(
        self,
        lane: int,
        first: int,
        tokens: Sequence[int],
        embedding: torch.Tensor,
        ngrams: torch.Tensor | None,
        mask: np.ndarray | None,
        keep: int | None,
    ) -> tuple[int, Saved | None]:
        """`prompt`, from whose uses nobody learns."""
        self.cache.refresh()
        accepted = torch.tensor(self._pending, dtype=torch.int32).to(self.model.weights.card.device)
        self.sampler.commit(accepted)
        self._pending = [0] * len(self._pending)
        self._logits, saved = self._reader.read(lane, first, embedding, ngrams, accepted, keep)
        position = first + len(tokens) - 1
        following = self.sampler.choose_next(self._logits, lane, position, tokens[-1], mask)
        self.cache.launched()
        self._adapt()
        chosen = int(following)
        if self.model.host is not None:
            HostExperts.check(int(self.model.host.error))
        return chosen, saved

    def _take_counts(self) -> np.ndarray:
        """How often a prompt has used each expert, int32 `[layers with experts, experts]`; counts anew."""
        counts = self.model.counts.cpu().numpy()
        self.model.counts.zero_()
        return counts

    def warm(self, num_tokens: int) -> None:
        """Read a prompt of so many tokens, for kernels to be compiled and memory taken; record graphs."""
        num_tokens = min(num_tokens, self.model.context - 1)
        tables = (self.model.tokens, self.model.ngrams)
        embedding, ngrams = (
            None if table is None else torch.zeros(num_tokens, table.row_bytes, dtype=torch.uint8)
            for table in tables
        )
        self._compute(0, 0, [0] * num_tokens, embedding, ngrams, None, None)
        self._reader.capture()
        self._take_counts()
        self.reset(0)

    def close(self) -> None:
        """Drain the card and let host memory go; nothing may be computed any more."""
        with suppress(RuntimeError):  # a card that has failed has nothing to drain
            self.model.weights.card.synchronize()
        if self.model.host is not None:
            self.model.host.close()
        self.model.weights.store.close()

    def load(self, lane: int, saved: Saved) -> None:
        """Return to a state that `prompt` has given for this lane."""
        self.forget(lane)
        for layer, tensors in enumerate(saved):
            for tensor, kept in zip(self.model.state_of(layer, lane), tensors, strict=True):
                tensor.copy_(kept)

    def reset(self, lane: int) -> None:
        """A sequence begins."""
        self.forget(lane)
        self.model.reset(lane)

    def forget(self, lane: int) -> None:
        """The lane's pending rows do not stand."""
        self._pending[lane] = 0

    def _adapt(self) -> None:
        """Learn from the step before, while the card computes this one."""
        uses, self._uses = self._uses, None
        if uses is None:
            return
        self._learn(uses.counts, uses.tokens)
        if uses.counts.size:  # a dense model has none
            self.cache.adapt(uses.counts.reshape(-1), uses.moves, uses.tokens, uses.answer)
