"""The worker's own end."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import zmq

from strata.engine import worker
from strata.engine.loaded import LoadedEngine
from strata.engine.messages import EngineConfig, Generate, ModelInfo, Ready, decode_event, encode
from strata.engine.process import Launch
from strata.errors import EngineError

# `main` with its work replaced; an exit handler then stands for the interpreter's slow shutdown.
ENDING = """
import atexit, os, signal, sys
from strata.engine import worker
worker._run = lambda launch: 0
atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
sys.exit(worker.main())
"""
LAUNCH = b'{"config": {"model": "scripted:none"}, "port": 1, "token": "t"}\n'


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a signal")
def test_sigterm_while_the_interpreter_shuts_down_leaves_no_trace():
    process = subprocess.Popen(
        [sys.executable, "-c", ENDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdin.write(LAUNCH)
    process.stdin.flush()  # and stays open: its end would end the worker
    status = process.wait(60)
    assert (status, process.stderr.read()) == (0, b"")
    process.stdin.close()


class FailingLane:
    """A lane whose first step ends as the test wants."""

    def __init__(self, error: BaseException):
        self._error = error

    def match(self, prompt):
        return 0

    def begin(self, prompt, sampling, mask=None):
        return 0

    def prefill(self):
        raise self._error


def serve_one(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> tuple[object, list[str]]:
    """How a worker ends whose first step raises `error`, and what it has closed."""
    closed: list[str] = []
    lanes, model = [FailingLane(error)], SimpleNamespace()
    loaded = LoadedEngine(lanes, model, 9, [], "none", None, close=lambda: closed.append("card"))
    info = ModelInfo("m", "a", 5, 9, 0.1, [], 1, "none")
    monkeypatch.setattr(worker, "load_checkpoint", lambda config, emit: (lanes, info, loaded))
    ended: list[object] = []

    def run(port: int) -> None:
        try:
            ended.append(worker._run(Launch(EngineConfig("m.gguf"), port, "t")))
        except SystemExit as exit:
            ended.append(exit)

    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        thread = threading.Thread(target=run, args=(port,))
        thread.start()
        while True:
            name, event = router.recv_multipart()
            if isinstance(decode_event(event), Ready):
                break
        router.send_multipart([name, encode(Generate("1", [2]))])
        thread.join(60)
    return ended[0], closed


def test_a_card_that_fails_ends_the_engine_with_one_line(monkeypatch, capfd):
    assert serve_one(monkeypatch, EngineError("the card failed")) == (1, ["card"])
    assert capfd.readouterr().err == "strata: the card failed\n"


def test_a_card_is_closed_where_the_server_ends_a_step(monkeypatch):
    """SIGTERM raises SystemExit in whatever runs, as for Ctrl+C after the time for an orderly end."""
    ended, closed = serve_one(monkeypatch, SystemExit(0))
    assert isinstance(ended, SystemExit) and closed == ["card"]
