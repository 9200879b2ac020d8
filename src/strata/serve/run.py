"""`run_server`: from an application to a server that answers, and to its orderly end."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import uvicorn

from strata.errors import StrataError
from strata.serve.backend import Backend
from strata.serve.cors import CorsApp

_log = logging.getLogger("strata.serve")
DRAIN_S = 3  # after a signal, for the answers under way
LAST_S = 5  # for the engine's end and the last words, before connections are cut
BACKLOG = 2048


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, after what the application wants to do before its connections are closed."""
        for last_act in self.config.app.state.before_stop:
            await last_act()
        await super().shutdown(sockets)


def run_server(app: CorsApp) -> None:
    """Serve until SIGTERM, or SIGINT, which raises KeyboardInterrupt when all is closed.

    The port is taken before the model is loaded, and answers `GET /health` meanwhile.

    Args:
        app: from `create_app`.

    Raises:
        StrataError: the address cannot be used, or the model does not load.
    """
    settings = app.settings
    _log_to_stderr()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=DRAIN_S + LAST_S,
        server_header=False,
    )
    server = _Server(config)
    with contextlib.closing(listen(settings.host, settings.port)) as listener, _orderly_sigterm(server):
        url = address(listener)
        asyncio.run(_serve(server, app.state.backend, listener, url))


async def _serve(
    server: uvicorn.Server,
    backend: Backend,
    listener: socket.socket,
    url: str,
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    loading = asyncio.create_task(backend.loaded())
    loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen, whatever ends first
    draining = asyncio.create_task(_drain(server, backend))
    await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
    failure = None
    if loading.done() and not server.should_exit:  # a signal that came first explains any failure
        failure = loading.exception()
        if failure is None:
            print(f"Strata is ready at {url}", flush=True)
        else:
            server.should_exit = True
    await serving
    draining.cancel()
    loading.cancel()
    if failure is not None:
        raise failure


async def _drain(server: uvicorn.Server, backend: Backend) -> None:
    """After a signal: give answers under way some seconds, then end them in words, not by a closed line."""
    while not server.should_exit:
        await asyncio.sleep(0.02)  # sooner than the server ends the engine by itself
    if not backend.is_loaded:
        _log.info("stopping; the model was still loading")
    await backend.engine.stop(DRAIN_S)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one.

    Raises:
        StrataError: the address is unknown, or the port is in use or needs rights.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StrataError(f"--host {host}: no such address: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # on Windows it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StrataError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; "
            "--port takes another one, 0 any that is free"
        ) from error
    return listener


def address(listener: socket.socket) -> str:
    """`http://127.0.0.1:8080` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _log_to_stderr() -> None:
    """Our own lines on standard error, and of others what went wrong."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("strata").setLevel(logging.INFO)


@contextlib.contextmanager
def _orderly_sigterm(server: uvicorn.Server) -> Iterator[None]:
    """SIGTERM as a normal end: uvicorn raises it once more after its shutdown, which would kill us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
