"""Event streams: silence is filled, errors are told, and a client that leaves ends the work."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable

import pytest
from starlette.requests import Request

from strata.engine.client import EngineError
from strata.serve.sse import COMPLETIONS, ClientGone, EventStream, event, until_gone, with_pauses


class Client:
    """The other end of an ASGI connection."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.parts: list[bytes] = []

    async def receive(self) -> dict:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        if message.get("body"):
            self.parts.append(message["body"])

    @property
    def request(self) -> Request:
        return Request({"type": "http"}, self.receive)


class Source:
    """Events, some of them errors or pauses in seconds; knows whether it was closed."""

    def __init__(self, *items: bytes | float | Exception):
        self.items, self.closed = items, False

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            for item in self.items:
                if isinstance(item, bytes):
                    yield item
                elif isinstance(item, Exception):
                    raise item
                else:
                    await asyncio.sleep(item)
        finally:
            self.closed = True


async def respond(
    source: Source, client: Client, pause_s: float = 0.02, progress: Callable[[], str] = str
) -> None:
    events = with_pauses(source.events(), pause_s)
    await EventStream(b"first", events, COMPLETIONS, progress)({}, client.receive, client.send)


def test_silence_is_filled() -> None:
    async def run() -> None:
        client, source = Client(), Source(b"a", 0.1, b"b")
        await respond(source, client)
        assert client.parts[:2] == [b"first", b"a"]
        assert client.parts[-1] == b"b"
        assert set(client.parts[2:-1]) == {b": keep-alive\n\n"}
        assert len(client.parts) >= 5
        assert source.closed

    asyncio.run(run())


def test_a_silence_tells_how_far_it_is() -> None:
    async def run() -> None:
        client, numbers = Client(), iter(range(99))
        await respond(Source(0.1), client, progress=lambda: f"queued, {next(numbers)} before it")
        comments = [part.decode() for part in client.parts[1:]]
        assert comments[:2] == [f": keep-alive queued, {i} before it\n\n" for i in range(2)]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (EngineError("out of luck"), "out of luck"),
        (KeyError("inside"), "the server failed on this request: KeyError"),
    ],
)
def test_error_after_the_start_is_an_event_and_the_end(error: Exception, message: str) -> None:
    """CASES 62; what is not ours keeps its details."""

    async def run() -> None:
        client, source = Client(), Source(b"a", error)
        await respond(source, client)
        assert client.parts[:2] == [b"first", b"a"]
        (last,) = client.parts[2:]
        assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == message

    asyncio.run(run())


def test_leaving_closes_the_source_wherever_it_waits() -> None:
    async def run() -> None:
        client, source = Client(), Source(b"a", 60.0)
        response = asyncio.ensure_future(respond(source, client, pause_s=60))
        while b"a" not in client.parts:
            await asyncio.sleep(0)
        client.left.set()
        await asyncio.wait_for(response, 5)
        assert source.closed

    asyncio.run(run())


def test_work_ends_when_the_client_leaves_and_does_not_begin_after() -> None:
    async def run() -> None:
        client, ended = Client(), []

        async def work(seconds: float) -> str:
            ended.append("begun")
            try:
                await asyncio.sleep(seconds)
            finally:
                ended.append("ended")
            return "done"

        assert await until_gone(client.request, lambda: work(0)) == "done"
        asyncio.get_running_loop().call_later(0.02, client.left.set)
        with pytest.raises(ClientGone):
            await asyncio.wait_for(until_gone(client.request, lambda: work(60)), 5)
        assert ended == ["begun", "ended"] * 2
        with pytest.raises(ClientGone):
            await until_gone(client.request, lambda: work(0))
        assert len(ended) == 4

    asyncio.run(run())


def test_an_event_is_one_line() -> None:
    """CASES 45; also to clients that read lines as Python does."""
    text = "a\r\nb\n\nc\u2028\u2029\x85\x0b\x1cé"
    raw = event({"text": text})
    assert raw.endswith(b"\n\n") and len(raw.decode().splitlines()) == 2
    assert json.loads(raw.removeprefix(b"data: ")) == {"text": text}
