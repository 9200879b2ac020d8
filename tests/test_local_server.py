"""The server process behind `chat` and `demo`: it never outlives the program that started it."""

import subprocess
import sys
import time

import httpx
import pytest

from strata.errors import StrataError
from strata.local_server import LocalServer
from strata.options import Options
from tests.conftest import clean_environment

PARENT = """
import sys, time
from strata.local_server import LocalServer
from strata.options import Options
with LocalServer(Options(model=sys.argv[1])) as server:
    print(server.wait_ready(), flush=True)
    time.sleep(300)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.jsonl"
    path.write_text('["Hi"]\n')
    return f"scripted:{path}"


def gone(url: str, seconds: float = 20.0) -> bool:
    """Whether the server stops answering in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            httpx.get(url + "/health", trust_env=False)
        except httpx.TransportError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_the_server_ends_with_its_context(script, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strata.toml").write_text('api-key = "secret"\nport = 1\n')  # for the person's own server
    monkeypatch.setenv("STRATA_API_KEY", "secret")
    with LocalServer(Options(model=script, port=1, api_key="secret")) as server:
        url = server.wait_ready()
        assert httpx.get(url + "/v1/models", trust_env=False).status_code == 200
    assert not server.alive
    assert gone(url, 1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_the_server_ends_when_its_parent_is_killed(script):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, script], stdout=subprocess.PIPE, text=True, env=clean_environment()
    )
    url = parent.stdout.readline().strip()
    assert httpx.get(url + "/health", trust_env=False).status_code == 200
    parent.kill()
    parent.wait()
    assert gone(url)


def test_a_server_that_ends_early_says_why(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typer.py").write_text("raise ImportError('a file of the person')\n")
    with (
        LocalServer(Options(model="scripted:/none/script.jsonl")) as server,
        pytest.raises(StrataError) as caught,
    ):
        server.wait_ready()
    assert "/none/script.jsonl" in str(caught.value) and "\n" not in str(caught.value)
