"""The terminal chat: typed messages, streamed answers, Ctrl+C, and its client's view of a server."""

import io
import json
import sys
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from strata.client import ChatClient, Delta, ServerError
from strata.commands.chat import Chat
from strata.options import Options
from strata.terminal import harmless, read_message, show_answer
from tests.conftest import clean_environment


def typed(*lines: str):
    """A `read_line` that returns these lines, then the end of input."""
    remaining = iter(lines)

    def read_line(prompt: str) -> str:
        try:
            return next(remaining)
        except StopIteration:
            raise EOFError from None

    return read_line


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["hello"], "hello"),
        ([""], ""),
        (["a\\", "b\\", "c"], "a\nb\nc"),
        (["a\\"], "a"),
        (['"""', "a", "", "b", '"""'], "a\n\nb"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""a"""'], "a"),
        (['  """a', 'b"""  '], "a\nb"),
        (['"""', "a\\", '"""'], "a\\"),
        (['"""', "a"], "a"),
        (['say """ twice'], 'say """ twice'),
    ],
)
def test_messages_of_several_lines(lines, message):
    assert read_message(typed(*lines)) == message


def test_the_end_of_input_before_a_message_is_the_end():
    with pytest.raises(EOFError):
        read_message(typed())


@given(st.text())
def test_a_models_text_cannot_steer_the_terminal(text):
    shown = harmless(text)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in shown)
    assert shown == "".join(c for c in text if c in "\n\t" or (ord(c) >= 32 and not 127 <= ord(c) < 160))


def test_an_answer_is_collected_without_its_thinking():
    console = Console(file=io.StringIO(), width=40)
    collected: list[str] = []
    pieces = [Delta("hm\x1b[2J", True), Delta("[bold]Yes", False), Delta(" :smile:\x07", False)]
    show_answer(console, pieces, collected)
    assert collected == ["[bold]Yes", " :smile:\x07"]
    assert console.file.getvalue() == "hm[2J\n\n[bold]Yes :smile:\n"


def client_of(*events: object, status: int = 200, body: str | None = None) -> ChatClient:
    """A client whose server answers every chat request with these events."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        client.requests.append(json.loads(request.content))
        text = "".join(e if isinstance(e, str) else f"data: {json.dumps(e)}\n\n" for e in events)
        return httpx.Response(status, text=text if body is None else body)

    client = ChatClient("http://server/v1/")
    client.requests = []
    client._http = httpx.Client(base_url=client.url, transport=httpx.MockTransport(answer))
    return client


def piece(**delta: str) -> dict:
    return {"choices": [{"index": 0, "delta": delta}]}


DONE = "data: [DONE]\n\n"


def test_a_stream_becomes_deltas_and_usage():
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    client = client_of(
        piece(role="assistant"),
        ": keep-alive\n\n",
        piece(reasoning_content="hm"),
        piece(content="é"),
        usage,
        DONE,
    )
    assert list(client.stream("m", [])) == [Delta("hm", True), Delta("é", False)]
    assert client.usage == {"prompt_tokens": 3, "completion_tokens": 2}
    assert client.requests[0]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (client_of(piece(content="a")), "broke the answer off"),
        (client_of(piece(content="a"), {"error": {"message": "the engine died"}}), "the engine died"),
        (client_of(status=400, body='{"error": {"message": "too long"}}'), "^too long$"),
        (client_of(status=502, body="<html>"), "the server answered 502: <html>"),
        (client_of(status=502, body="[]"), r"the server answered 502: \[\]"),
    ],
)
def test_what_goes_wrong_is_said(client, message):
    with pytest.raises(ServerError, match=message):
        list(client.stream("m", []))


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(ServerError, match=r"no server answers at http://127\.0\.0\.1:1;"):
        ChatClient("http://127.0.0.1:1/v1").model_name()


def chat_with(client: ChatClient, **options: object) -> Chat:
    return Chat(Options(**options), client, Console(file=io.StringIO()))


def test_a_conversation_grows_and_is_reset():
    chat = chat_with(client_of(piece(content="Hi"), DONE), system="Be brief.", temperature=0.5, max_tokens=9)
    chat.answer("hello")
    chat.answer("again")
    first, second = chat.client.requests
    assert (first["temperature"], first["max_tokens"]) == (0.5, 9)
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    chat.command("/reset")
    assert chat.messages == [{"role": "system", "content": "Be brief."}]


def test_an_unanswered_message_is_forgotten():
    chat = chat_with(client_of(status=400, body='{"error": {"message": "too long"}}'))
    chat.answer("hello")
    assert chat.messages == []
    assert "too long" in chat.console.file.getvalue()


def test_a_stopped_answer_keeps_what_was_shown(monkeypatch):
    def stopped(*arguments: object, **fields: object) -> Iterator[Delta]:
        yield Delta("Once ", False)
        raise KeyboardInterrupt

    chat = chat_with(client_of())
    monkeypatch.setattr(chat.client, "stream", stopped)
    chat.answer("tell")
    assert chat.messages[-1] == {"role": "assistant", "content": "Once "}


def test_unknown_commands_are_named():
    chat = chat_with(client_of())
    chat.command("/rset now")
    assert "/rset is no command" in chat.console.file.getvalue()


SCRIPT = [["Hel", "lo there."], ["Once ", {"sleep": 60}, "never"], ["Again."]]


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
    return f"scripted:{path}"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.slow
def test_a_conversation_in_a_terminal(script, tmp_path):
    from helpers.terminal import CTRL_C, CTRL_D, Terminal

    line = [sys.executable, "-m", "strata", "chat", "--model", script]
    with Terminal(line, tmp_path, clean_environment()) as terminal:
        terminal.wait_for("/help lists the commands", timeout=60)
        terminal.wait_for(">")
        terminal.type("hi\r")
        terminal.wait_for(r"Hello there\.")
        terminal.wait_for(">")
        terminal.type("tell me\r")
        terminal.wait_for("Once ")
        terminal.type(CTRL_C)  # stops the answer, not the program
        terminal.wait_for("stopped", timeout=5)
        terminal.wait_for(">")
        terminal.type("once more\r")
        terminal.wait_for(r"Again\.")
        terminal.wait_for(">")
        terminal.type(CTRL_C)  # at the prompt: says how to leave
        terminal.wait_for("/exit leaves")
        terminal.wait_for(">")
        terminal.type("/reset\r")
        terminal.wait_for("a new conversation")
        terminal.wait_for(">")
        terminal.type(CTRL_D)
        assert terminal.wait_exit() == 0
    assert "Traceback" not in terminal.screen


@pytest.mark.slow
def test_a_conversation_through_a_pipe(run_strata, script):
    import subprocess

    answer = subprocess.run(
        [sys.executable, "-m", "strata", "chat", "--model", script],
        input="hi\n/exit\n",
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(),
    )
    assert (answer.returncode, answer.stdout) == (0, "Hello there.\n"), answer.stderr


def test_a_model_that_does_not_load_is_said_in_one_line(run_strata):
    answer = run_strata("chat", "--model", "/none/model.gguf")
    assert answer.returncode == 1
    assert answer.stderr.startswith("strata: ") and "/none/model.gguf" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_url_without_a_server_is_said_in_one_line(run_strata):
    answer = run_strata("chat", "--url", "http://127.0.0.1:1")
    assert answer.returncode == 1
    assert answer.stderr == "strata: no server answers at http://127.0.0.1:1; `strata serve` starts one\n"
