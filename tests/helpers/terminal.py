"""A program in a pseudo-terminal: type at it, wait for what it shows."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import Self

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>()][0-9AB]?)")
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """A context manager around one child; Ctrl+C reaches it through the terminal, as a person's would."""

    def __init__(self, line: list[str], cwd: Path, environment: dict[str, str]):
        self.screen = ""  # all that was shown, without escape sequences
        self._seen = 0
        self._raw = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        # No CPR: a real terminal would answer prompt_toolkit's question where the cursor is.
        environment = environment | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            line,
            cwd=cwd,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str, timeout: float = 30.0) -> re.Match[str]:
        """The first match after what earlier calls matched."""
        deadline = time.monotonic() + timeout
        while True:
            match = re.compile(pattern).search(self.screen, self._seen)
            if match:
                self._seen = match.end()
                return match
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(
                    f"{pattern!r} did not come; the screen after it:\n{self.screen[self._seen :]}"
                )

    def wait_exit(self, timeout: float = 30.0) -> int:
        """The exit code; keeps reading, since a child blocks on a full terminal."""
        deadline = time.monotonic() + timeout
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, timeout: float) -> bool:
        if timeout <= 0 or not select.select([self._master], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux's way to say that the child has closed the terminal
            return False
        self._raw += data
        self.screen = _ESCAPES.sub("", self._raw.decode("utf-8", "ignore")).replace("\r\n", "\n")
        return bool(data)
