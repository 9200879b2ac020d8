"""The requests under way and how fast they are served: numbers only, never their text."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel

from strata.engine.messages import Finished, Progress, Tokens
from strata.serve.job import Job

SPEED_S = 5.0  # speeds are of so many seconds up to now
State = Literal["queued", "reading", "writing"]
Protocol = Literal["chat completions", "completions", "responses", "messages", "web app"]
# What the ids of requests begin with.
_PROTOCOLS: dict[str, Protocol] = {
    "chatcmpl": "chat completions",
    "cmpl": "completions",
    "resp": "responses",
    "msg": "messages",
    "web": "web app",
}


class RequestReport(BaseModel):
    """One choice of a request under way.

    `queued` waits for a lane, behind `queued_before` others; `reading` reads its prompt, `writing` writes its
    answer. `tokens_per_s` counts from the first token; what has not happened yet is left out.
    """

    id: str
    protocol: Protocol
    state: State
    queued_before: int | None = None
    prompt_tokens: int
    prompt_tokens_read: int  # those that an earlier request had left included
    completion_tokens: int
    age_s: float
    first_token_s: float | None = None  # from the request's arrival
    tokens_per_s: float | None = None


class SpeedReport(BaseModel):
    """How fast all requests together were served in the last `window_s` seconds."""

    window_s: float
    prompt_tokens_per_s: float  # tokens that were read, not those that needed no reading
    tokens_per_s: float
    first_token_s: float | None = None  # of the request that got its first token last


class Throughput:
    """Tokens per second, over the last `SPEED_S` seconds."""

    def __init__(self) -> None:
        self._work: deque[tuple[float, float, int]] = deque()  # begin, end, tokens; by their ends

    def note(self, begin: float, end: float, num_tokens: int) -> None:
        """So many tokens took from `begin` to `end`, seconds of one clock; `end` never goes back."""
        self._work.append((begin, end, num_tokens))
        self._forget(end)

    def per_second(self, now: float) -> float:
        """0 if there were none; work that has begun before the window counts from its begin."""
        self._forget(now)
        if not self._work:
            return 0.0
        # In its first second nothing is known of a speed: a script says a thousand tokens in a millisecond.
        seconds = max(now - min(begin for begin, _, _ in self._work), 1.0)
        return sum(num_tokens for _, _, num_tokens in self._work) / seconds

    def _forget(self, now: float) -> None:
        while self._work and self._work[0][1] < now - SPEED_S:
            self._work.popleft()


@dataclass(slots=True, eq=False)
class Tracked:
    """A job as its engine tells of it; times in seconds of the book's clock."""

    job: Job
    begun: float
    engine_id: str = ""  # of the engine's present run
    cancelled: bool = False  # by who runs the server
    first: float | None = None  # its first token came
    num_read: int | None = None  # None: no lane has taken it up
    last: float = field(init=False)  # when the engine told of it last

    def __post_init__(self) -> None:
        self.last = self.begun

    @property
    def state(self) -> State:
        if self.num_read is None:
            return "queued"
        return "reading" if self.num_read < len(self.job.prompt) else "writing"

    def report(self, now: float, queued_before: int | None) -> RequestReport:
        num_prompt, num_answer = len(self.job.prompt), self.job.answer.num_tokens
        since_first = 0.0 if self.first is None else now - self.first
        return RequestReport(
            id=self.job.id,
            protocol=_PROTOCOLS[self.job.id.replace("_", "-").partition("-")[0]],
            state=self.state,
            queued_before=queued_before,
            prompt_tokens=num_prompt,
            prompt_tokens_read=min(self.num_read or 0, num_prompt),
            completion_tokens=num_answer,
            age_s=now - self.begun,
            first_token_s=None if self.first is None else self.first - self.begun,
            tokens_per_s=(num_answer - 1) / since_first if num_answer > 1 and since_first > 0 else None,
        )


class Requests:
    """All requests under way.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._running: dict[str, Tracked] = {}
        self._prompts, self._answers = Throughput(), Throughput()
        self._first_token_s: float | None = None

    def begin(self, job: Job) -> Tracked:
        """Follow a job until `end`."""
        tracked = self._running[job.id] = Tracked(job, self._clock())
        return tracked

    def next_run(self, tracked: Tracked, engine_id: str) -> None:
        """The engine is asked, for the first time or to go on; it waits for a lane again."""
        tracked.engine_id, tracked.num_read, tracked.last = engine_id, None, self._clock()

    def note(self, tracked: Tracked, event: Progress | Tokens | Finished) -> None:
        """What the engine says of a job."""
        now = self._clock()
        match event:
            case Progress(done=done):
                if tracked.num_read is not None:
                    self._prompts.note(tracked.last, now, done - tracked.num_read)
                tracked.num_read = done
            case Tokens(tokens=tokens):
                if tracked.first is None:
                    tracked.first = now
                    self._first_token_s = now - tracked.begun
                self._answers.note(tracked.last, now, len(tokens))
        tracked.last = now

    def end(self, tracked: Tracked) -> None:
        """A job is over, whatever the reason."""
        del self._running[tracked.job.id]

    def find(self, id_: str) -> Tracked | None:
        """The job of this id, if it is under way."""
        return self._running.get(id_)

    def reports(self) -> list[RequestReport]:
        """All jobs under way, in the order of their arrival."""
        return [report for id_ in self._running if (report := self.report(id_))]

    def report(self, id_: str) -> RequestReport | None:
        """The job of this id, if it is under way."""
        tracked = self.find(id_)
        return tracked and tracked.report(self._clock(), self._queued_before(tracked))

    def progress(self, id_: str) -> str:
        """How far a request is, in a few words: of its choices, the one that is furthest behind.

        Args:
            id_: of the request, with which those of its choices begin.
        """
        own = [t for t in self._running.values() if t.job.id == id_ or t.job.id.startswith(f"{id_}-")]
        before = [count for tracked in own if (count := self._queued_before(tracked)) is not None]
        if before:
            return f"queued, {max(before)} before it"
        reading = [(t.num_read or 0, len(t.job.prompt)) for t in own if t.state == "reading"]
        return "read {} of {} tokens of the prompt".format(*min(reading)) if reading else ""

    def _queued_before(self, tracked: Tracked) -> int | None:
        """How many have waited for longer, if it waits for a lane; lanes are given in that order."""
        if tracked.state != "queued":
            return None
        return sum(one.state == "queued" and one.last < tracked.last for one in self._running.values())

    def speed(self) -> SpeedReport:
        """How fast the server is now."""
        now = self._clock()
        return SpeedReport(
            window_s=SPEED_S,
            prompt_tokens_per_s=self._prompts.per_second(now),
            tokens_per_s=self._answers.per_second(now),
            first_token_s=self._first_token_s,
        )
