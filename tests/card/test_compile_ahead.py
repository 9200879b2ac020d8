"""Kernels that are compiled before they are used: all that a model launches, by processes that end."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

pytest.importorskip("triton")

from strata.card import compile_ahead
from strata.card.compile_ahead import PROCESS_BYTES, num_jobs, prompt_lengths

SETTING = """
import sys
from dataclasses import replace
import torch
from triton import knobs
from triton.runtime.driver import driver
from strata.card.compile_ahead import kernels_of
from strata.card.rehearsal import Header, Rehearsal, Stage
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.synthetic import SyntheticCheckpoint
from strata.ops.triton.proof.fake_driver import FakeDriver
from strata.ops.triton.proof.targets import TARGETS
geometry = GEOMETRIES["tiny"]
checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, "q2_0"))
stage = Stage(2, 4096, torch.float16, [1] * 200, 512)
"""
OTHERS = """
found = kernels_of(Header(checkpoint), stage, 256, "sm_80")
known = {kernel.source.hash() for kernel in found}
assert len(known) == len(found) > 100
rehearsal, more = Rehearsal(Header(checkpoint), stage), []
def before_compiling(*, fn, repr, **_):
    fn.jit_function.compile = lambda source, **_: more.append((source.hash(), repr)) or Nothing()
class Nothing:
    function = packed_metadata = None
    run = launch_metadata = lambda *_: None
driver.set_active(FakeDriver(TARGETS["sm_80"]))
knobs.runtime.jit_cache_hook = before_compiling
rehearsal.windows([1, 2, 16])
for rows in (256, 133, 200, 70, 35, 16, 9):
    rehearsal.prompt(rows)
print([repr for hash, repr in more if hash not in known], len(more))
"""


def run(script: str, cache: Path) -> str:
    """Outside of the interpreter, which tests of kernels need."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", SETTING + script],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def test_no_piece_of_a_prompt_launches_what_is_not_known(tmp_path: Path):
    new, _, number = run(OTHERS, tmp_path).strip().rpartition(" ")
    assert (new, int(number) > 50) == ("[]", True)
    assert not list(tmp_path.iterdir()), "something was compiled"


class Noted:
    """A kernel whose compilation leaves a file.

    Args:
        path: of the file.
        how: it goes.
    """

    def __init__(self, path: Path, how: Callable[[], object] = lambda: None):
        self._path, self._how = path, how

    def compile(self) -> None:
        with self._path.open("x"):  # an error where it exists
            self._how()


def lead(monkeypatch: pytest.MonkeyPatch, kernels: list[Noted]) -> tuple[BaseProcess, Connection]:
    """A process that has three children compile these."""
    monkeypatch.setattr(compile_ahead, "kernels_of", lambda *_: kernels)
    context = multiprocessing.get_context("fork")
    pipe, far_end = context.Pipe()

    def begin() -> None:
        pipe.close()  # which a process that is not forked would not have
        compile_ahead._lead(None, None, 0, "sm_80", 3, far_end)

    process = context.Process(target=begin)
    process.start()
    far_end.close()
    return process, pipe


def test_each_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    process, pipe = lead(monkeypatch, [Noted(tmp_path / str(i)) for i in range(20)])
    told = list(iter(pipe.recv, None))
    process.join()
    assert told[-1] == (20, 20) and told == sorted(set(told)) and len(list(tmp_path.iterdir())) == 20


def test_a_compiler_that_dies_takes_only_its_own_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    kernels = [Noted(tmp_path / str(i), (lambda: os._exit(1)) if i == 3 else lambda: None) for i in range(20)]
    process, pipe = lead(monkeypatch, kernels)
    with pytest.raises(EOFError):  # no word that all is done
        while pipe.recv() is not None:
            pass
    process.join()
    assert len(list(tmp_path.iterdir())) == 20


def test_compiling_ends_when_nobody_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    process, pipe = lead(monkeypatch, [Noted(tmp_path / str(i), lambda: time.sleep(60)) for i in range(20)])
    pipe.close()
    process.join(30)
    assert process.exitcode == 0 and len(list(tmp_path.iterdir())) <= 3


def test_processes_by_cores_and_memory():
    assert num_jobs(8, 100 * PROCESS_BYTES) == 8
    assert num_jobs(8, 3 * PROCESS_BYTES) == 3
    assert num_jobs(8, -1) == 1
    assert num_jobs(64, 100 * PROCESS_BYTES) == 16


def test_lengths_are_pieces():
    for chunk in (512, 1000, 8192):
        lengths = prompt_lengths(chunk)
        assert lengths[0] == chunk == max(lengths) and set(range(1, 17)) <= set(lengths)
