"""The server's side of the engine: requests in, events out, whatever happens to the process behind."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Literal

from strata.engine.messages import (
    Cancel,
    EngineConfig,
    Event,
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
from strata.errors import RequestError, StrataError

STATES = Literal["stopped", "loading", "ready", "dead"]
_CLIENT_FAULTS = {"context_length_exceeded", "invalid_request"}


class EngineError(StrataError):
    """The engine could not serve a sound request."""


class EngineDied(EngineError):
    """The engine process ended; `log` holds its last lines, which the text repeats."""

    def __init__(self, message: str, log: list[str]):
        super().__init__("\n".join([message, *(f"  {line}" for line in log)]))
        self.log = log


class EngineClient:
    """One engine process at a time, started by `start` or by the first request after a death.

    All methods belong to one event loop.

    Args:
        config: the engine to run.
        echo: called with each line of the engine's standard error (from a thread).
    """

    def __init__(self, config: EngineConfig, echo: Callable[[str], None] | None = None):
        self.config = config
        self.state: STATES = "stopped"
        self.info: ModelInfo | None = None  # of the present or the last engine
        self.progress: LoadProgress | None = None  # while loading
        self.failure: str | None = None  # why the last engine died
        self.num_running = 0  # requests between the call of `generate` and its end
        self._echo = echo
        self._worker: WorkerProcess | None = None
        self._starting: asyncio.Task[WorkerProcess] | None = None
        self._requests: dict[str, asyncio.Queue[Event | Exception]] = {}
        self._pongs: list[asyncio.Future[Pong]] = []

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
        if self._worker is not None:
            self._worker.send(Cancel(request_id))

    async def ping(self) -> Pong:
        """Totals of the running engine.

        Raises:
            EngineError: none is running.
            EngineDied: it ended before it answered.
        """
        if self._worker is None or self.state != "ready":
            raise EngineError(f"the engine is {self.state}")
        pong: asyncio.Future[Pong] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self._worker.send(Ping())
        return await pong

    async def stop(self, drain_s: float = 0.0) -> None:
        """End the engine: wait up to `drain_s` seconds for running requests, then cancel what is left.

        Returns when the process is gone; safe to call twice and while a model loads.
        """
        deadline = asyncio.get_running_loop().time() + drain_s
        while self.num_running and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        if self._starting is not None:
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, StrataError):
                await self._starting
        if self._worker is not None:
            await self._worker.stop()
        self.state = "stopped"

    async def _ready_worker(self) -> WorkerProcess:
        if self.state == "ready":
            assert self._worker is not None
            return self._worker
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start_worker())
        # A request that is cancelled meanwhile must not stop the load for the others.
        return await asyncio.shield(self._starting)
