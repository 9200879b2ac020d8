"""Ctrl+C in the first second of a command, while it imports: exit code 130 and not a word."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import clean_environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of a terminal")

# A module that gets Ctrl+C while it is imported. What comes of it may be lost, as in callbacks of the import
# system and in modules that catch everything.
STUB = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)
except BaseException as error:
    print("caught", repr(error), flush=True)
    {after}
"""
# command line -> what it imports, some early and some late
LATE = {
    "demo": "httpx",
    "chat --url http://127.0.0.1:1": "httpx",
    "serve": "nicegui",
    "pull hf:owner/repo": "huggingface_hub",
    "doctor": "torch",
    "plan tiny": "msgspec",
    "synth tiny --quant q2_0": "torch",
    "logits --tokens tokens.json --out out.npy": "torch",
    "test": "pytest",
}


def interrupted(folder: Path, module: str, line: str, after: str) -> subprocess.CompletedProcess[str]:
    """`strata LINE`, with Ctrl+C while it imports `module`."""
    (folder / f"{module}.py").write_text(STUB.format(after=after))
    (folder / "tokens.json").write_text("[1]")
    return subprocess.run(
        [sys.executable, "-m", "strata", *line.split()],  # modules of the folder come first
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        input="hi",
    )


@pytest.mark.parametrize("module", ["typer", "pydantic"])
def test_what_every_command_imports_cannot_catch_it(tmp_path: Path, module: str):
    answer = interrupted(tmp_path, module, "plan tiny", "pass")
    assert (answer.returncode, answer.stdout, answer.stderr) == (130, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("line, module", LATE.items())
def test_it_is_quiet_in_every_command(tmp_path: Path, line: str, module: str):
    answer = interrupted(tmp_path, module, line, "raise")
    assert (answer.returncode, answer.stderr) == (130, "")
    assert answer.stdout in ("", "caught KeyboardInterrupt()\n")


def test_where_it_is_ignored_it_stays_so(tmp_path: Path):
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for `&` in a script

    (tmp_path / "typer.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('on', flush=True)"
    )
    answer = subprocess.run(
        [sys.executable, "-m", "strata", "plan", "tiny"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=ignore,
    )
    assert answer.stdout == "on\n"


def test_what_came_while_python_started_is_taken_then(tmp_path: Path):
    """As the launcher does it: the signal is held back, and comes before the command."""
    code = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
os.kill(os.getpid(), signal.SIGINT)
os.execv(sys.executable, [sys.executable, "-m", "strata", "--version"])
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(), capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (130, "", "")
