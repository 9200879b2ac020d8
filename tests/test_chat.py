"""The terminal chat: typed messages, streamed answers, Ctrl+C."""

import io
import json
import sys
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from strata.cli import main
from strata.client import ChatClient, Delta, Reply, ServerError
from strata.commands.chat import Chat, CommandError, _piped_message, run
from strata.errors import UsageError
from strata.options import Options
from strata.terminal import harmless, read_message, show_answer
from tests.conftest import clean_environment
from tests.helpers.chat_server import DONE, END, call, client_of, piece


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


PIECES = [
    Delta("hm\x1b[2J", "thinking"),
    Delta("[bold]Yes"),
    Delta("\t:smile:\x07 " + "long " * 20),
    Delta("weather", "call"),
    Delta('{"city": ', "call"),
    Delta('"Köln"}', "call"),
    Delta("now", "call", 1),
]


def shown(asides: bool = False, **console: object) -> tuple[str, str]:
    """What an answer looks like, and what is shown beside it."""
    places = [Console(file=io.StringIO(), width=40, **console) for _ in range(2)]
    show_answer(places[0], PIECES, places[1] if asides else None)
    return places[0].file.getvalue(), places[1].file.getvalue()


def test_an_answer_is_shown_as_it_is() -> None:
    """Tabs stay tabs and lines stay whole, so that code can be copied; a call says that it is one."""
    answer = "[bold]Yes\t:smile: " + "long " * 20
    calls = 'call weather {"city": "Köln"}\n\ncall now \n'
    assert shown()[0] == f"thinking\nhm[2J\n\n{answer}\n\n{calls}"
    assert shown(asides=True) == (f"{answer}\n", f"thinking\nhm[2J\n{calls}")


def test_a_terminal_shows_how_far_a_silent_server_is_until_the_answer_begins() -> None:
    pieces = [
        Delta("", "silence"),
        Delta("queued,\x1b 2 before it", "silence"),
        Delta("Yes"),
        Delta("9", "silence"),
    ]
    for is_terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, _environ={"TERM": "xterm"})
        show_answer(console, pieces)
        text = console.file.getvalue()
        assert ("queued, 2 before it" in text) == is_terminal
        assert text.endswith("Yes\n")  # behind the last piece nothing is drawn


def test_tools_are_read_before_a_model_is_loaded(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("strata.commands.chat._piped_message", lambda: None)
    monkeypatch.setattr("strata.commands.chat.LocalServer", lambda options: pytest.fail("it was loaded"))
    with pytest.raises(CommandError, match=r"none\.json: cannot be read"):
        run(Options(tools=tmp_path / "none.json"))


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_left_out_where_they_are_not_wanted(variables: dict, coloured: bool) -> None:
    text, _ = shown(force_terminal=True, _environ={"TERM": "xterm"} | variables)
    assert ("\x1b[36m" in text) == coloured
    assert "\x1b[2m" in text  # dim is no colour
    dumb, _ = shown(force_terminal=True, _environ={"TERM": "dumb"})
    assert "\x1b" not in dumb


def chat_with(client: ChatClient, *results: str, **options: object) -> Chat:
    chat = Chat(Options(**options), client, Console(file=io.StringIO()))
    chat._read_line = typed(*results)
    return chat


def roles(messages: list[dict]) -> list[str]:
    return [message["role"] for message in messages]


def test_a_conversation_grows_and_is_cleared():
    sampling = {"temperature": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7, "max_tokens": 9}
    chat = chat_with(client_of(piece(content="Hi"), DONE), system="Be brief.", think="off", **sampling)
    chat.answer("hello")
    chat.answer("again")
    first, second = chat.client.requests
    assert {name: first[name] for name in sampling} == sampling
    assert first["reasoning_effort"] == "none"
    assert roles(second["messages"]) == ["system", "user", "assistant", "user"]
    chat.command("/clear")
    assert chat.messages == [{"role": "system", "content": "Be brief."}]


def test_the_system_message_and_thinking_can_change():
    chat = chat_with(client_of(piece(content="Hi"), DONE))
    chat.answer("hello")
    chat.command("/system Be long.")
    chat.command("/think high")
    chat.answer("again")
    request = chat.client.requests[-1]
    assert roles(request["messages"]) == ["system", "user", "assistant", "user"]
    assert request["reasoning_effort"] == "high"
    chat.command("/system")
    assert "Be long." in chat.console.file.getvalue()
    chat.command('/system ""')
    chat.command("/think")
    chat.answer("and now")
    request = chat.client.requests[-1]
    assert "system" not in roles(request["messages"]) and "reasoning_effort" not in request


def test_the_last_message_is_answered_again():
    chat = chat_with(client_of(piece(content="Hi"), DONE))
    chat.answer("one")
    chat.answer("two")
    chat.command("/retry")
    first, *_, last = chat.client.requests
    assert last["messages"] == [
        *first["messages"],
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "two"},
    ]
    assert roles(chat.messages) == ["user", "assistant"] * 2


def test_an_answer_stays_where_no_other_comes():
    chat = chat_with(client_of(piece(content="Hi"), DONE))
    chat.answer("one")
    before = list(chat.messages)
    chat.client = client_of(status=400, body='{"error": {"message": "too long"}}')
    with pytest.raises(ServerError, match="too long"):
        chat.command("/retry")
    assert chat.messages == before


def test_odd_conversations_are_loaded_or_refused(tmp_path):
    path, chat = tmp_path / "talk.json", chat_with(client_of())
    path.write_text("[" * 100_000)
    with pytest.raises(CommandError, match="is not JSON"):
        chat.command(f"/load {path}")
    path.write_text('[{"role": "system"}]')
    chat.command(f"/load {path}")
    chat.command("/system")


@pytest.mark.parametrize("body", ["hello", "[]", '{"data": [7]}', '{"data": [{"name": "m"}]}'])
def test_what_is_no_openai_server_is_named(body: str):
    client = ChatClient("http://server")
    answer = httpx.Response(200, text=body)
    client._http = httpx.Client(base_url=client.url, transport=httpx.MockTransport(lambda _: answer))
    with pytest.raises(ServerError, match="answers, but not as an OpenAI server does"):
        client.model()


def test_a_conversation_is_saved_and_loaded(tmp_path):
    chat, path = chat_with(client_of(piece(content="Hé"), DONE)), tmp_path / "talk.json"
    chat.answer("hello")
    chat.command(f"/save {path}")
    other = chat_with(client_of())
    other.command(f"/load {path}")
    assert other.messages == chat.messages == json.loads(path.read_text("utf-8"))


def test_figures_of_the_last_answer():
    timings = {"prompt_per_second": 50.0, "predicted_per_second": 12.5}
    usage = {"prompt_tokens": 30, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 20}}
    chat = chat_with(
        client_of(piece(content="Hi") | {"timings": timings}, {"choices": [], "usage": usage}, DONE)
    )
    chat.answer("hello")
    chat.command("/stats")
    shown = chat.console.file.getvalue()
    assert "30 tokens, 20 of them cached, 50.0 tokens/s" in shown and "5 tokens, 12.5 tokens/s" in shown


def test_calls_get_their_results_from_the_person():
    chat = chat_with(client_of(call(0, name="f", arguments="{}"), END, DONE), "4")
    tools = chat.fields["tools"] = [{"type": "function", "function": {"name": "f"}}]
    chat.answer("ask")  # the second call gets no result: the message and all that came of it is dropped
    first, second = chat.client.requests
    assert first["tools"] == second["tools"] == tools
    assert roles(second["messages"]) == ["user", "assistant", "tool"]
    assert second["messages"][-1]["content"] == "4"
    assert chat.messages == []


def test_what_is_piped_in_is_one_message(capsys):
    chat = chat_with(client_of(piece(reasoning_content="hm"), piece(content="Yes\n"), DONE))
    chat.once("line\nline")
    assert chat.client.requests[0]["messages"] == [{"role": "user", "content": "line\nline"}]
    assert chat.console.file.getvalue() == "Yes\n\n"
    assert capsys.readouterr().err == "thinking\nhm\n"


def piped(content: bytes) -> str | None:
    """What `chat` makes of standard input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        return _piped_message()


def test_what_is_piped_in_may_hold_broken_characters():
    assert piped(b" a\n") == "a"
    assert piped(b"a\xed\xa0\x80") == "a" + 3 * "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("content", [b"", b" \n"])
def test_a_pipe_without_a_message_is_wrong_usage(content: bytes):
    with pytest.raises(UsageError, match="nothing came in: pipe a message into"):
        piped(content)


def test_without_standard_input_there_is_no_message(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # closed by whoever started us
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 2


def test_halves_of_characters_are_replaced_before_they_are_sent_saved_or_shown(tmp_path):
    """From a command line that is no UTF-8, a terminal, or a conversation of others."""
    chat = chat_with(client_of(piece(content="Hi"), DONE), system="a\udced")
    chat.answer("b\ud800")
    sent = chat.client.requests[0]["messages"]
    assert [m["content"] for m in sent] == ["a\N{REPLACEMENT CHARACTER}", "b\N{REPLACEMENT CHARACTER}"]
    chat.command(f"/save {tmp_path / 'talk.json'}")
    assert json.loads((tmp_path / "talk.json").read_text("utf-8"))[:2] == sent
    chat.console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    chat.command("/system")


def test_an_unanswered_message_is_forgotten():
    chat = chat_with(client_of(status=400, body='{"error": {"message": "too long"}}'))
    with pytest.raises(ServerError, match="too long"):
        chat.answer("hello")
    assert chat.messages == []


def test_a_stopped_answer_keeps_what_was_shown(monkeypatch):
    def stopped(*arguments: object, **fields: object) -> Iterator[Delta]:
        chat.client.reply = Reply("Once ")
        yield Delta("Once ")
        raise KeyboardInterrupt

    chat = chat_with(client_of())
    monkeypatch.setattr(chat.client, "stream", stopped)
    chat.answer("tell")
    assert chat.messages[-1] == {"role": "assistant", "content": "Once "}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/rset now", "/rset is no command"),
        ("/think much", "off, low, medium, high"),
        ("/retry", "nothing was asked"),
        ("/stats", "no answer"),
        ("/save", "is missing"),
        ("/save /none/there", "cannot be written"),
        ("/load /none/there", "cannot be read"),
        ("/load", "is missing"),
        ("/save ~nobody-of-this-name/x", "~nobody-of-this-name"),
    ],
)
def test_what_a_command_lacks_is_said(command: str, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        chat_with(client_of()).command(command)


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
        terminal.type("/clear\r")
        terminal.wait_for("a new conversation")
        terminal.wait_for(">")
        terminal.type(CTRL_D)
        assert terminal.wait_exit() == 0
    assert "Traceback" not in terminal.screen


@pytest.mark.slow
def test_a_conversation_through_a_pipe(run_strata, script):
    answer = run_strata("chat", "--model", script, piped="hi\nthere\n")
    assert (answer.returncode, answer.stdout) == (0, "Hello there.\n"), answer.stderr


def test_a_model_that_does_not_load_is_said_in_one_line(run_strata):
    answer = run_strata("chat", "--model", "/none/model.gguf", piped="hi")
    assert answer.returncode == 1
    assert answer.stderr.startswith("strata: ") and "/none/model.gguf" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_url_without_a_server_is_said_in_one_line(run_strata):
    answer = run_strata("chat", "--url", "http://127.0.0.1:1", piped="hi")
    assert answer.returncode == 1
    assert answer.stderr == "strata: no server answers at http://127.0.0.1:1; `strata serve` starts one\n"
