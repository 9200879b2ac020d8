"""The engine process: `python -m strata.engine.worker`, started by `engine/process.py`.

Its first line of standard input says what to load and where the server listens; the rest of standard
input says, by ending, that the server is gone. Standard error is its log.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from strata.engine.card_loading import load_on_card
from strata.engine.grammar import GrammarCompiler
from strata.engine.lane import Lane, ModelLane
from strata.engine.loaded import LoadedEngine
from strata.engine.loading import load
from strata.engine.messages import (
    Cancel,
    CountExperts,
    EngineConfig,
    Event,
    ExpertUse,
    Failed,
    Generate,
    Hello,
    LoadProgress,
    ModelInfo,
    Ping,
    Pong,
    Ready,
    Shutdown,
    decode_request,
    encode,
)
from strata.engine.process import Launch
from strata.engine.scheduler import Scheduler
from strata.engine.scripted import CONTEXT_LENGTH, PREFIX, load_script
from strata.errors import EngineError, StrataError
from strata.formats.checkpoint import Checkpoint
from strata.formats.requantized import with_dense
from strata.formats.tokenizer import Tokenizer, load_tokenizer
from strata.hardware.cpu import usable_cpus
from strata.layers.expert_counts import HALF_LIFE_TOKENS
from strata.models import open_checkpoint

Loading = tuple[list[Lane], ModelInfo, LoadedEngine | None]  # no engine behind a script
LINGER_MS = 1000  # for the last events to leave


class Worker:
    """A model behind a socket."""

    def __init__(self, socket: zmq.Socket, config: EngineConfig):
        self.socket = socket
        load = load_scripted if config.model.startswith(PREFIX) else load_checkpoint
        lanes, info, self._loaded = load(config, self.emit)
        grammars = GrammarCompiler(lambda: tokenizer_of(config.model), info.vocab_size)
        self.scheduler = Scheduler(
            lanes, info.vocab_size, info.context_length, self.emit, self.receive, grammars
        )
        self.leaving = False
        self.emit(Ready(info))

    def emit(self, event: Event) -> None:
        self.socket.send(encode(event))

    def serve(self) -> None:
        """Answer until `Shutdown`.

        Raises:
            EngineError: the engine cannot go on.
        """
        try:
            while not self.leaving:
                if self.scheduler.busy:
                    self.scheduler.step()
                else:
                    self.socket.poll()
                    self.receive()
            self.scheduler.cancel_all()
        finally:
            if self._loaded is not None:
                self._loaded.close()

    def receive(self) -> None:
        """Take up all messages that have arrived."""
        while self.socket.poll(0):
            match decode_request(self.socket.recv()):
                case Generate() as request:
                    self.scheduler.submit(request)
                case Cancel(id=request_id):
                    self.scheduler.cancel(request_id)
                case Ping():
                    self.emit(Pong(self.scheduler.totals(), self.scheduler.lanes()))
                case CountExperts():
                    self.emit(expert_use(self._loaded))
                case Shutdown():
                    self.leaving = True


def expert_use(loaded: LoadedEngine | None) -> ExpertUse:
    """The counts of all layers, and where the experts are, as they are now."""
    layers = [] if loaded is None else loaded.counts
    for counts in layers:
        counts.settle()
    total = b"".join(counts.total.numpy().astype("<i8").tobytes() for counts in layers)
    recent = b"".join(counts.recent.numpy().astype("<f4").tobytes() for counts in layers)
    held, found = (None, None) if loaded is None else (loaded.held(), loaded.found())
    held_bytes = b"" if held is None else held.tobytes()
    return ExpertUse(total, recent, HALF_LIFE_TOKENS, held_bytes, *(found or (0, 0)))


def load_checkpoint(config: EngineConfig, emit: Callable[[Event], None]) -> Loading:
    """Lanes that share the model at path `config.model`."""
    start = time.monotonic()
    path = Path(config.model)
    emit(LoadProgress(0, 1, f"opening {path.name}"))
    threads = config.threads or len(usable_cpus())
    checkpoint = with_dense(open_checkpoint(path), config.dense)
    progress = _Throttle(lambda done, total: emit(LoadProgress(done, total, f"loading {path.name}")))
    loaded = load_on_card(checkpoint, config, threads, progress, lambda text: emit(LoadProgress(1, 1, text)))
    if loaded is None:
        loaded = _load_on_processor(checkpoint, config, threads, progress)
    info = ModelInfo(
        name=checkpoint.metadata.get("general.name") or path.stem,
        architecture=checkpoint.architecture,
        vocab_size=loaded.model.config.vocab_size,
        context_length=loaded.context,
        load_s=time.monotonic() - start,
        memory=loaded.memory,
        threads=threads,
        kernels=loaded.kernels,
        experts=loaded.experts,
        dense=config.dense,
    )
    return loaded.lanes, info, loaded


def _load_on_processor(
    checkpoint: Checkpoint, config: EngineConfig, threads: int, progress: "_Throttle"
) -> LoadedEngine:
    loaded = load(checkpoint, threads, config.reference, config.cache_bytes, progress)
    model = loaded.model
    limit = model.config.context_length
    return LoadedEngine(
        lanes=[ModelLane(model, config.checkpoint_bytes) for _ in range(config.lanes)],
        model=model,
        context=min(config.context or limit, limit),
        memory=loaded.memory,
        kernels=loaded.kernels,
        experts=loaded.experts,
        counts=[experts.counts for experts in model.expert_layers().values()],
    )


def tokenizer_of(model: str) -> Tokenizer | None:
    """The tokenizer of the model that an engine is configured with."""
    if model.startswith(PREFIX):
        return load_script(model).vocabulary
    return load_tokenizer(open_checkpoint(Path(model)))


def load_scripted(config: EngineConfig, emit: Callable[[Event], None]) -> Loading:
    """Lanes that recite a script; they share the order of its lines."""
    start = time.monotonic()
    script = load_script(config.model)
    info = ModelInfo(
        name=script.path.stem,
        architecture="scripted",
        vocab_size=script.vocabulary.vocab_size,
        context_length=config.context or CONTEXT_LENGTH,
        load_s=time.monotonic() - start,
        memory=[],
        threads=1,
        kernels="none",
    )
    return [script.new_lane() for _ in range(config.lanes)], info, None


class _Throttle:
    """Passes on the last call and, of the others, ten a second."""

    def __init__(self, report: Callable[[int, int], None]):
        self.report = report
        self.next = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self.next or done == total:
            self.next = now + 0.1
            self.report(done, total)


def _leave_with_parent() -> None:
    """End this process, whatever it computes, when standard input ends."""
    # `os.read`: a thread that waits inside `sys.stdin` makes the interpreter abort at its exit.
    while os.read(0, 4096):
        pass
    os._exit(1)


def main() -> int:
    """Run one engine; returns the exit status."""
    faulthandler.enable(all_threads=False)  # a crash in native code leaves its stack in the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole group; the server decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        return _run(launch)
    finally:
        # The process ends now: a signal that arrives while the interpreter shuts down would leave a trace.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _run(launch: Launch) -> int:
    """Connect to the server, load the model and serve; returns the exit status."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.connect(f"tcp://127.0.0.1:{launch.port}")
        socket.send(encode(Hello(launch.token)))
        try:
            worker = Worker(socket, launch.config)
        except StrataError as error:
            socket.send(encode(Failed("", str(error), "load_failed")))
            return 1
        try:
            worker.serve()
        except EngineError as error:
            print(f"strata: {error}", file=sys.stderr, flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
