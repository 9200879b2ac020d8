"""A model's kernels compiled by several processes while its weights are read, into Triton's cache on disk.

A process rehearses the model's steps and notes what they launch; then its children compile that. None of them
touches the card, nor has any of the engine's memory: forked from an engine they would share what is pinned.
What fails here is compiled when it is used, and says there why.
"""

import hashlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime.driver import driver

from strata.card.rehearsal import Header, Rehearsal, Stage
from strata.card.runner import window_sizes
from strata.formats.checkpoint import Checkpoint
from strata.ops.triton.float_matmul import WINDOW_ROWS
from strata.ops.triton.proof.fake_driver import FakeDriver
from strata.ops.triton.proof.targets import Target

PROCESS_BYTES = 1 << 30  # of memory that compiling may take at a time, with room to spare
MOST = 16  # processes
_POLL_S = 0.25
_LEAVE_S = 1.0
_SOURCES = Path(__file__).parent.parent  # all that launches depend on


class Compiling:
    """Processes that compile ahead; use it as a context, which ends them.

    Args:
        checkpoint: the model.
        stage: how it is loaded.
        chunk: tokens of the largest piece of a prompt.
        jobs: processes at a time; see `num_jobs`.
    """

    def __init__(self, checkpoint: Checkpoint, stage: Stage, chunk: int, jobs: int):
        target, header = driver.active.get_current_target(), Header(checkpoint)
        name = target.arch if target.backend == "hip" else f"sm_{target.arch}"
        self._mark = _mark(header, stage, chunk, name)
        self._process = self._pipe = None
        if self._mark.exists():
            return
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self._process = context.Process(target=_lead, args=(header, stage, chunk, name, jobs, far_end))
        self._process.start()
        far_end.close()  # else there would be no end of what it says when it has died

    def __enter__(self) -> "Compiling":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe is None or self._process is None:
            return
        self._pipe.close()  # at which they end
        self._process.join(_LEAVE_S)
        if self._process.is_alive():  # it rehearses yet
            self._process.terminate()
            self._process.join()

    def wait(self, tell: Callable[[int, int], None]) -> None:
        """Return when all that can be is compiled; `tell` gets how many kernels are, and how many will be."""
        if self._pipe is None:
            return
        with suppress(EOFError):  # they have broken down
            while (told := self._pipe.recv()) is not None:
                if isinstance(told, str):
                    print(f"kernels are compiled one after another: {told}", file=sys.stderr, flush=True)
                    return
                tell(*told)
            with suppress(OSError):  # it only saves the next start a look at what is there
                self._mark.parent.mkdir(parents=True, exist_ok=True)
                self._mark.touch()


def num_jobs(cores: int, free_bytes: int) -> int:
    """Processes that may compile at a time, by cores and by memory that is left when the model is loaded."""
    return max(1, min(cores, free_bytes // PROCESS_BYTES, MOST))


def _mark(header: Header, stage: Stage, chunk: int, target: str) -> Path:
    """A file in Triton's cache that says that a model's kernels are there."""
    # What `take` holds is measured anew each time.
    take = stage.take
    shapes = replace(stage, take=None), take is None, any(take or ()), chunk
    digest = hashlib.sha256(f"{triton.__version__} {torch.__version__} {target} {shapes}".encode())
    digest.update(repr(sorted(header.tensors.items())).encode())
    numbers = {key: value for key, value in header.metadata.items() if isinstance(value, int | float | str)}
    digest.update(repr(sorted(numbers.items())).encode())
    for room in ("card", "layers", "models", "ops"):
        for source in sorted((_SOURCES / room).rglob("*.py")):
            digest.update(source.read_bytes())
    return Path(knobs.cache.dir) / f"strata-{digest.hexdigest()[:32]}"


def _lead(header: Header, stage: Stage, chunk: int, target: str, jobs: int, pipe: Connection) -> None:
    """Have children compile, and tell the engine how far they are; None: nothing is left."""
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    with suppress(KeyboardInterrupt, BrokenPipeError, EOFError):
        try:
            kernels = kernels_of(header, stage, chunk, target)
        except Exception as error:  # the same code is to run in the engine, which says more of it
            pipe.send(f"{type(error).__name__}: {error}")
            return
        if not hasattr(os, "fork"):
            for number, kernel in enumerate(kernels, 1):
                kernel.compile()
                pipe.send((number, len(kernels)))
            pipe.send(None)
            return
        context = multiprocessing.get_context("fork")
        taken, done = (context.Value("i", 0) for _ in range(2))
        work = (kernels, taken, done)
        children = [context.Process(target=_compile, args=work, daemon=True) for _ in range(jobs)]
        for child in children:
            child.start()
        told = -1
        while any(child.is_alive() for child in children):
            if pipe.poll(_POLL_S):
                pipe.recv()  # nothing is ever sent: the engine has closed its end
            if done.value > told:
                told = done.value
                pipe.send((told, len(kernels)))
        if done.value == len(kernels):
            pipe.send(None)


def _compile(kernels: "list[Kernel]", taken: Any, done: Any) -> None:
    """Compile one kernel after another that no other process has taken."""
    parent = os.getppid()
    with suppress(KeyboardInterrupt):
        while os.getppid() == parent:
            with taken:
                number, taken.value = taken.value, taken.value + 1
            if number >= len(kernels):
                return
            kernels[number].compile()
            with done:
                done.value += 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel as Triton is about to compile it: arguments of `triton.compile`."""

    source: Any
    target: Any
    options: dict[str, Any]

    def compile(self) -> None:
        """Into the cache; what fails is said when the kernel is used."""
        with suppress(Exception):
            triton.compile(self.source, target=self.target, options=self.options)


class _NotCompiled:
    """In the place of a compiled kernel; launching it does nothing."""

    function = packed_metadata = None

    def run(self, *_: object) -> None:
        pass

    launch_metadata = run


def kernels_of(header: Header, stage: Stage, chunk: int, target: str) -> list[Kernel]:
    """All kernels of a model's windows and prompts, each once, those of windows first.

    Args:
        header, stage, chunk: of `Compiling`.
        target: `gfx1100`, `sm_89`, ...; Triton's driver in this process is from now on one for that.
    """
    found: list[Kernel] = []

    def note(source: Any, target: Any, options: dict[str, Any], **_: Any) -> _NotCompiled:
        found.append(Kernel(source, target, options))
        return _NotCompiled()

    def before_compiling(*, fn: Any, **_: Any) -> bool:
        fn.jit_function.compile = note
        return False

    torch.set_grad_enabled(False)
    driver.set_active(FakeDriver(Target(target, "", 1 << 30, 1 << 30, 64)))
    knobs.runtime.jit_cache_hook = before_compiling
    rehearsal = Rehearsal(header, stage).without_repeats()
    rehearsal.windows(window_sizes(stage.lanes))
    for rows in prompt_lengths(chunk):
        rehearsal.prompt(rows)
    knobs.runtime.jit_cache_hook = None
    return found


def prompt_lengths(chunk: int) -> list[int]:
    """Rows of pieces of prompts of all kinds, as far as kernels differ.

    They do by the power of two that holds the rows, by an expert's part of them, by whether 16 divides their
    number, and with each number that a window may have, as a piece's last rows may.
    """
    lengths = [chunk]
    for power in range(chunk.bit_length() - 1, WINDOW_ROWS.bit_length() - 1, -1):
        rows, more = 1 << power, 3 << power - 1
        lengths += [rows, rows + 1, more, more + 1]
    lengths += range(1, WINDOW_ROWS + 1)
    return [rows for rows in dict.fromkeys(lengths) if rows <= chunk]
