"""The worker's own end."""

import subprocess
import sys

import pytest

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
