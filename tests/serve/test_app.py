"""Requests that need no engine: what is refused, how, and who may ask."""

import asyncio
import re
import subprocess
import sys

import httpx
import msgspec
import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from strata.engine.messages import Generate, decode_request, encode
from strata.errors import RequestError
from strata.options import Options
from strata.serve.app import create_app
from strata.serve.body import BODY_LIMIT, body_as
from strata.serve.chat import Thinking
from strata.serve.chat_schemas import ChatRequest
from strata.serve.errors import from_validation
from strata.serve.llamacpp import TokenizeRequest
from strata.serve.schemas import CompletionRequest, GenerationRequest

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOL, OTHER = ({"type": "function", "function": {"name": name}} for name in ("now", "other"))
NAMED = {"type": "function", "function": {"name": "now"}}


def send(method: str, path: str, *, app_options: dict | None = None, **arguments) -> httpx.Response:
    """One request to an application whose engine was never started."""
    app = create_app(Options(model="scripted:m.jsonl", **(app_options or {})))

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **arguments)

    return asyncio.run(run())


def posted(data: bytes) -> Request:
    """A request with this body."""

    async def receive() -> dict:
        return {"type": "http.request", "body": data, "more_body": False}

    headers = [(b"content-type", b"application/json")]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


def refusal(model: type, body: dict) -> RequestError:
    with pytest.raises((RequestError, ValidationError)) as caught:
        model.model_validate(body)
    return caught.value if isinstance(caught.value, RequestError) else from_validation(caught.value)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"messages": None}, "messages", "is missing"),
        ({"messages": '[{"role": "user"}]'}, "messages", "valid list"),  # CASES 460
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is missing"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'system'"),
        ({"messages": [*HELLO["messages"], {"role": "user", "content": 7}]}, "messages[1].content", "string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
            "string",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
            "part 0 is of type 'image_url'",
        ),
        ({"model": 5}, "model", "string"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
        ({"max_tokens": -2}, "max_tokens", "-1"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "send one"),
        ({"stop": [1]}, "stop", "list of strings"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream is true"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "'x' is not a token id"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]", "100"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs is true"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty", "send one"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "is missing"),
        ({"tools": "x"}, "tools", "valid list"),  # CASES 592
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools", "tool 1 is of type 'web_search'"),
        ({"tools": [TOOL, TOOL]}, "tools", "two functions are named 'now'"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
        ({"tool_choice": "required"}, "tool_choice", "no tools are given"),
        ({"tool_choice": "any"}, "tool_choice", "'required'"),
        ({"tool_choice": NAMED, "tools": [OTHER]}, "tool_choice", "no function is named 'now'"),
        ({"functions": [{"name": "f"}]}, "functions", "not served here"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 129}, "n", "128"),
        ({"verbosity": "low"}, "verbosity", "not served here"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "'low'"),
        ({"thinking": {"type": "maybe"}}, "thinking.type", "'enabled'"),
        ({"preserve_thinking": "yes"}, "preserve_thinking", "boolean"),
        ({"reasoning_budget_tokens": -2}, "reasoning_budget_tokens", "-1"),
        ({"mirostat": 2}, "mirostat", "unknown field"),
    ],
)
def test_refused_chat_fields_are_named(change: dict, field: str, words: str) -> None:
    error = refusal(ChatRequest, HELLO | change)
    assert error.field == field
    assert str(error).startswith(f"{field}: ")
    assert words in str(error)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["x"] * 257}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_refused_completion_fields_are_named(change: dict, field: str) -> None:
    assert refusal(CompletionRequest, {"model": "m", "prompt": "x"} | change).field == field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
HUGE = st.sampled_from([2**31, 2**63, 2**64, 10**30, -(10**30), [2**64], {"9" * 30: 1}, {"9" * 5000: 1}])


@given(data=st.data(), model=st.sampled_from([ChatRequest, CompletionRequest]))
def test_any_field_is_taken_or_refused_by_name(data: st.DataObject, model: type[GenerationRequest]) -> None:
    """Whatever a client sends becomes a message for the engine or a refusal, never another error."""
    name = data.draw(st.sampled_from([*model.model_fields, "functions", "best_of", "other"]))
    value = data.draw(JSON | HUGE)
    good = HELLO if model is ChatRequest else {"model": "m", "prompt": "x"}
    try:
        request = model.model_validate(good | {name: value})
    except RequestError as error:
        assert error.field == name
    except ValidationError as error:
        refused = from_validation(error)
        assert re.split(r"[.\[]", refused.field)[0] == name
    else:
        if model is ChatRequest:
            request.turn()
        biases = {i: bias for i, bias in request.logit_bias.items() if i < 2**31}  # checked when it is known
        sampling = msgspec.structs.replace(request.sampling(frozenset({1})), logit_bias=biases)
        assert decode_request(encode(Generate("id", [1], sampling))).sampling == sampling


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking()),
        ({"reasoning_effort": "none"}, Thinking(effort="none")),
        ({"reasoning_effort": "high", "reasoning": {"effort": "high"}}, Thinking(effort="high")),
        ({"reasoning": {"max_tokens": 5}}, Thinking(budget=5)),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, Thinking(enabled=True, budget=7)),
        ({"thinking": {"type": "disabled"}, "enable_thinking": False}, Thinking(enabled=False)),
        ({"thinking_budget": 9, "reasoning_budget_tokens": 9}, Thinking(budget=9)),
        ({"thinking_token_budget": -1}, Thinking()),
    ],
)
def test_thinking_in_everybodys_words(fields: dict, thinking: Thinking) -> None:
    assert ChatRequest.model_validate(HELLO | fields).turn().thinking == thinking


def test_thinking_asked_for_in_two_ways_is_refused() -> None:
    body = ChatRequest.model_validate(HELLO | {"thinking_budget": 1, "thinking_token_budget": 2})
    with pytest.raises(RequestError, match="send one") as caught:
        body.turn()
    assert caught.value.field == "thinking_budget"


ALLOWED = {"mode": "required", "tools": [{"type": "function", "function": {"name": "other"}}]}


@pytest.mark.parametrize(
    ("choice", "shown", "forced"),
    [
        ("auto", ["now", "other"], ()),
        ("none", [], ()),
        ("required", ["now", "other"], ["now", "other"]),
        (NAMED, ["now", "other"], ["now"]),
        ({"type": "allowed_tools", "allowed_tools": ALLOWED}, ["other"], ["other"]),
        ({"type": "allowed_tools", "allowed_tools": ALLOWED | {"mode": "auto"}}, ["other"], ()),
    ],
)
def test_tool_choice(choice: object, shown: list[str], forced: list[str]) -> None:
    turn = ChatRequest.model_validate(HELLO | {"tools": [TOOL, OTHER], "tool_choice": choice}).turn()
    assert [tool["function"]["name"] for tool in turn.tools] == shown
    assert turn.forced == forced


def test_templates_see_tools_as_models_know_them() -> None:
    given = {"name": "f", "description": "d", "parameters": {"b": 1, "a": 2}, "strict": False}
    (tool,) = (
        ChatRequest.model_validate(HELLO | {"tools": [{"type": "function", "function": given}]}).turn().tools
    )
    assert tool == {"type": "function", "function": {k: v for k, v in given.items() if k != "strict"}}


def test_null_is_the_default() -> None:
    fields = [name for name in ChatRequest.model_fields if name not in ("model", "messages")]
    assert ChatRequest.model_validate(HELLO | dict.fromkeys(fields)) == ChatRequest.model_validate(HELLO)


def test_what_the_openai_package_adds_to_answers_is_no_part_of_the_prompt() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    message = {"role": "assistant", "content": "{}", "tool_calls": [{"id": "1", "type": "function"}]}
    sent, added = message | {"parsed": {"a": 1}}, function | {"parsed_arguments": {"a": 1}}
    sent["tool_calls"] = [message["tool_calls"][0] | {"function": added}]
    message["tool_calls"] = [message["tool_calls"][0] | {"function": function}]
    assert ChatRequest.model_validate(HELLO | {"messages": [sent]}).turn().messages == [message]


def test_null_is_absent_at_every_depth() -> None:
    """What clients are answered they send back, with a null for whatever else their library knows."""
    message = {"role": "assistant", "content": "a", "new": None}
    request = ChatRequest.model_validate(
        HELLO | {"messages": [message], "stream": True, "stream_options": {}}
    )
    assert request.turn().messages == [{"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    "body", [HELLO | {"x" * 100_000: 1}, HELLO | {"tool_choice": NAMED | {"y" * 100_000: 1}}]
)
def test_errors_repeat_no_more_than_a_little(body: dict) -> None:
    error = send("POST", CHAT, json=body).json()["error"]
    assert max(len(error["message"]), len(error["param"])) < 3000


def test_half_a_character_costs_no_conversation() -> None:
    body = b'{"content": "a \\ud83d b \\ud83d\\ude00"}'
    read = asyncio.run(body_as(TokenizeRequest)(posted(body)))
    assert read.content == "a \ufffd b \U0001f600"


def test_bad_field_is_400_in_the_envelope() -> None:
    response = send("POST", CHAT, json=HELLO | {"top_p": 2})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"] == "top_p: input should be less than or equal to 1"
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "top_p", None)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b'"x"', b"\xff", b'{"a": NaN}', b'{"\\ud800": }', b"[" * 100_000]
)
def test_malformed_json_is_400(data: bytes) -> None:
    response = send("POST", CHAT, content=data, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_pages_of_other_sites_cannot_post(kind: str | None) -> None:
    """CASES 65: what a browser sends without asking first is refused; there are no CORS headers."""
    response = send("POST", CHAT, content=b"{}", headers={"Content-Type": kind} if kind else {})
    assert response.status_code == 415
    assert "Content-Type: application/json" in response.json()["error"]["message"]
    answer = send("OPTIONS", CHAT, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_a_compressed_body_is_refused_by_name() -> None:
    headers = {"content-type": "application/json", "content-encoding": "zstd"}
    response = send("POST", CHAT, content=b"(\xb5/\xfd", headers=headers)
    assert response.status_code == 415
    assert "Content-Encoding: zstd" in response.json()["error"]["message"]


def test_too_large_a_body() -> None:
    response = send(
        "POST", CHAT, content=b" " * (BODY_LIMIT + 1), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 413
    assert str(BODY_LIMIT) in response.json()["error"]["message"]


def test_unknown_path_and_wrong_method() -> None:
    """CASES 66."""
    response = send("GET", "/v1/nothing")
    assert response.status_code == 404
    assert "/v1/nothing" in response.json()["error"]["message"]
    response = send("GET", CHAT)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert "GET" in response.json()["error"]["message"]


def test_query_string_does_not_matter() -> None:
    """CASES 55 of the original: some clients add `?beta=true`."""
    assert send("POST", f"{CHAT}?beta=true", json={}).status_code == 400


def test_unexpected_failure_is_500_in_the_envelope() -> None:
    """The engine was never started here, which the code excludes; the text of the failure stays inside."""
    response = send("POST", CHAT, json=HELLO)
    assert response.status_code == 500
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["type"] == "server_error"
    assert response.json()["error"]["message"] == "the server failed on this request: AssertionError"


def test_health_while_loading_and_index() -> None:
    response = send("GET", "/health")
    assert (response.status_code, response.json()["status"]) == (503, "loading")
    assert "POST /v1/chat/completions" in send("GET", "/").json()["endpoints"]


def test_the_server_starts_without_torch() -> None:
    """It is most of the time that a start takes, and the server process computes nothing."""
    check = "import sys, strata.serve.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_a_tool_s_picture_is_a_note() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
    result = {"role": "tool", "tool_call_id": "c", "content": [picture]}
    body = ChatRequest.model_validate(HELLO | {"messages": [*HELLO["messages"], result]})
    assert body.turn().messages[1]["content"][0]["text"].startswith("[image_url left out")


@pytest.mark.parametrize(("aliases", "known"), [("gpt-5, o3", False), ("gpt-5,*", True)])
def test_further_names(aliases: str, known: bool) -> None:
    """CASES 76: a client that insists on a name of its own gets an answer."""
    listed = send("GET", "/v1/models", app_options={"aliases": aliases}).json()["data"][0]["aliases"]
    assert "gpt-5" in listed and "*" not in listed
    assert send("GET", "/v1/models/gpt-5", app_options={"aliases": aliases}).status_code == 200
    other = send("GET", "/v1/models/claude-opus", app_options={"aliases": aliases})
    assert (other.status_code == 200) == known
