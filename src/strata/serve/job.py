"""One choice of a request on its way through the engine, with what the server writes into its answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from strata.engine.client import EngineError
from strata.engine.messages import Finished, Generate, Grammar, SamplingParams
from strata.serve.answer import Answer
from strata.serve.deltas import Delta, End, Reason
from strata.serve.structured import Structure


@dataclass(frozen=True, slots=True)
class Steering:
    """What the server writes into an answer, as token ids, and when.

    The engine is stopped there, and goes on from the longer prompt, whose state it still has.

    Args:
        budget: most tokens of thinking; None for any number.
        wrap_up: ends thinking that has used up its budget, or that loops.
        close: ends thinking that the model itself has ended.
        close_id: the token that closes a think block, if it is one.
        opening: begins a tool call, as soon as there is no thinking or no more of it.
    """

    budget: int | None = None
    wrap_up: Sequence[int] = ()
    close: Sequence[int] = ()
    close_id: int | None = None
    opening: Sequence[int] = ()


@dataclass(slots=True)
class Job:
    """One choice of a request, and how it went.

    Args:
        index: among the request's choices.
        id: of the request to the engine.
        prompt: token ids.
        sampling: for all of the answer.
        answer: collects its tokens.
        field: of the client's request that made the prompt.
        steering: what is written into it.
        structure: what it must look like, behind its thinking and behind `steering.opening`.
    """

    index: int
    id: str
    prompt: list[int]
    sampling: SamplingParams
    answer: Answer
    field: str
    steering: Steering = Steering()
    structure: Structure | None = None
    runs: list[Finished] = field(default_factory=list)  # how the engine's runs ended
    end: End | None = None  # None while it runs
    _limits_thinking: bool = False  # the engine is to stop where the thinking ends
    _structured_from: int | None = None  # the token with which the structure begins

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that needed no reading; known at the end."""
        return self.runs[0].cached_tokens if self.runs else 0

    @property
    def halted(self) -> bool:
        """The engine must stop: the answer is over, or loops."""
        return self.answer.stopped or self.answer.looped

    def begin(self) -> list[Delta]:
        """What the server writes before the model writes anything."""
        steering, thinking = self.steering, self.answer.router.thinking
        # Where the engine cannot stop at the closing tag, what is forced must come before any thinking.
        unstoppable = steering.close_id is None or self.sampling.ignore_eos
        forced = bool(steering.opening) or self.structure is not None
        if thinking and (steering.budget == 0 or (forced and unstoppable)):
            return self.answer.inject([*steering.close, *steering.opening])
        if steering.opening and not thinking:
            return self.answer.inject(steering.opening)
        self._limits_thinking = bool(steering.budget or forced)
        return []

    def request(self) -> Generate:
        """What the engine is to do now."""
        answer, sampling = self.answer, self.sampling
        most, stop_ids = self._tokens_left(), sampling.stop_ids
        if self._limits_thinking:
            if self.steering.budget:
                left = self.steering.budget - answer.num_tokens
                most = left if most is None else min(most, left)
            if self.steering.close_id is not None:
                stop_ids = [*stop_ids, self.steering.close_id]
        sampling = msgspec.structs.replace(sampling, max_tokens=most, stop_ids=stop_ids)
        ids = [self.id, *(f"{self.id}+{i + 1}" for i in range(len(self.runs)))]
        after = ids[-2] if self.runs else None
        prompt = [*self.prompt, *answer.ids]
        return Generate(ids[-1], prompt, sampling, self._grammar(), self._limits_thinking, after)

    def _grammar(self) -> Grammar | None:
        """The grammar of the tokens that come next."""
        if self.structure is None or self.answer.router.thinking:
            return None
        grammar, num_tokens = self.structure.grammar, self.answer.num_tokens
        if self._structured_from is None:
            self._structured_from = num_tokens
        escape_id = None if num_tokens else grammar.escape_id
        num_written = num_tokens - self._structured_from
        return msgspec.structs.replace(grammar, escape_id=escape_id, num_written=num_written)

    def go_on(self, ended: Finished, context_length: int) -> list[Delta] | None:
        """What the server writes after the engine has stopped, to let it go on; None: the answer is over."""
        self.runs.append(ended)
        router, steering = self.answer.router, self.steering
        looped = self.answer.looped and router.thinking
        if self.answer.stopped or not (looped or (self._limits_thinking and ended.reason != "cancelled")):
            return None
        self._limits_thinking = False
        ids: Sequence[int] = ()
        if router.thinking:
            self._structured_from = None
            closes = ended.reason == "stop" and not looped  # the model has ended its thinking itself
            ids = [*(steering.close if closes else steering.wrap_up), *steering.opening]
        elif ended.reason != "length":
            return None
        left = self._tokens_left()
        room = context_length - len(self.prompt) - self.answer.num_tokens - len(ids)
        if room < 1 or (left is not None and left <= len(ids)):
            return None
        return self.answer.inject(ids) if ids else []

    def reason(self, ended: Finished) -> Reason:
        """Why the answer ended, as its router is to be told; raises EngineError if it was not complete."""
        if self.answer.looped:
            return "repetition"
        if ended.reason == "cancelled" and not self.answer.stopped:
            raise EngineError("the engine was stopped before the answer was complete")
        return "length" if ended.reason == "length" else "stop"

    def _tokens_left(self) -> int | None:
        limit = self.sampling.max_tokens
        return None if limit is None else limit - self.answer.num_tokens


def choices(
    id_: str, sampling: SamplingParams, n: int, num_prompts: int = 1
) -> Iterator[tuple[str, SamplingParams]]:
    """The engine's id and the sampling of each of a request's choices; with a seed, `n` follow from it."""
    for i in range(n * num_prompts):
        seed = None if sampling.seed is None else (sampling.seed + i % n + 2**63) % 2**64 - 2**63
        name = f"{id_}-{i}" if n * num_prompts > 1 else id_
        yield name, msgspec.structs.replace(sampling, seed=seed)
