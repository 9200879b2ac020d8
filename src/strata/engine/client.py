"""The server's side of the engine: requests in, events out, whatever happens to the process behind."""

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Literal, TypeVar

from strata.engine.messages import (
    Cancel,
    CountExperts,
    EngineConfig,
    Event,
    ExpertUse,
    Failed,
    Finished,
    Generate,
    LoadProgress,
    ModelInfo,
    Ping,
    Pong,
    Progress,
    Ready,
    Tokens,
)
from strata.engine.process import WorkerProcess
from strata.engine.watchdog import STALL_S, until_frozen
from strata.errors import RequestError, StrataError

A = TypeVar("A", Pong, ExpertUse)
State = Literal["stopped", "loading", "ready", "stopping", "dead"]
_CLIENT_FAULTS = {"context_length_exceeded", "invalid_request"}


class EngineError(StrataError):
    """The engine could not serve a sound request."""


class EngineDied(EngineError):
    """The engine process ended.

    Args:
        ending: what ended it, in one line.
        log: its last lines, which the text repeats for who runs the server; they hold paths of this machine.
    """

    def __init__(self, ending: str, log: list[str]):
        super().__init__("\n".join([ending, *(f"  {line}" for line in log)]))
        self.ending, self.log = ending, log


class RequestCancelled(EngineError):
    """Somebody else than its client has ended a request."""


class EngineClient:
    """One engine process at a time, started by `start` or by the first request after a death.

    All methods belong to one event loop.

    Args:
        config: the engine to run.
        echo: called with each line of the engine's standard error (from a thread).
        stall_s: an engine that is frozen for so long while it has requests is ended; see `watchdog.py`.

    Attributes:
        state: "loading" from a start to its model's readiness, "dead" after an end that nobody asked for.
        info: the model of the present engine, or of the last one.
        progress: how far a loading engine is.
        failure: in one line, why the last engine died or did not load; None once another is started.
        num_running: requests between the call of `generate` and its end, queued ones included.
    """

    def __init__(
        self, config: EngineConfig, echo: Callable[[str], None] | None = None, stall_s: float = STALL_S
    ):
        self.config = config
        self.state: State = "stopped"
        self.info: ModelInfo | None = None
        self.progress: LoadProgress | None = None
        self.failure: str | None = None
        self.num_running = 0
        self._echo, self._stall_s = echo, stall_s
        self._watching: asyncio.Task[None] | None = None  # of `_worker`
        self._frozen = False  # found so
        self._worker: WorkerProcess | None = None
        self._loaded: asyncio.Future[None]  # of `_worker`
        self._requests: dict[str, asyncio.Queue[Event | Exception]] = {}
        self._questions: deque[asyncio.Future] = deque()  # answered in order

    @property
    def pid(self) -> int | None:
        """Of the engine process, if there is one."""
        return None if self._worker is None else self._worker.process.pid

    async def start(self) -> ModelInfo:
        """Start the engine if none runs, and wait until its model is loaded.

        Raises:
            EngineDied: the process ended first.
            EngineError: the model does not load; the text says why.
        """
        await self._ready_worker()
        assert self.info is not None
        return self.info

    async def generate(self, request: Generate) -> AsyncGenerator[Progress | Tokens | Finished, None]:
        """Run a request; the last event is `Finished`. Closing the generator early cancels the request.

        Raises:
            RequestError: the request itself is wrong (too long a prompt, token ids outside the vocabulary).
            EngineDied: the process ended; the next call starts another.
            EngineError: the engine failed on this request, or its model does not load.
        """
        if request.id in self._requests:
            raise RequestError(f"request id {request.id!r} is running already", "id")
        events = self._requests[request.id] = asyncio.Queue()
        self.num_running += 1
        ended = False
        worker = None
        try:
            worker = await self._ready_worker()
            if events.empty():  # else it was cancelled meanwhile
                worker.send(request)
            while not ended:
                event = await events.get()
                ended = isinstance(event, Finished | Exception)
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.num_running -= 1
            del self._requests[request.id]
            if worker is not None and not ended:
                worker.send(Cancel(request.id))

    async def cancel(self, request_id: str) -> None:
        """Ask for the end of a request; its generator then yields `Finished` with reason "cancelled"."""
        if self.state == "loading":  # it is not sent yet, and will not be
            self._deliver(request_id, RequestCancelled("cancelled before the engine was ready"))
        elif self._worker is not None:
            self._worker.send(Cancel(request_id))

    async def ping(self) -> Pong:
        """Totals and lanes of the running engine.

        Raises:
            EngineError: none is running.
            EngineDied: it ended before it answered.
        """
        return await self._ask(Ping(), Pong)

    async def count_experts(self) -> ExpertUse:
        """How often each expert was chosen; raises as `ping` does."""
        return await self._ask(CountExperts(), ExpertUse)

    async def stop(self, drain_s: float = 0.0) -> None:
        """End the engine: wait up to `drain_s` seconds for running requests, then cancel what is left.

        Returns when the process is gone; safe to call twice and while a model loads. Requests that come
        meanwhile are refused, a later one starts an engine again.
        """
        if self._worker is not None:
            was, self.state = self.state, "stopping"
            loop = asyncio.get_running_loop()
            deadline = loop.time() + drain_s
            while self.num_running and loop.time() < deadline:
                await asyncio.sleep(0.02)
            if self._worker is not None:  # it has not died meanwhile
                await self._worker.stop(orderly=was == "ready")
        self.state = "stopped"

    async def _ready_worker(self) -> WorkerProcess:
        """The loaded engine; requests that come while it loads wait for the same start."""
        if self.state == "stopping":
            raise EngineError("the engine is being stopped")
        if self._worker is None:
            self._worker = WorkerProcess(self.config, self._receive, self._died, self._echo)
            self.state, self.failure, self.progress = "loading", None, None
            self._frozen = False
            self._loaded = asyncio.get_running_loop().create_future()
            # Everybody who waited may have left when it fails; the reason stays in `failure`.
            self._loaded.add_done_callback(lambda loaded: loaded.cancelled() or loaded.exception())
        worker = self._worker
        # A request that is cancelled meanwhile must not end the load for the others.
        await asyncio.shield(self._loaded)
        return worker

    async def _ask(self, question: Ping | CountExperts, kind: type[A]) -> A:
        if self._worker is None or self.state != "ready":
            raise EngineError(f"the engine is {self.state}")
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._questions.append(answer)
        self._worker.send(question)
        given = await answer
        assert isinstance(given, kind)
        return given

    async def _watch(self) -> None:
        """End the engine when it is frozen, so that requests end and the next one starts another."""
        worker = self._worker
        assert worker is not None
        pid = worker.process.pid
        with contextlib.suppress(EngineError):  # it is on its way out already
            await until_frozen(pid, self.ping, lambda: bool(self._requests), self._stall_s)
            self._frozen = True
            await worker.abort()

    def _receive(self, event: Event) -> None:
        match event:
            case Ready():
                self.info, self.progress = event.info, None
                if self.state == "loading":
                    self.state = "ready"
                self._loaded.set_result(None)
                self._watching = asyncio.create_task(self._watch())
            case LoadProgress():
                self.progress = event
            case Pong() | ExpertUse():
                _settle(self._questions.popleft(), event)
            case Failed(id=""):
                self.failure = event.message
            case Failed():
                self._deliver(event.id, _error(event))
            case Progress() | Tokens() | Finished():
                self._deliver(event.id, event)

    def _died(self, status: int) -> None:
        """The process is gone: every request of it ends here."""
        assert self._worker is not None
        log, self._worker = list(self._worker.log), None
        if self._watching is not None:
            self._watching.cancel()
        error: EngineError
        if self.state == "stopping":
            error = EngineError("the engine was stopped")
        elif self.failure is not None:  # it said why it does not load
            error, self.state = EngineError(self.failure), "dead"
        else:
            ending = f"was frozen for {self._stall_s:g} s and ended" if self._frozen else _ending(status)
            self.failure = f"the engine process {ending}"
            error, self.state = EngineDied(self.failure, log), "dead"
        if not self._loaded.done():
            self._loaded.set_exception(error)
        while self._questions:
            _settle(self._questions.popleft(), error)
        for request_id in self._requests:
            self._deliver(request_id, error)

    def _deliver(self, request_id: str, event: Event | Exception) -> None:
        if request_id in self._requests:  # a cancelled request's last events find nobody
            self._requests[request_id].put_nowait(event)


def _settle(question: asyncio.Future, answer: Pong | ExpertUse | Exception) -> None:
    if question.cancelled():  # its caller gave up; the answer came all the same
        return
    if isinstance(answer, Exception):
        question.set_exception(answer)
    else:
        question.set_result(answer)


def _error(event: Failed) -> StrataError:
    if event.code in _CLIENT_FAULTS:
        return RequestError(event.message, event.field, event.code)
    return EngineError(event.message)


def _ending(status: int) -> str:
    """`ended with exit status 1`, or `was ended by SIGKILL`."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
