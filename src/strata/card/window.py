"""Windows: steps of a fixed number of rows, captured once and replayed without Python inside."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from strata.card.host_experts import HostExperts
from strata.card.model import CardModel, Inputs


@dataclass(frozen=True, slots=True)
class Row:
    """A row to compute.

    Args:
        lane: whose.
        position: of its token in the lane's sequence.
        embedding: float32 `[width]`, of its token.
        ngram: float32 `[table width]`, what the n-gram table has for it; None without one.
    """

    lane: int
    position: int
    embedding: torch.Tensor
    ngram: torch.Tensor | None


class Window:
    """A step of `size` rows, of which any may be unused.

    Args:
        model: whose state it reads and leaves rows pending in.
        size: rows.

    Attributes:
        logits: float32 `[size, vocab]` in host memory, of the rows of the run that `wait` has waited for.
    """

    def __init__(self, model: CardModel, size: int):
        self._model, self.size = model, size
        card, config = model.weights.card, model.model.config
        self._host = _Inputs.new(model, size, card.pinned)
        self._card = _Inputs.new(model, size, partial(torch.zeros, device=card.device))
        self.logits = card.pinned(size, config.vocab_size, dtype=torch.float32)
        self._error = card.pinned(1, dtype=torch.int32)
        self._done: torch.cuda.Event
        self._graph = torch.cuda.CUDAGraph()
        self._host.lane.fill_(-1)
        side = torch.cuda.Stream(card.device)  # a capture must not be a kernel's first run
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream(card.device).wait_stream(side)
        card.synchronize()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._step()

    def run(self, rows: Sequence[Row], accepted: Sequence[int]) -> None:
        """Queue a step; the one before must have been waited for.

        Args:
            rows: at most `size`; those of a lane are neighbours, by position.
            accepted: how many rows of each lane stand of those that the window before left pending.
        """
        host = self._host
        host.lane.fill_(-1)
        for i, row in enumerate(rows):
            host.lane[i], host.position[i] = row.lane, row.position
            host.embedding[i] = row.embedding
            if host.ngrams is not None:
                host.ngrams[i] = row.ngram
        host.accepted[:] = torch.tensor(accepted, dtype=torch.int32)
        self._graph.replay()
        self._done = torch.cuda.current_stream(self._model.weights.card.device).record_event()

    def wait(self) -> np.ndarray:
        """Logits float32 `[size, vocab]` of the step that was queued last.

        Raises:
            CardError: the processor did not do its share.
        """
        self._done.synchronize()
        HostExperts.check(int(self._error))
        return self.logits.numpy()

    def _step(self) -> None:
        card = self._card
        card.copy_from(self._host)
        rows = self._model.rows(card.lane, card.position, card.accepted, commit=False)
        logits = self._model.step(Inputs(card.embedding, card.ngrams), rows)
        self.logits.copy_(logits, non_blocking=True)
        if self._model.host is not None:
            self._error.copy_(self._model.host.error, non_blocking=True)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a window is given, in host memory or on the card."""

    lane: torch.Tensor
    position: torch.Tensor
    accepted: torch.Tensor
    embedding: torch.Tensor
    ngrams: torch.Tensor | None

    @classmethod
    def new(cls, model: CardModel, size: int, zeros) -> "_Inputs":
        ple = model.model.ple
        return cls(
            zeros(size, dtype=torch.int32),
            zeros(size, dtype=torch.int32),
            zeros(model.lanes, dtype=torch.int32),
            zeros(size, model.model.config.embedding_length, dtype=torch.float32),
            None if ple is None else zeros(size, ple.table.width, dtype=torch.float32),
        )

    def copy_from(self, host: "_Inputs") -> None:
        for name in ("lane", "position", "accepted", "embedding", "ngrams"):
            target = getattr(self, name)
            if target is not None:
                target.copy_(getattr(host, name), non_blocking=True)
