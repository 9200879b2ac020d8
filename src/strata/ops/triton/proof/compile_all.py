"""Every launch for every target, in child processes.

LLVM may abort on a kernel that it cannot compile; that must be one red row and not the end of the run. But
what Triton does once in a process (it hashes its own library of half a gigabyte, and loads code generators)
takes longer than many kernels: a child goes from launch to launch, and only one that has died is replaced.
"""

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import IO

from strata.ops.triton.catalog import Launch
from strata.ops.triton.proof.fake_driver import Compiled, pretend
from strata.ops.triton.proof.targets import Target

TIMEOUT_S = 300.0
_LOG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a launch on a target.

    Attributes:
        launch, target: their names.
        kernels: that it compiled, in the order of its launches, each once; none if it failed.
        error: why it failed; "" if it did not.
        seconds: that it took.
    """

    launch: str
    target: str
    kernels: tuple[Compiled, ...] = ()
    error: str = ""
    seconds: float = 0.0


Work = Sequence[tuple[Launch, Target]]


class _Worker:
    """A child that compiles one pair of `work` after another, and what it says meanwhile.

    Attributes:
        pipe: has something to read when the pair at hand is done, or the child has died of it.
        gone: it takes no further pair.
    """

    def __init__(self, work: Work):
        self.work = work
        self.gone = False
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        # Forked: the launches are functions of modules that take seconds to import.
        context = multiprocessing.get_context("fork")
        self.pipe, far_end = context.Pipe()
        ends = (self.pipe, far_end)
        self.process = context.Process(target=_child, args=(work, *ends, self.log.fileno()), daemon=True)
        self.process.start()
        far_end.close()

    def begin(self, index: int) -> None:
        """Have it compile a pair of `work`."""
        self.index, self.start = index, time.monotonic()
        self.pipe.send(index)

    @property
    def overdue(self) -> bool:
        return time.monotonic() - self.start > TIMEOUT_S

    def result(self) -> Result:
        """What the child has sent, or how it died."""
        launch, target = (half.name for half in self.work[self.index])
        seconds = time.monotonic() - self.start
        if not self.pipe.poll():
            self.close()
            return Result(launch, target, error=f"not done after {TIMEOUT_S:.0f} s")
        try:
            answer = self.pipe.recv()
        except EOFError:
            self.process.join()
            answer, self.gone = self._obituary(), True
        kernels, error = ((), answer) if isinstance(answer, str) else (answer, "")
        if error and (told := self._said("error:")):  # what MLIR prints beside an exception that says little
            error = f"{error}: {told.partition('error:')[2].strip()}"
        if self.gone:
            self.close()
        return Result(launch, target, kernels, error, seconds)

    def _obituary(self) -> str:
        """How a child ended that sent nothing: its signal, and what LLVM said."""
        code = self.process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the compiler ended with {how} {self._said('LLVM ERROR', 'Assertion', 'UNREACHABLE')}".strip()

    def _said(self, *marks: str) -> str:
        """The first line of the child's output that holds one of the marks; "" if there is none."""
        lines = os.pread(self.log.fileno(), _LOG_BYTES, 0).decode(errors="replace").splitlines()
        return next((line.strip() for line in lines if any(mark in line for mark in marks)), "")

    def close(self) -> None:
        self.gone = True
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()
        self.log.close()


def _child(work: Work, near_end: Connection, pipe: Connection, log: int) -> None:
    near_end.close()  # else the pipe would not end with the parent
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    while True:
        try:
            launch, target = work[pipe.recv()]
        except EOFError:  # the parent is gone
            return
        os.ftruncate(1, 0)
        os.lseek(1, 0, os.SEEK_SET)
        pipe.send(_compile(launch, target))


def _compile(launch: Launch, target: Target) -> tuple[Compiled, ...] | str:
    """The kernels of a launch, or why there are none."""
    try:
        with pretend(target) as compiled:
            launch.call()
    except Exception as error:
        while error.__cause__ is not None:  # Triton wraps what is wrong in where it is
            error = error.__cause__
        return f"{type(error).__name__}: {error}"
    # A kernel with several specialisations is named once for each.
    return tuple(compiled) if compiled else "the launch has launched no kernel"


def compile_all(
    work: Work, jobs: int, on_start: Callable[[str, str], None] = lambda *names: None
) -> Iterator[Result]:
    """Compile each launch for its target, `jobs` at a time, and yield results as they come.

    Args:
        work: pairs of launch and target.
        jobs: children at a time.
        on_start: called with a launch's and a target's name when it begins.
    """
    waiting = iter(range(len(work)))
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    try:
        while True:
            while len(busy) < jobs and (index := next(waiting, None)) is not None:
                on_start(*(half.name for half in work[index]))
                busy.append(idle.pop() if idle else _Worker(work))
                busy[-1].begin(index)
            if not busy:
                return
            wait([worker.pipe for worker in busy], timeout=1.0)  # also wakes when a child dies
            for worker in [worker for worker in busy if worker.pipe.poll() or worker.overdue]:
                result = worker.result()
                busy.remove(worker)
                if not worker.gone:
                    idle.append(worker)
                yield result
    finally:
        for worker in (*busy, *idle):
            worker.close()


def lowered(targets: Sequence[Target], probe: Launch, jobs: int) -> dict[str, str]:
    """Which targets this Triton cannot compile for, and why: those for which even `probe` fails."""
    results = compile_all([(probe, target) for target in targets], jobs)
    return {result.target: result.error for result in results if result.error}
