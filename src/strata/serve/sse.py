"""Server-sent events (WHATWG HTML, section 9.2) that notice a client's leaving, and do not fall silent."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from strata.errors import StrataError
from strata.serve.errors import describe

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
# No line ends in an event stream, but in Unicode, and so to httpx, with which many clients read lines.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
_log = logging.getLogger("strata.serve")


class ClientGone(Exception):
    """The client closed its connection."""


def event(data: dict) -> bytes:
    """One whole event; JSON text has no raw line end, so it is one line."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS)
    return b"data: " + text.encode() + b"\n\n"


def named_event(name: str, data: dict) -> bytes:
    """One whole event with a name."""
    return b"event: " + name.encode() + b"\n" + event(data)


def keep_alive(progress: str) -> bytes:
    """A comment, which clients pass over; who looks at the stream sees why it is silent."""
    return f": keep-alive {progress}".rstrip().encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Wire:
    """What a protocol writes into a stream beside the answer.

    Args:
        silence: written after a silence, of a line on how far the request is.
        failure: the event of an error, which ends the stream.
    """

    silence: Callable[[str], bytes]
    failure: Callable[[Exception], bytes]


COMPLETIONS = Wire(keep_alive, lambda error: event(describe(error)[1]))


async def with_pauses(events: AsyncGenerator[T, None], pause_s: float) -> AsyncGenerator[T | None, None]:
    """Pass events on, and None whenever none has come for `pause_s` seconds."""
    upcoming: asyncio.Future[T] | None = None
    try:
        while True:
            upcoming = asyncio.ensure_future(anext(events))
            while not upcoming.done():
                await asyncio.wait({upcoming}, timeout=pause_s)
                if not upcoming.done():
                    yield None
            try:
                yield upcoming.result()
            except StopAsyncIteration:
                return
    finally:
        if upcoming is not None:
            await _cancelled(upcoming)
        await events.aclose()


async def until_gone(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """The result of `work()`, which is cancelled if the client leaves first, and not begun if it has left.

    The request's body must have been read.

    Raises:
        ClientGone: it left.
    """
    gone = asyncio.ensure_future(_disconnect(request.receive))
    try:
        await asyncio.sleep(0)  # it may have left long ago, while the model was loading
        if gone.done():
            raise ClientGone
        task = asyncio.ensure_future(work())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
            return task.result()
        finally:
            await _cancelled(task)
    finally:
        await _cancelled(gone)


class EventStream(Response):
    """A stream of events.

    An error on the way ends it with an error event, as the status has been sent by then. When the client
    leaves, `events` is closed, wherever it waits.

    Args:
        first: sent at once: what `events` gave first.
        events: the other events; None is a silence.
        wire: what is written then, and on an error.
        progress: how far the request is, in a line without line ends; empty if there is nothing to say.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes | None,
        events: AsyncGenerator[bytes | None, None],
        wire: Wire = COMPLETIONS,
        progress: Callable[[], str] = str,
    ):
        # The last header asks nginx not to collect the stream.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first, self._events, self._wire, self._progress = first, events, wire, progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_disconnect(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(gone)
            await _cancelled(sending)
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            await self._send_part(send, self._first)
            async for part in self._events:
                await self._send_part(send, part)
        except OSError:  # the client left while we wrote
            return
        except Exception as error:
            if not isinstance(error, StrataError):
                _log.error("a stream failed", exc_info=error)
            await self._send_part(send, self._wire.failure(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_part(self, send: Send, part: bytes | None) -> None:
        body = self._wire.silence(self._progress()) if part is None else part
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(task: asyncio.Future) -> None:
    """Cancel a task unless it is done, and wait for its end; its outcome is nobody's business any more."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # fetched, or asyncio would complain that nobody did
