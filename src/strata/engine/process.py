"""One life of an engine process, seen from the server: start it, talk to it, notice its death.

Two threads feed the event loop: one owns the socket, one reads standard error and waits for the exit.
Threads rather than asyncio's own subprocess and `zmq.asyncio`, because on Windows these two need
different event loops.

The socket is TCP on loopback (Windows has no other), so anyone on the machine can connect: the engine
proves itself with a secret that it got on standard input. Standard input also tells the engine that
its parent died, by its end.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from strata.engine.messages import EngineConfig, Event, Hello, Request, Shutdown, decode_event, encode

LOG_LINES = 40  # kept of the engine's standard error
LOG_LINE_CHARS = 500
ABORT_S = 2.0  # for a frozen process to write where it stands
STOP_S = 5.0  # for an orderly end, and again after `terminate`
LAST_WORDS_MS = 100  # what a dead process had sent may still be on its way


class Launch(msgspec.Struct, frozen=True):
    """First line of a worker's standard input, as JSON."""

    config: EngineConfig
    port: int  # on 127.0.0.1
    token: str


class WorkerProcess:
    """A started engine process.

    Args:
        config: what it runs.
        on_event: called in the event loop with each event, `Hello` excepted.
        on_exit: called in the event loop with the exit status, once, when the process is gone.
        echo: called from a thread with each line of standard error.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_event: Callable[[Event], None],
        on_exit: Callable[[int], None],
        echo: Callable[[str], None] | None = None,
    ):
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self._loop = asyncio.get_running_loop()
        self._on_event, self._on_exit, self._echo = on_event, on_exit, echo
        self._exited = asyncio.Event()
        self._context = zmq.Context()
        self._outbox = self._context.socket(zmq.PAIR)  # event loop -> socket thread
        self._outbox.set_hwm(0)
        self._outbox.setsockopt(zmq.LINGER, 0)
        self._outbox.bind("inproc://outbox")
        router = self._context.socket(zmq.ROUTER)
        router.set_hwm(0)  # a ROUTER drops what exceeds its high-water mark
        router.setsockopt(zmq.LINGER, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        token = secrets.token_hex(32)
        # Not in the terminal's group: Ctrl+C is the server's to hear, which then ends its engine.
        apart: dict[str, Any] = (
            {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
            if os.name == "nt"
            else {"process_group": 0}
        )
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "strata.engine.worker"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **apart,
        )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # died at once: the exit is reported as any other
            self.process.stdin.write(msgspec.json.encode(Launch(config, port, token)) + b"\n")
            self.process.stdin.flush()
        # Daemons: a program that ends without `stop` must not hang on them.
        threading.Thread(target=self._talk, args=(router, token.encode()), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def alive(self) -> bool:
        return not self._exited.is_set()

    def send(self, request: Request) -> None:
        """Send a request; to a process that is gone it is lost, as its `on_exit` told."""
        if self.alive:
            self._outbox.send(encode(request))

    async def stop(self, orderly: bool = True) -> None:
        """End the process: by `Shutdown` if `orderly`, then by SIGTERM, then by SIGKILL.

        Returns when it is gone. A process that loads its model would not see `Shutdown`.
        """
        if orderly:
            self.send(Shutdown())
            if await self._gone_within(STOP_S):
                return
        self.process.terminate()
        if not await self._gone_within(STOP_S):
            self.process.kill()
            await self._exited.wait()

    async def abort(self) -> None:
        """End a process that answers nothing; its log tells where it stood, if it still can."""
        if os.name == "posix":  # Windows knows no signals but those that end a process
            self.process.send_signal(signal.SIGABRT)
            if await self._gone_within(ABORT_S):
                return
        self.process.kill()
        await self._exited.wait()

    async def _gone_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), seconds)
        return self._exited.is_set()

    def _talk(self, router: zmq.Socket, token: bytes) -> None:
        """Carry messages both ways until the event loop sends an empty one."""
        outbox = self._context.socket(zmq.PAIR)
        outbox.set_hwm(0)
        outbox.connect("inproc://outbox")
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(outbox, zmq.POLLIN)
        worker: bytes | None = None  # the ROUTER's name of the peer that knew the token
        early: list[bytes] = []  # sent before it had said so
        timeout_ms: int | None = None
        while ready := dict(poller.poll(timeout_ms)):
            if outbox in ready:
                message = outbox.recv()
                if not message:
                    timeout_ms = LAST_WORDS_MS
                elif worker is None:
                    early.append(message)
                else:
                    router.send_multipart([worker, message])
            if router in ready:
                sender, *frames = router.recv_multipart()
                if worker is None and _says_hello(frames, token):
                    worker = sender
                    for message in early:
                        router.send_multipart([worker, message])
                elif sender == worker:
                    self._call(self._on_event, decode_event(frames[0]))
        outbox.close()
        router.close()
        self._call(self._end)

    def _watch(self) -> None:
        """Keep the last lines of standard error; report the exit, after which no zombie is left."""
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = raw.decode(errors="replace").rstrip()[:LOG_LINE_CHARS]
            self.log.append(line)
            if self._echo is not None:
                self._echo(line)
        self.process.wait()
        self._call(self._outbox.send, b"")

    def _end(self) -> None:
        assert self.process.stdin is not None and self.process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stderr.close()
        self._exited.set()
        self._outbox.close()
        self._context.term()
        self._on_exit(self.process.returncode)

    def _call(self, function: Callable, *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed without `stop`
            self._loop.call_soon_threadsafe(function, *args)


def _says_hello(frames: list[bytes], token: bytes) -> bool:
    try:
        message = decode_event(frames[0]) if len(frames) == 1 else None
    except msgspec.DecodeError:
        return False
    return isinstance(message, Hello) and secrets.compare_digest(message.token.encode(), token)
