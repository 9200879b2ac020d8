"""Windows: steps of a fixed number of rows, captured once and replayed without Python inside."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strata.card.host_experts import HostExperts
from strata.card.model import CardModel
from strata.card.sampling import CardSampler

_FIELDS = ("lane", "position", "tokens", "is_answer")  # int32 of a row


@dataclass(frozen=True, slots=True)
class Row:
    """A row to compute.

    Args:
        lane: whose.
        position: of its token in the lane's sequence.
        token: id.
        is_answer: the token was chosen, not given.
        embedding: uint8 `[row bytes]` of `CardModel.tokens`.
        ngram: uint8 `[row bytes]` of `CardModel.ngrams`; None without one.
        mask: int32 `[ceil(vocab / 32)]`, bits of the tokens that may follow; None: all.
    """

    lane: int
    position: int
    token: int
    is_answer: bool
    embedding: torch.Tensor
    ngram: torch.Tensor | None
    mask: np.ndarray | None = None


class Window:
    """A step of `size` rows, of which any may be unused.

    Args:
        model: whose state it reads and leaves rows pending in.
        sampler: chooses what follows each row.
        size: rows.

    Attributes:
        logits: float32 `[size, vocab]` on the card, of the rows of the run that `wait` has waited for.
        counts: int32 `[layers with experts, experts]` in host memory: how often that run used each expert.
    """

    def __init__(self, model: CardModel, sampler: CardSampler, size: int):
        self._model, self._sampler, self.size = model, sampler, size
        card = model.weights.card
        self._host = _Inputs.new(model, size, card.pinned)
        self._card = _Inputs.new(
            model, size, lambda *shape, dtype: torch.zeros(shape, dtype=dtype, device=card.device)
        )
        self._all = np.full(self._host.mask.shape[1], -1, np.int32)
        self._masked = [True] * size  # rows whose mask is not `_all`
        self._chosen = torch.zeros(size, dtype=torch.int32, device=card.device)
        self._result = card.pinned(size, dtype=torch.int32)
        self._error = card.pinned(1, dtype=torch.int32)
        self.counts = card.pinned(*model.counts.shape, dtype=torch.int32)
        self.logits: torch.Tensor
        self._done: torch.cuda.Event
        self._graph: torch.cuda.CUDAGraph

    def capture(self) -> "Window":
        """Record a step, to be replayed by `run`; returns itself."""
        card = self._model.weights.card
        self._graph = torch.cuda.CUDAGraph()
        self._host.integers[0].fill_(-1)
        side = torch.cuda.Stream(card.device)  # a capture must not be a kernel's first run
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream(card.device).wait_stream(side)
        card.synchronize()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self.step()
        return self

    def run(self, rows: Sequence[Row], accepted: Sequence[int]) -> None:
        """Queue a step; the one before must have been waited for.

        Args:
            rows: at most `size`; those of a lane are neighbours, by position.
            accepted: how many rows of each lane stand of those that the step before left pending.
        """
        host = self._host
        integers = host.integers.numpy()
        integers[0] = -1
        for i, row in enumerate(rows):
            integers[:, i] = row.lane, row.position, row.token, row.is_answer
            host.embedding[i] = row.embedding
            if host.ngrams is not None:
                host.ngrams[i] = row.ngram
            if row.mask is not None or self._masked[i]:
                host.mask.numpy()[i] = self._all if row.mask is None else row.mask
                self._masked[i] = row.mask is not None
        host.accepted.numpy()[:] = accepted
        self._graph.replay()
        self._done = torch.cuda.current_stream(self._model.weights.card.device).record_event()

    def wait(self) -> list[int]:
        """The token that was chosen after each row of the step that was queued last; -1: none could be.

        Raises:
            CardError: the processor did not do its share.
        """
        self._done.synchronize()
        HostExperts.check(int(self._error))
        return self._result.tolist()

    def step(self) -> None:
        """Queue a step of what the host memory holds."""
        card, model = self._card, self._model
        card.copy_from(self._host)
        lane, position, tokens, is_answer = card.integers.unbind()
        self._sampler.commit(card.accepted)
        rows = model.rows(lane, position, card.accepted, commit=False)
        self.logits = model.step(model.inputs(card.embedding, card.ngrams), rows)
        self._sampler.choose(self.logits, lane, position, tokens, is_answer, card.mask, self._chosen)
        self._result.copy_(self._chosen, non_blocking=True)
        self.counts.copy_(model.counts, non_blocking=True)
        model.counts.zero_()
        if model.host is not None:
            self._error.copy_(model.host.error, non_blocking=True)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a window is given, in host memory or on the card."""

    integers: torch.Tensor  # int32 [fields, rows]
    accepted: torch.Tensor
    embedding: torch.Tensor
    ngrams: torch.Tensor | None
    mask: torch.Tensor

    @classmethod
    def new(cls, model: CardModel, size: int, zeros: Callable[..., torch.Tensor]) -> "_Inputs":
        vocab_size, ngrams = model.model.config.vocab_size, model.ngrams
        return cls(
            zeros(len(_FIELDS), size, dtype=torch.int32),
            zeros(model.lanes, dtype=torch.int32),
            zeros(size, model.tokens.row_bytes, dtype=torch.uint8),
            None if ngrams is None else zeros(size, ngrams.row_bytes, dtype=torch.uint8),
            zeros(size, -(-vocab_size // 32), dtype=torch.int32),
        )

    def copy_from(self, host: "_Inputs") -> None:
        for name in ("integers", "accepted", "embedding", "ngrams", "mask"):
            target = getattr(self, name)
            if target is not None:
                target.copy_(getattr(host, name), non_blocking=True)
