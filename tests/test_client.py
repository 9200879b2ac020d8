"""The terminal chat's view of a server: streams, calls, and what goes wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.client import ChatClient, Delta, ServerError, lines
from tests.helpers.chat_server import DONE, END, call, client_of, piece


def test_a_stream_becomes_deltas_and_a_reply():
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    client = client_of(
        *(piece(role="assistant"), ": keep-alive\n\n", piece(reasoning_content="hm"), piece(content="é")),
        *(call(0, name="f", arguments=""), call(0, arguments='{"a'), call(0, arguments='": 1}')),
        *(call(1, name="g", arguments="{}"), END, usage, DONE),
    )
    assert list(client.stream("m", [])) == [
        *(Delta("", "silence"), Delta("hm", "thinking"), Delta("é")),
        *(Delta("f", "call"), Delta('{"a', "call"), Delta('": 1}', "call")),
        *(Delta("g", "call", 1), Delta("{}", "call", 1)),
    ]
    assert client.reply.usage == {"prompt_tokens": 3, "completion_tokens": 2}
    message = client.reply.message()
    assert (message["content"], message["reasoning_content"]) == ("é", "hm")
    assert [c["function"] for c in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert client.requests[0]["stream_options"] == {"include_usage": True}


def test_a_call_that_is_not_whole_stays_out_of_the_history():
    client = client_of(piece(content="I call"), call(0, name="f", arguments='{"a'), DONE)
    list(client.stream("m", []))
    assert client.reply.message() == {"role": "assistant", "content": "I call"}


@given(st.text(), st.integers(1, 5))
def test_lines_survive_any_cut(text: str, size: int) -> None:
    """CASES 45; and characters that some take for the end of a line, as U+2028, are none."""
    text = text.replace("\n", "").replace("\r", "").encode("utf-8", "replace").decode()
    stream = f"data: {text}\r\n\ndata: {text}\n\n".encode()
    parts = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert list(lines(parts)) == [f"data: {text}", "", f"data: {text}", ""]


def test_half_a_character_is_replaced():
    client = client_of(piece(content="a\ud83d"), DONE)
    assert list(client.stream("m", [])) == [Delta("a\N{REPLACEMENT CHARACTER}")]


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (client_of(piece(content="a")), "broke the answer off"),
        (client_of("data: {\n\n"), "not JSON"),
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
        ChatClient("http://127.0.0.1:1/v1").model()
