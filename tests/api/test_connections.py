"""What happens on the wire: keep-alives, leaving clients, a dying engine, signals."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from api.conftest import SEEDS
from conftest import clean_environment
from helpers.api_server import ApiServer

DAYS = {"days": {"type": "integer"}}
ASK = [{"role": "user", "content": "Say it."}]


def body(line: str, **fields) -> dict:
    return {"model": "parrot", "messages": ASK, "seed": SEEDS[line], **fields}


def connect(server: ApiServer, request: dict, path: str = "/v1/chat/completions") -> socket.socket:
    """Send a request by hand and return its connection."""
    data = json.dumps(request).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    connection.sendall(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    return connection


def read_all(connection: socket.socket) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def idle(health: dict) -> bool:
    return health.get("running") == 0 and health.get("queued") == 0


def chunks_of(raw: bytes) -> list[bytes]:
    """The payloads of a chunked HTTP response, each as one write of the server."""
    rest, parts = raw.split(b"\r\n\r\n", 1)[1], []
    while rest:
        size, rest = rest.split(b"\r\n", 1)
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return [part for part in parts if part]


def test_events_are_whole_and_end_with_done(server: ApiServer) -> None:
    """CASES 45: every write is one event, one line and an empty one, whatever the text holds."""
    raw = read_all(connect(server, body("lines", stream=True)))
    assert b"content-type: text/event-stream" in raw.lower()
    parts = chunks_of(raw)
    assert all(part.startswith(b"data: ") and part.endswith(b"\n\n") for part in parts)
    assert all(part.count(b"\n") == 2 and b"\r" not in part for part in parts)
    assert parts[-1] == b"data: [DONE]\n\n"
    assert json.loads(parts[0][6:])["choices"][0]["delta"]["role"] == "assistant"


def test_a_client_that_leaves_within_its_request_is_no_error(server: ApiServer) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head + b"Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
        assert b"100 Continue" in connection.recv(100)  # so the server waits for the body now
        connection.sendall(b'{"model": ')
    for _ in range(5):  # its end has been dealt with by then
        assert server.health()["status"] == "ok"
    assert not any("Traceback" in line for line in server.log)


def test_keep_alive_comments_while_silent(server: ApiServer) -> None:
    """CASES 60, 61, 282: comments only, and not before the role."""
    parts = chunks_of(read_all(connect(server, body("silent", stream=True))))
    comments = [i for i, part in enumerate(parts) if part == b": keep-alive\n\n"]
    assert len(comments) >= 3
    assert b"assistant" in parts[0]
    assert any(b'"content": "late"' in part for part in parts[comments[-1] :])


def test_keep_alive_while_a_call_is_withheld(server: ApiServer) -> None:
    """CASES 60: a number is sent when it is whole; the tokens until then are silence."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"properties": DAYS}}}
    parts = chunks_of(read_all(connect(server, body("withheld call", stream=True, tools=[tool]))))
    begun = next(i for i, part in enumerate(parts) if b"days" in part)
    ended = next(i for i, part in enumerate(parts) if b"11111111" in part)
    assert parts[begun + 1 : ended].count(b": keep-alive\n\n") >= 2


def test_keep_alive_and_cancellation_while_queued(server: ApiServer) -> None:
    """CASES 54: a queued request gets comments too, and is never run once its client has left."""
    before = server.wait_for(idle)
    busy = [connect(server, body("slow", stream=True)) for _ in range(2)]
    server.wait_for(lambda health: health.get("running") == 2)
    waiting = [connect(server, body("hello", stream=True))]
    server.wait_for(lambda health: health.get("queued") == 1)
    waiting.append(connect(server, body("hello", stream=True)))
    for i, connection in enumerate(waiting):
        read = b"".join(connection.recv(65536) for _ in range(3))
        assert f": keep-alive queued, {i} before it\n\n".encode() in read
    assert server.health()["queued"] == 2
    metrics = httpx.get(f"{server.url}/metrics", trust_env=False).text
    assert 'vllm:num_requests_waiting{model_name="parrot"} 2.0' in metrics
    waiting.pop(0).close()
    server.wait_for(lambda health: health.get("queued") == 1)
    behind = b"queued, 0 before it"  # it has moved up
    while behind not in waiting[0].recv(65536):
        pass
    waiting[0].close()
    server.wait_for(lambda health: health.get("queued") == 0)
    assert server.health()["running"] == 2
    for connection in busy:
        connection.close()
    after = server.wait_for(idle)
    assert after["cancelled"] - before["cancelled"] == 4
    assert after["finished"] == before["finished"]


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_client_frees_the_lane(server: ApiServer, stream: bool) -> None:
    """CASES 52, 56, 430."""
    server.wait_for(idle)
    connection = connect(server, body("slow", stream=stream))
    server.wait_for(lambda health: health.get("running") == 1)
    connection.close()
    assert idle(server.wait_for(idle, timeout_s=3))


def test_leaving_during_a_long_prompt(server: ApiServer) -> None:
    """CASES 53: between two chunks of the prompt, or wherever else it is by then."""
    server.wait_for(idle)
    request = {"model": "parrot", "prompt": "x" * 250_000, "seed": SEEDS["slow"]}
    connection = connect(server, request, "/v1/completions")
    server.wait_for(lambda health: health.get("running") == 1)
    connection.close()
    server.wait_for(idle, timeout_s=3)


def test_a_hundred_cancels(server: ApiServer, client: openai.OpenAI) -> None:
    """CASES 57, 58: no lane is lost; a cancelled request does not count as finished (471)."""
    before = server.wait_for(idle)
    for i in range(100):
        with client.chat.completions.create(**body("slow"), stream=True) as stream:
            if i % 2:
                next(iter(stream))
    after = server.wait_for(idle)
    assert after["cancelled"] - before["cancelled"] == 100
    assert after["finished"] == before["finished"]
    answers = [client.chat.completions.create(**body("hello")) for _ in range(2)]
    assert [answer.choices[0].message.content for answer in answers] == ["Hello, world!"] * 2


def test_engine_death_fails_the_request_and_the_next_one_works(
    server: ApiServer, client: openai.OpenAI
) -> None:
    """CASES 27, 344, 62: told in one line; its last words, which hold paths, stay in the server's log."""
    ending = "the engine process was ended by SIGABRT"
    told = f"{ending}; the server's log says more, and the next request starts a new one"
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**body("crash"))
    assert (caught.value.code, caught.value.body["message"]) == ("engine_error", told)
    assert any("engine: Fatal Python error: Aborted" in line for line in server.log)
    health = httpx.get(f"{server.url}/health", trust_env=False)
    assert (health.status_code, health.json()["status"]) == (503, "dead")
    assert health.json()["reason"] == ending
    parts = chunks_of(read_all(connect(server, body("hello", stream=True))))
    assert parts[0] == b": keep-alive the model is loading\n\n"
    assert parts[-1] == b"data: [DONE]\n\n"
    parts = chunks_of(read_all(connect(server, body("crash", stream=True))))
    assert b"before" in b"".join(parts)
    assert json.loads(parts[-1].removeprefix(b"data: "))["error"]["message"] == told


def test_log_has_one_line_per_request_and_no_text(server: ApiServer, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="parrot", messages=[{"role": "user", "content": "a secret"}], seed=SEEDS["hello"]
    )
    deadline = time.monotonic() + 5
    while not (lines := [line for line in server.log if answer.id in line]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(lines) == 1
    assert f"prompt {answer.usage.prompt_tokens} tokens" in lines[0]
    assert "answer 5" in lines[0]
    assert not any("secret" in line for line in server.log)


def test_port_in_use(server: ApiServer, run_strata) -> None:
    """CASES 32 of the original: a message before any model is loaded."""
    answer = run_strata("serve", "--model", "no-such-file.gguf", "--port", str(server.port))
    assert answer.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {server.port}" in answer.stderr


def test_model_that_does_not_load(run_strata, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('["a"]\n[7.5]\n')
    answer = run_strata("serve", "--model", f"scripted:{tmp_path / 'bad.jsonl'}", "--port", "0")
    assert answer.returncode == 1
    assert "bad.jsonl:2: item 1" in answer.stderr
    assert "Traceback" not in answer.stderr


@contextmanager
def loading_server(folder: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server that answers, and has not loaded its model yet: its address and process."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "parrot.jsonl").write_text('["hi"]')
    command = [sys.executable, "-m", "strata", "serve", "--model", f"scripted:{folder / 'parrot.jsonl'}"]
    command += ["--port", str(port), *flags]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        command, env=clean_environment(), cwd=folder, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while True:
            try:
                health = httpx.get(f"{url}/health", trust_env=False)
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        try:
            yield url, process
        finally:
            process.kill()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows ends processes without a signal")
def test_sigterm_while_loading(tmp_path: Path) -> None:
    """CASES 96 of the original: the port answers early, and an end that was asked for is no failure."""
    with loading_server(tmp_path) as (_, process):
        process.terminate()
        _, log = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "Traceback" not in log


@pytest.mark.parametrize(
    ("path", "sign"), [("chat/completions", ": keep-alive"), ("messages", "event: ping")]
)
def test_a_stream_shows_life_while_the_model_loads(tmp_path: Path, path: str, sign: str) -> None:
    """CASES 282 of the original."""
    request = {"model": "parrot", "messages": ASK, "stream": True, "max_tokens": 5}
    with loading_server(tmp_path, "--keep-alive-s", "0.05") as (url, _):
        answer = httpx.post(f"{url}/v1/{path}", json=request, trust_env=False, timeout=60)
    assert answer.status_code == 200
    assert answer.text.startswith(sign)
    assert '"hi"' in answer.text and "error" not in answer.text


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows ends processes without a signal")
def test_sigterm_lets_short_answers_end_and_tells_long_ones(tmp_path: Path) -> None:
    with ApiServer([["a", {"sleep": 1}, "b"], ["c", {"sleep": 60}]], tmp_path) as server:
        requests = [{"model": "parrot", "messages": ASK, "seed": i, "stream": True} for i in range(2)]
        short, long = (connect(server, request) for request in requests)
        server.wait_for(lambda health: health.get("running") == 2)
        server.process.terminate()
        assert chunks_of(read_all(short))[-1] == b"data: [DONE]\n\n"
        last = json.loads(chunks_of(read_all(long))[-1].removeprefix(b"data: "))
        assert "stopped before the answer was complete" in last["error"]["message"]
