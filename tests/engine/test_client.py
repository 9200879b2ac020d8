"""The client with real engine processes, which mostly recite a script."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
import zmq

from strata.engine.client import EngineClient, EngineDied, EngineError, RequestCancelled
from strata.engine.messages import (
    EngineConfig,
    Finished,
    Generate,
    Hello,
    Progress,
    SamplingParams,
    Tokens,
    encode,
)
from strata.errors import RequestError

T = TypeVar("T")
EOS = 258  # <|im_end|> of the scripted vocabulary

LINES = ["[" + ",".join(f'"{i}"' for _ in range(10)) + "]" for i in range(8)]
SLOW = len(LINES)  # "s", then a minute of silence
CRASH = SLOW + 1
SCRIPT = "\n".join([*LINES, '["s", {"sleep": 60}, "t"]', '["c", {"crash": true}]'])


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Awaitable[T]], T]]:
    """Run a coroutine on the one event loop of this module."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("script") / "script.jsonl"
    path.write_text(SCRIPT)
    return f"scripted:{path}"


@pytest.fixture(scope="module")
def client(run, script: str) -> Iterator[EngineClient]:
    async def make() -> EngineClient:
        client = EngineClient(EngineConfig(script, lanes=2))
        await client.start()
        return client

    client = run(make())
    yield client
    run(client.stop())


def request(request_id: str, seed: int | None = 0, prompt: bytes = b"hello", **sampling) -> Generate:
    return Generate(request_id, list(prompt), SamplingParams(seed=seed, stop_ids=[EOS], **sampling))


async def answer(client: EngineClient, wanted: Generate) -> tuple[bytes, Finished]:
    ids: list[int] = []
    async for event in client.generate(wanted):
        if isinstance(event, Tokens):
            ids += [token.id for token in event.tokens]
    assert isinstance(event, Finished)
    return bytes(ids), event


async def until_writing(client: EngineClient, wanted: Generate):
    """The events of a request whose first token has come."""
    events = client.generate(wanted)
    async for event in events:
        if isinstance(event, Tokens):
            return events
    raise AssertionError("ended without a token")


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


async def idle(client: EngineClient) -> bool:
    totals = (await client.ping()).totals
    return totals.running == totals.queued == client.num_running == 0


def pid_of(client: EngineClient) -> int:
    assert client._worker is not None
    return client._worker.process.pid


def test_a_request(run, client: EngineClient) -> None:
    async def go() -> None:
        events = [event async for event in client.generate(request("a", seed=3))]
        assert isinstance(events[0], Progress) and events[0].total == 5
        text, end = await answer(client, request("a", seed=3))  # an id may be used again
        assert (text, end.reason, end.completion_tokens) == (b"3" * 10, "stop", 10)
        assert end.cached_tokens == 4
        text, end = await answer(client, request("b", seed=3, max_tokens=4))
        assert (text, end.reason) == (b"3333", "length")
        assert client.state == "ready" and client.info.architecture == "scripted"

    run(go())


def test_questions_are_answered_in_order(run, client: EngineClient) -> None:
    async def go() -> None:
        pong, use, again = await asyncio.gather(client.ping(), client.count_experts(), client.ping())
        assert len(pong.lanes) == len(again.lanes) == 2
        assert (use.total, use.recent) == (b"", b"")  # a script has no experts
        with pytest.raises(TimeoutError):  # an answer that nobody waits for any more disturbs no other
            await asyncio.wait_for(client.ping(), 0)
        assert (await client.count_experts()).total == b""

    run(go())


def test_concurrent_requests_do_not_mix(run, client: EngineClient) -> None:
    async def go() -> None:
        answers = await asyncio.gather(*(answer(client, request(f"r{i}", seed=i % 8)) for i in range(40)))
        assert [text for text, _ in answers] == [b"%d" % (i % 8) * 10 for i in range(40)]
        assert await idle(client)

    run(go())


def test_cancel(run, client: EngineClient) -> None:
    async def go() -> None:
        events = await until_writing(client, request("a", seed=SLOW))
        await client.cancel("a")
        (end,) = [event async for event in events]
        assert (end.reason, end.completion_tokens) == ("cancelled", 1)
        await client.cancel("never heard of")
        assert await idle(client)

    run(go())


def test_closing_the_generator_cancels_running_and_queued_requests(run, client: EngineClient) -> None:
    """CASES 54: both lanes are taken, the third request waits; all three clients leave."""

    async def go() -> None:
        writing = [await until_writing(client, request(f"w{i}", seed=SLOW)) for i in range(2)]
        queued = asyncio.create_task(answer(client, request("q", seed=1)))

        async def is_queued() -> bool:
            return (await client.ping()).totals.queued == 1

        await eventually(is_queued)
        before = (await client.ping()).totals
        queued.cancel()
        await asyncio.wait([queued])  # its Cancel is sent before a lane becomes free
        for events in writing:
            await events.aclose()
        await eventually(lambda: idle(client))
        after = (await client.ping()).totals
        assert after.cancelled - before.cancelled == 3
        assert after.completion_tokens == before.completion_tokens  # the queued one never began

    run(go())


def test_a_hundred_cancels(run, client: EngineClient) -> None:
    """CASES 57, 58."""

    async def go() -> None:
        for i in range(100):
            events = client.generate(request(f"r{i}", seed=SLOW))
            await anext(events)
            await events.aclose()
        await eventually(lambda: idle(client))
        assert (await answer(client, request("last", seed=5)))[0] == b"5" * 10

    run(go())


def test_pings_are_answered_in_order(run, client: EngineClient) -> None:
    async def go() -> None:
        before = (await client.ping()).totals.cancelled
        given_up = asyncio.create_task(client.ping())
        await asyncio.sleep(0)
        given_up.cancel()
        events = await until_writing(client, request("a", seed=SLOW))
        first = asyncio.create_task(client.ping())
        await asyncio.sleep(0)
        await events.aclose()
        second = await client.ping()  # behind the cancellation
        assert ((await first).totals.running, second.totals.running) == (1, 0)
        assert second.totals.cancelled == before + 1

    run(go())


def test_a_wrong_request_is_refused(run, client: EngineClient) -> None:
    async def go() -> None:
        with pytest.raises(RequestError, match="token id 9999 is outside") as error:
            await answer(client, Generate("a", [9999]))
        assert (error.value.code, error.value.field) == ("invalid_request", "prompt")
        events = await until_writing(client, request("twice", seed=SLOW))
        with pytest.raises(RequestError, match="'twice' is running already"):
            await answer(client, request("twice"))
        await events.aclose()
        await eventually(lambda: idle(client))

    run(go())


def test_strangers_on_the_socket_are_ignored(run, client: EngineClient) -> None:
    async def go() -> None:
        connections = psutil.Process().net_connections("tcp")
        ports = [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]
        assert ports
        with zmq.Context() as context:
            for port in ports:
                with context.socket(zmq.DEALER) as stranger:
                    stranger.setsockopt(zmq.LINGER, 200)
                    stranger.connect(f"tcp://127.0.0.1:{port}")
                    forged = Finished("a", "stop", 0, 0, 0, 0, 0, 0)
                    for message in (b"\xc1garbage", encode(Hello("guess")), encode(forged), b""):
                        stranger.send(message)
        events = await until_writing(client, request("a", seed=SLOW))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.3)  # nobody's end reaches it
        await eventually(lambda: idle(client))

    run(go())


def test_a_crash_fails_the_requests_and_the_next_ones_share_one_restart(run, client: EngineClient) -> None:
    async def go() -> None:
        pid = pid_of(client)
        num_children = len(psutil.Process().children())  # other tests may keep a server
        other = await until_writing(client, request("other", seed=SLOW))
        with pytest.raises(EngineDied, match="SIGABRT") as error:
            await answer(client, request("crash", seed=CRASH))
        assert any("scripted.py" in line for line in error.value.log)  # its last lines
        assert error.value.log[0] in str(error.value)
        with pytest.raises(EngineDied):
            await anext(other)
        assert (client.state, client.failure) == ("dead", "the engine process was ended by SIGABRT")
        assert not psutil.pid_exists(pid)  # and no zombie

        answers = await asyncio.gather(*(answer(client, request(f"r{i}", seed=i)) for i in range(5)))
        assert [text for text, _ in answers] == [b"%d" % i * 10 for i in range(5)]
        assert len(psutil.Process().children()) == num_children
        assert client.failure is None and client.num_running == 0

    run(go())


def test_a_killed_idle_engine_is_replaced(run, client: EngineClient) -> None:
    async def go() -> None:
        os.kill(pid_of(client), signal.SIGKILL)

        async def is_dead() -> bool:
            return client.state == "dead"

        await eventually(is_dead)
        assert "SIGKILL" in client.failure
        with pytest.raises(EngineError, match="the engine is dead"):
            await client.ping()
        # A client that leaves during the restart does not end it for the other.
        leaving = asyncio.create_task(answer(client, request("leaving")))
        staying = asyncio.create_task(answer(client, request("staying", seed=2)))
        await asyncio.sleep(0.1)
        assert client.state == "loading"
        leaving.cancel()
        # Nor does one that somebody cancels: it is never sent.
        cancelled = asyncio.create_task(answer(client, request("cancelled", seed=SLOW)))
        await asyncio.sleep(0)
        await client.cancel("cancelled")
        assert (await staying)[0] == b"2" * 10
        with pytest.raises(RequestCancelled):
            await cancelled
        assert await idle(client)

    run(go())


def test_interrupts_leave_the_engine_alone_and_sigterm_ends_it(run, client: EngineClient) -> None:
    async def go() -> None:
        os.kill(pid_of(client), signal.SIGINT)
        assert (await answer(client, request("a", seed=1)))[0] == b"1" * 10
        events = await until_writing(client, request("b", seed=SLOW))
        os.kill(pid_of(client), signal.SIGTERM)
        with pytest.raises(EngineDied, match="exit status 0"):
            await anext(events)

    run(go())


@pytest.mark.skipif(sys.platform == "win32", reason="a process is stopped by a signal")
def test_a_frozen_engine_is_ended_and_replaced(run, script: str) -> None:
    """CASES 1317; one that is silent for long, as this script is, is not frozen."""

    async def go() -> None:
        client = EngineClient(EngineConfig(script, lanes=2), stall_s=0.5)
        await client.start()
        pid = pid_of(client)
        slow = await until_writing(client, request("slow", seed=SLOW))
        await asyncio.sleep(1.5)
        assert pid_of(client) == pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineDied, match=r"was frozen for 0\.5 s and ended"):
            await asyncio.wait_for(anext(slow), 30)
        assert not psutil.pid_exists(pid)
        assert (await answer(client, request("next", seed=1)))[0] == b"1" * 10
        await client.stop()

    run(go())


def test_stop(run, script: str) -> None:
    async def go() -> None:
        client = EngineClient(EngineConfig(script))
        await client.stop()  # nothing to stop
        await client.start()
        pid = pid_of(client)
        events = await until_writing(client, request("a", seed=SLOW))
        stopping = asyncio.create_task(client.stop(drain_s=0.2))
        await asyncio.sleep(0.05)
        with pytest.raises(EngineError, match="being stopped"):
            await answer(client, request("b"))
        start = time.monotonic()
        await stopping
        assert time.monotonic() - start < 4
        (end,) = [event async for event in events]
        assert end.reason == "cancelled"
        await client.stop()
        assert client.state == "stopped"
        assert not psutil.pid_exists(pid)

        first = asyncio.create_task(client.start())  # stop during a load
        await asyncio.sleep(0.05)
        pid = pid_of(client)
        start = time.monotonic()
        await client.stop()
        assert time.monotonic() - start < 4
        with pytest.raises(EngineError, match="the engine was stopped"):
            await first
        assert not psutil.pid_exists(pid)

    run(go())


def test_a_model_that_does_not_load_says_why(run, tmp_path: Path) -> None:
    async def go() -> None:
        path = tmp_path / "bad.jsonl"
        path.write_text('["a"]\n[7]')
        lines: list[str] = []
        client = EngineClient(EngineConfig(f"scripted:{path}"), echo=lines.append)
        with pytest.raises(EngineError, match=r"bad\.jsonl:2: item 1: 7 is no token"):
            await client.start()
        assert client.state == "dead" and "bad.jsonl:2" in client.failure
        assert lines == []  # the reason is a message, not a traceback
        path.write_text('["a"]')  # mended: the next request starts an engine again
        assert (await answer(client, request("a")))[0] == b"a"
        await client.stop()

    run(go())


def test_the_engine_ends_with_its_parent(script: str) -> None:
    program = (
        "import asyncio, os, sys\n"
        "from strata.engine.client import EngineClient\n"
        "from strata.engine.messages import EngineConfig\n"
        "async def go():\n"
        "    client = EngineClient(EngineConfig(sys.argv[1]))\n"
        "    await client.start()\n"
        "    print(client._worker.process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(go())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, script], stdout=subprocess.PIPE) as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    try:
        worker.wait(10)
    except psutil.TimeoutExpired:
        worker.kill()
        raise AssertionError("the engine outlived its parent") from None


def test_a_program_that_forgets_to_stop_ends_all_the_same(script: str) -> None:
    program = (
        "import asyncio, sys\n"
        "from strata.engine.client import EngineClient\n"
        "from strata.engine.messages import EngineConfig\n"
        "asyncio.run(EngineClient(EngineConfig(sys.argv[1])).start())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, script], capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr.decode()
