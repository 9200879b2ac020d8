"""A real server process with a scripted model, for tests that speak to it as its users do."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx
from conftest import clean_environment


class ApiServer:
    """`strata serve --model scripted:FILE --port 0`; a context manager.

    Args:
        script: the script's lines.
        folder: where the script is written and the process runs.
        flags: further flags of `strata serve`.
    """

    def __init__(self, script: list[list], folder: Path, *flags: str):
        self.folder = folder
        self.script = folder / "parrot.jsonl"
        self.script.write_text("\n".join(map(json.dumps, script)), encoding="utf-8")
        self.flags = flags
        self.url = ""
        self.log: list[str] = []

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "strata", "serve", "--model", f"scripted:{self.script}"]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *self.flags],
            cwd=self.folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        line = self.process.stdout.readline()
        assert "http://" in line, self.log
        self.url = line.split()[-1]
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        try:
            status = self.process.wait(60)  # a second of work, of which a busy machine may make many
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        if sys.platform != "win32":  # there `terminate` is no signal
            assert status == 0, self.log  # SIGTERM, as from `docker stop`, is an orderly end
            self.reader.join(5)
            assert not any("Traceback" in line for line in self.log), self.log

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def health(self) -> dict:
        return httpx.get(f"{self.url}/health", trust_env=False).json()

    def wait_for(self, condition: Callable[[dict], bool], timeout_s: float = 10) -> dict:
        """The first health report that meets a condition."""
        deadline = time.monotonic() + timeout_s
        while not condition(health := self.health()):
            assert time.monotonic() < deadline, health
            time.sleep(0.02)
        return health
