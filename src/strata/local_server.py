"""A server process of our own, as `strata chat` and `strata demo` start one."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from types import TracebackType
from typing import Self

from strata.configuration import child_environment, command_line
from strata.errors import StrataError
from strata.options import Options

NUM_LOG_LINES = 20  # shown when the server ends by itself
STOP_S = 15.0  # a server that has not ended this long after being asked is killed


class LocalServer:
    """`strata serve` as a child on a free loopback port; a context manager.

    The child ends when its standard input closes, so it also ends when this process is killed. It runs in a
    process group of its own: a Ctrl+C in the terminal is for the chat, not for the server.

    Args:
        options: the model and how to run it; host, port and key are replaced by private ones.
    """

    def __init__(self, options: Options):
        # No key, and none of the config file's: whoever can reach this port could also run the model.
        self.options = options.model_copy(
            update={"host": "127.0.0.1", "port": 0, "api_key": None, "api_key_file": None, "attached": True}
        )
        self.url = ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()  # the address is known, or the child has ended

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", "-m", "strata", "serve", *command_line(self.options, "serve")]
        group = (
            {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
            if os.name == "nt"
            else {"start_new_session": True}
        )
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=child_environment(self.options),
            **group,
        )
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process and self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except BaseException as failure:  # too slow, or the person's second Ctrl+C
            self._process.kill()
            self._process.wait()
            if not isinstance(failure, subprocess.TimeoutExpired):
                raise
        finally:
            self._log.close()

    def wait_ready(self) -> str:
        """The address, once the model is loaded.

        Raises:
            StrataError: the server ended before; the text holds its last log lines.
        """
        while not self._ready.wait(0.2):  # short waits, so that Ctrl+C is heard on every system
            pass
        if not self.url:
            raise StrataError(self.obituary())
        return self.url

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def wait(self) -> None:
        """Wait until the server ends by itself."""
        assert self._process
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
                return

    def obituary(self) -> str:
        """Why the server ended, in its own words: its complaint, or its last log lines."""
        assert self._process
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        complaint = lines[-1].removeprefix("strata: ") if lines and lines[-1].startswith("strata: ") else ""
        if complaint:
            return complaint
        return "\n".join(
            [f"the server ended with exit code {code}; its last lines:", *lines[-NUM_LOG_LINES:]]
        )

    def _read_output(self) -> None:
        """Find the address in the child's first line and drain what follows."""
        assert self._process and self._process.stdout
        for line in self._process.stdout:
            address = re.search(rb"https?://\S+", line)
            if address and not self.url:
                self.url = address[0].decode().rstrip("/")
                self._ready.set()
        self._ready.set()
