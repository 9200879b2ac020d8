"""Lanes on a card: those that write are computed together, in windows."""

import secrets
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from strata.card.runner import CardRunner
from strata.card.window import Row
from strata.engine.grammar import TokenMask
from strata.engine.messages import SamplingParams, Token
from strata.engine.sampling import with_logprobs
from strata.engine.session import Sync, Timeline
from strata.errors import StrataError
from strata.layers.state import StateCheckpoint, saved_bytes
from strata.models.base import PREFILL_CHUNK
from strata.ops.triton.float_matmul import WINDOW_ROWS
from strata.ops.triton.sampling import settings

SHORT_PROMPT = 64  # tokens that windows read sooner than a chunk would
_AHEAD = ThreadPoolExecutor(1, "ahead")  # looks up what the next part of a prompt needs


class CardTimeline(Timeline):
    """A timeline in a lane of a card.

    Args:
        runner: of all lanes.
        lane: its number.
        checkpoint_bytes: memory for checkpoints; 0 keeps none.
        chunk: tokens of a prompt that are read at a time.
    """

    def __init__(self, runner: CardRunner, lane: int, checkpoint_bytes: int, chunk: int):
        super().__init__(checkpoint_bytes, chunk)
        self.mask: TokenMask | None = None  # of the answer
        self._runner, self._lane = runner, lane
        self._ahead: tuple[tuple[int, int], Future] | None = None  # (start, end) of a part, and its rows
        self.recurrent = runner.model.state_bytes() > 0

    def append(self, token: int) -> Row:
        """The row of a token of the answer, which is taken for read."""
        row = self._rows([token], is_answer=True)[0]
        self.tokens.append(token)
        return row

    def take_back(self) -> None:
        """The token that was appended last is not computed."""
        self.tokens.pop()

    def _rows(self, tokens: list[int], is_answer: bool) -> list[Row]:
        """The rows of tokens that come next; the grammar's mask is of what follows the last."""
        embedding, ngrams = self._look_up(len(self.tokens), tokens)
        masks: list[np.ndarray | None] = [None] * len(tokens)
        if self.mask is not None:
            masks[-1] = self.mask.words()
        first = len(self.tokens)
        return [
            Row(
                self._lane,
                first + i,
                token,
                is_answer,
                embedding[i],
                None if ngrams is None else ngrams[i],
                masks[i],
            )
            for i, token in enumerate(tokens)
        ]

    def _look_up(self, start: int, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows of tables for tokens from position `start` on."""
        on_card = self._runner.model
        ids, ple = torch.tensor(tokens), on_card.model.ple
        embedding = on_card.tokens.fetch(ids)
        if ple is None:
            return embedding, None
        window = ple.table.new_window()
        before = (self.tokens if start <= len(self.tokens) else self._prompt)[
            max(0, start - len(window)) : start
        ]
        if before:
            window[-len(before) :] = torch.tensor(before)
        return embedding, on_card.ngrams.fetch(ple.table.row_numbers(ids, window).flatten())

    def _look_up_part(self, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`_look_up` for a part of the prompt, which was begun while the part before was computed."""
        start, end = len(self.tokens), len(self.tokens) + len(tokens)
        if self._ahead is not None and self._ahead[0] == (start, end):
            found = self._ahead[1].result()
        else:
            found = self._look_up(start, tokens)
        self._ahead = None
        if following := self._prompt[end : end + self._chunk]:
            work = _AHEAD.submit(self._look_up, end, following)
            self._ahead = (end, end + len(following)), work
        return found

    def _read(self, tokens: list[int], keep: int | None) -> tuple[int, StateCheckpoint | None]:
        """Returns the token that follows."""
        if len(tokens) <= SHORT_PROMPT:
            rows = self._rows(tokens, is_answer=False)
            for start in range(0, len(rows), WINDOW_ROWS):
                chosen = self._runner.window(rows[start : start + WINDOW_ROWS])
            return chosen[-1], None
        mask = None if self.mask is None else self.mask.words()
        embedding, ngrams = self._look_up_part(tokens)
        chosen, saved = self._runner.prompt(
            self._lane, len(self.tokens), tokens, embedding, ngrams, mask, keep
        )
        if saved is None:
            return chosen, None
        return chosen, StateCheckpoint(keep, saved, saved_bytes(saved))

    def sync(self, prompt: list[int]) -> Sync:
        self._ahead = None  # of another prompt
        return super().sync(prompt)

    def _restart(self) -> None:
        self._runner.reset(self._lane)

    def _cut(self, length: int) -> None:
        self._runner.forget(self._lane)

    def _rewind(self, checkpoint: StateCheckpoint) -> None:
        self._runner.load(self._lane, checkpoint.saved)


class CardLane:
    """A lane (see `engine/lane.py`) on a card.

    Args:
        timeline: of the lane.
        gathered: rows that `prepare` was called for, of all lanes of the card.
    """

    def __init__(
        self, runner: CardRunner, lane: int, timeline: CardTimeline, gathered: "dict[CardLane, Row]"
    ):
        self.timeline = timeline
        self._runner, self._lane, self._gathered = runner, lane, gathered
        self._params: SamplingParams
        self._chosen: int | None = None  # not yet said
        self._pending: int | None = None  # said, and read only if another token is wanted
        self._top: np.ndarray | None = None  # logits that `_chosen` was chosen by, if they are asked for

    def match(self, prompt: list[int]) -> int:
        return self.timeline.plan(prompt).reused

    def begin(self, prompt: list[int], sampling: SamplingParams, mask: TokenMask | None = None) -> int:
        self._leave()
        self._params, self.timeline.mask = sampling, mask
        self._chosen = self._pending = self._top = None
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed & (2**64 - 1)
        numbers = settings(
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        )
        reused = self.timeline.sync(prompt).reused
        self._runner.sampler.begin(self._lane, numbers, sampling.top_k, seed, sampling.logit_bias, prompt)
        return reused

    def prefill(self) -> int:
        chosen = self.timeline.prefill()
        if chosen is not None:
            self._take(chosen, -1)
        return len(self.timeline.tokens)

    def prepare(self) -> None:
        if self._chosen is None and not self._ended:
            self._gathered[self] = self.timeline.append(self._pending)

    def decode(self) -> list[Token]:
        if self._ended:
            return [Token(self.timeline.mask.end_id)]  # for which the model need not be asked
        if self._chosen is None:
            self._compute()
        chosen, self._chosen = self._chosen, None
        if chosen == -1:
            raise StrataError(f"the model's logits at position {len(self.timeline.tokens)} are no numbers")
        if self.timeline.mask is not None:
            self.timeline.mask.accept(chosen)
        self._pending = chosen
        if self._top is None:
            return [Token(chosen)]
        return [with_logprobs(self._top, chosen, self._params.logprobs)]

    def reset(self) -> None:
        self._leave()
        self.timeline.reset()

    def holds(self) -> tuple[int, int, int]:
        # The card's memory for states is taken once for all lanes.
        return len(self.timeline.tokens), 0, self.timeline.kept_bytes()

    @property
    def _ended(self) -> bool:
        mask = self.timeline.mask
        return self._chosen is None and mask is not None and mask.ended

    def _compute(self) -> None:
        """Compute this lane's next row and those of all others that wait for theirs."""
        waiting = list(self._gathered.items())
        self._gathered.clear()
        for start in range(0, len(waiting), WINDOW_ROWS):
            part = waiting[start : start + WINDOW_ROWS]
            chosen = self._runner.window([row for _, row in part])
            for index, (lane, _) in enumerate(part):
                lane._take(chosen[index], index)

    def _leave(self) -> None:
        """Wait no more for a row that was prepared, of a request that was cancelled then."""
        if self._gathered.pop(self, None) is not None:
            self.timeline.take_back()

    def _take(self, chosen: int, row: int) -> None:
        """A token was chosen by the logits of a row of the last step."""
        self._chosen = chosen
        self._top = None if self._params.logprobs is None else self._runner.logits(row)


def card_lanes(runner: CardRunner, checkpoint_bytes: int, chunk: int = PREFILL_CHUNK) -> Iterable[CardLane]:
    """One lane object for each lane of the runner's model."""
    gathered: dict[CardLane, Row] = {}
    for lane in range(runner.model.lanes):
        yield CardLane(runner, lane, CardTimeline(runner, lane, checkpoint_bytes, chunk), gathered)
