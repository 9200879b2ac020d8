"""Who computes next.

Requests wait in a queue for a lane. A round of `step` reads one part (`PREFILL_CHUNK` tokens) of one
prompt, the lanes that read taking turns, and then decodes once in every lane that writes. So a short
request waits for parts of a huge prompt, never for all of it. `poll` is called before each of these
units of work: that is where cancellations arrive. A request whose grammar is being compiled lets others pass.
A request that goes on from another gets the lane which that one has kept, before those who wait.
"""

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

import msgspec

from strata.engine.grammar import GrammarCompiler, TokenMask
from strata.engine.lane import Lane
from strata.engine.messages import Event, Failed, Finished, Generate, LaneUse, Progress, Tokens, Totals
from strata.errors import EngineError, RequestError, StrataError

POLL_S = 0.01  # how long the engine waits for grammars or lanes before it looks for messages
KEPT_S = 1.0  # for the next request of an answer to come; its server may have gone on to something else


@dataclass(slots=True, eq=False)
class _Job:
    """A request and how far it is; times in seconds of the monotonic clock."""

    request: Generate
    max_tokens: int  # of the answer
    submitted: float
    mask: Future[TokenMask] | None = None  # of the request's grammar
    lane: Lane | None = None
    begun: float | None = None  # got its lane
    first: float | None = None  # prompt read
    num_read: int = 0  # prompt tokens in the lane's state
    num_cached: int = 0
    num_tokens: int = 0  # of the answer
    stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.stop_ids = frozenset() if sampling.ignore_eos else frozenset(sampling.stop_ids)

    @property
    def reading(self) -> bool:
        return self.num_read < len(self.request.prompt)

    @property
    def compiling(self) -> bool:
        return self.mask is not None and not self.mask.done()


class Scheduler:
    """Requests on lanes.

    Args:
        lanes: each answers one request at a time.
        vocab_size: ids of prompts and biases lie below.
        context_length: most tokens of prompt and answer together.
        emit: takes the events.
        poll: called between two units of work; may call `submit` and `cancel`.
        grammars: compiles grammars; None: no request may have one.
    """

    def __init__(
        self,
        lanes: list[Lane],
        vocab_size: int,
        context_length: int,
        emit: Callable[[Event], None],
        poll: Callable[[], None] = lambda: None,
        grammars: GrammarCompiler | None = None,
    ):
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._emit = emit
        self._poll = poll
        self._grammars = grammars
        self._lanes = list(lanes)
        self._free = list(lanes)  # the one that was used last stands last
        self._kept: dict[str, tuple[Lane, float]] = {}  # lanes by their last request, and until when
        self._queue: deque[_Job] = deque()
        self._running: dict[str, _Job] = {}  # the order in which prompts take turns
        self._totals = Totals()

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._queue or self._running)

    def totals(self) -> Totals:
        return msgspec.structs.replace(self._totals, running=len(self._running), queued=len(self._queue))

    def lanes(self) -> list[LaneUse]:
        self._let_go_late()
        return [LaneUse(lane not in self._free, *lane.holds()) for lane in self._lanes]

    def submit(self, request: Generate) -> None:
        """Queue a request, or answer at once with what is wrong with it."""
        try:
            self._check(request)
        except RequestError as error:
            self._count(failed=1)
            self._emit(Failed(request.id, str(error), error.code or "invalid_request", error.field))
            return
        room = self.context_length - len(request.prompt)
        wanted = request.sampling.max_tokens
        job = _Job(request, room if wanted is None else min(wanted, room), time.monotonic())
        if request.grammar is not None and self._grammars is not None:
            job.mask = self._grammars.compile(request.grammar)
        if request.after in self._kept:
            job.lane, _ = self._kept.pop(request.after)
            self._queue.appendleft(job)
        else:
            self._queue.append(job)

    def cancel(self, request_id: str) -> None:
        """End a request, queued or running, or free the lane that it keeps; other ids are ignored."""
        self._let_go(request_id)
        for job in [*self._queue, *self._running.values()]:
            if job.request.id == request_id:
                self._finish(job, "cancelled")
                return

    def cancel_all(self) -> None:
        for job in [*self._queue, *self._running.values()]:
            self._finish(job, "cancelled")

    def step(self) -> None:
        """One round: free lanes take up requests, one prompt is read on, each answer is written on."""
        self._poll()
        self._let_go_late()
        while (job := self._next()) is not None:
            self._guard(self._begin, job)
        if not self._running and self._queue:
            compiling = [job.mask for job in self._queue if job.mask is not None and job.compiling]
            if compiling:
                wait(compiling, POLL_S, FIRST_COMPLETED)
            else:  # for a lane that is kept
                time.sleep(POLL_S)
        reading = next((job for job in self._running.values() if job.reading), None)
        if reading is not None:
            self._guard(self._prefill, reading)
        writing = [job for job in self._running.values() if not job.reading]
        for job in writing:
            self._guard(self._prepare, job)
        for job in writing:
            self._poll()
            if job.request.id in self._running:  # else cancelled by `poll`
                self._guard(self._decode, job)

    def _next(self) -> _Job | None:
        """The request that can begin now: the first for which there is a lane, its own or a free one."""
        ready = (job for job in self._queue if not job.compiling and (job.lane is not None or self._free))
        return next(ready, None)

    def _begin(self, job: _Job) -> None:
        """Give a request the free lane that holds most of its prompt; among equals, the longest unused."""
        self._queue.remove(job)
        request = job.request
        mask = None if job.mask is None else job.mask.result()
        if mask is not None and request.grammar is not None:
            for token_id in request.prompt[len(request.prompt) - request.grammar.num_written :]:
                mask.accept(token_id)
        if job.lane is None:
            job.lane = max(self._free, key=lambda lane: lane.match(request.prompt))
            self._free.remove(job.lane)
        self._running[request.id] = job
        job.begun = time.monotonic()
        job.num_read = job.num_cached = job.lane.begin(request.prompt, request.sampling, mask)
        self._count(cached_tokens=job.num_cached)
        self._emit(Progress(request.id, job.num_read, len(request.prompt)))

    def _prefill(self, job: _Job) -> None:
        assert job.lane is not None
        request = job.request
        self._running[request.id] = self._running.pop(request.id)  # the next turn is another prompt's
        before, job.num_read = job.num_read, job.lane.prefill()
        self._count(prompt_tokens=job.num_read - before)
        self._emit(Progress(request.id, job.num_read, len(request.prompt)))
        if not job.reading and job.max_tokens == 0:
            self._finish(job, "length")

    @staticmethod
    def _prepare(job: _Job) -> None:
        assert job.lane is not None
        job.lane.prepare()

    def _decode(self, job: _Job) -> None:
        assert job.lane is not None
        sent, reason = [], None
        for token in job.lane.decode():
            if job.first is None:
                job.first = time.monotonic()
            if token.id in job.stop_ids:
                reason = "stop"
                break
            sent.append(token)
            if job.num_tokens + len(sent) >= job.max_tokens:
                reason = "length"
                break
        if sent:
            job.num_tokens += len(sent)
            self._count(completion_tokens=len(sent))
            self._emit(Tokens(job.request.id, sent))
        if reason is not None:
            self._finish(job, reason)

    def _guard(self, work: Callable[[_Job], None], job: _Job) -> None:
        """Do one unit of work for a request; what goes wrong in it ends this request only."""
        try:
            work(job)
        except EngineError:
            raise
        except Exception as error:
            code, field_ = "internal_error", None
            if isinstance(error, RequestError):
                message, code, field_ = str(error), error.code or "invalid_request", error.field
            elif isinstance(error, StrataError):
                message = str(error)
            else:
                traceback.print_exc(file=sys.stderr)
                first = str(error).partition("\n")[0]  # torch's go on with a stack, which is in the log
                message = f"the engine failed on this request: {type(error).__name__}: {first}"
            lane = job.lane
            self._release(job)
            self._count(failed=1)
            self._emit(Failed(job.request.id, message, code, field_))
            if lane is not None:
                lane.reset()

    def _finish(self, job: _Job, reason: str) -> None:
        if job.request.keeps_lane and job.lane is not None and reason != "cancelled":
            self._let_go(job.request.id)
            self._kept[job.request.id] = job.lane, time.monotonic() + KEPT_S
            job.lane = None
        self._release(job)
        self._count(**{"cancelled" if reason == "cancelled" else "finished": 1})
        now = time.monotonic()
        begun = job.begun or now
        first = job.first or now
        self._emit(
            Finished(
                id=job.request.id,
                reason=reason,
                prompt_tokens=len(job.request.prompt),
                cached_tokens=job.num_cached,
                completion_tokens=job.num_tokens,
                queue_s=begun - job.submitted,
                prompt_s=first - begun,
                decode_s=now - first,
            )
        )

    def _release(self, job: _Job) -> None:
        if job in self._queue:
            self._queue.remove(job)
        self._running.pop(job.request.id, None)
        if job.lane is not None:
            self._free.append(job.lane)
            job.lane = None

    def _let_go(self, request_id: str) -> None:
        """Free the lane that is kept for the request that goes on from this one, if any is."""
        if request_id in self._kept:
            self._free.append(self._kept.pop(request_id)[0])

    def _let_go_late(self) -> None:
        now = time.monotonic()
        for request_id in [id_ for id_, (_, until) in self._kept.items() if until < now]:
            self._let_go(request_id)

    def _check(self, request: Generate) -> None:
        num_tokens = len(request.prompt)
        if num_tokens == 0:
            raise RequestError("the prompt is empty; it needs at least one token", "prompt")
        if num_tokens >= self.context_length:
            raise RequestError(
                f"the prompt has {num_tokens} tokens, and the context of {self.context_length} tokens "
                "must hold at least one more for the answer; shorten the prompt",
                field="prompt",
                code="context_length_exceeded",
            )
        sampling = request.sampling
        if request.grammar is not None and (sampling.ignore_eos or not sampling.stop_ids):
            raise RequestError("needs a token that ends the answer, and none may", "grammar")
        for name, ids in (("prompt", request.prompt), ("logit_bias", request.sampling.logit_bias)):
            wrong = next((i for i in ids if not 0 <= i < self.vocab_size), None)
            if wrong is not None:
                message = f"token id {wrong} is outside the vocabulary of {self.vocab_size} tokens"
                raise RequestError(message, name)

    def _count(self, **counts: int) -> None:
        for name, count in counts.items():
            setattr(self._totals, name, getattr(self._totals, name) + count)
