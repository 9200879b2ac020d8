"""Every launch for every target, each in a process of its own.

LLVM may abort on a kernel that it cannot compile; that must be one red row and not the end of the run.
"""

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import IO

from strata.ops.triton.catalog import Launch
from strata.ops.triton.proof.fake_driver import Compiled, pretend
from strata.ops.triton.proof.targets import Target

TIMEOUT_S = 300.0


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


class _Job:
    """A child that compiles one launch for one target."""

    def __init__(self, launch: Launch, target: Target):
        self.launch, self.target = launch, target
        self.start = time.monotonic()
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        # Forked: the launches are functions of modules that take seconds to import.
        context = multiprocessing.get_context("fork")
        self.answer, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=_child, args=(launch, target, sender, self.log), daemon=True)
        self.process.start()
        sender.close()

    @property
    def overdue(self) -> bool:
        return time.monotonic() - self.start > TIMEOUT_S

    def result(self) -> Result:
        """What the child has sent, or how it died."""
        seconds = time.monotonic() - self.start
        if self.process.is_alive() and not self.answer.poll():
            self.close()
            return Result(self.launch.name, self.target.name, error=f"not done after {TIMEOUT_S:.0f} s")
        try:
            answer = self.answer.recv()
        except EOFError:
            self.process.join()
            answer = self._obituary()
        kernels, error = ((), answer) if isinstance(answer, str) else (answer, "")
        if error and (told := self._said("error:")):  # what MLIR prints beside an exception that says little
            error = f"{error}: {told.partition('error:')[2].strip()}"
        self.close()
        return Result(self.launch.name, self.target.name, kernels, error, seconds)

    def _obituary(self) -> str:
        """How a child ended that sent nothing: its signal, and what LLVM said."""
        code = self.process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the compiler ended with {how} {self._said('LLVM ERROR', 'Assertion', 'UNREACHABLE')}".strip()

    def _said(self, *marks: str) -> str:
        """The first line of the child's output that holds one of the marks; "" if there is none."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in lines if any(mark in line for mark in marks)), "")

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.answer.close()
        self.log.close()


def _child(launch: Launch, target: Target, sender: Connection, log: IO[bytes]) -> None:
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    try:
        with pretend(target) as compiled:
            launch.call()
        # A kernel with several specialisations is named once for each.
        sender.send(tuple(compiled) if compiled else "the launch has launched no kernel")
    except Exception as error:
        while error.__cause__ is not None:  # Triton wraps what is wrong in where it is
            error = error.__cause__
        sender.send(f"{type(error).__name__}: {error}")


def compile_all(
    work: Iterable[tuple[Launch, Target]],
    jobs: int,
    on_start: Callable[[str, str], None] = lambda *names: None,
) -> Iterator[Result]:
    """Compile each launch for its target, `jobs` at a time, and yield results as they come.

    Args:
        work: pairs of launch and target.
        jobs: children at a time.
        on_start: called with a launch's and a target's name when it begins.
    """
    waiting = iter(work)
    running: list[_Job] = []
    try:
        while True:
            while len(running) < jobs and (pair := next(waiting, None)) is not None:
                on_start(pair[0].name, pair[1].name)
                running.append(_Job(*pair))
            if not running:
                return
            wait([job.answer for job in running], timeout=1.0)  # also wakes when a child dies
            for job in [job for job in running if job.answer.poll() or job.overdue]:
                running.remove(job)
                yield job.result()
    finally:
        for job in running:
            job.close()


def lowered(targets: Sequence[Target], probe: Launch, jobs: int) -> dict[str, str]:
    """Which targets this Triton cannot compile for, and why: those for which even `probe` fails."""
    results = compile_all([(probe, target) for target in targets], jobs)
    return {result.target: result.error for result in results if result.error}
