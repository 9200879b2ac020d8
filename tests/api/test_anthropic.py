"""Anthropic's messages through the official client: blocks, events in their order, tools, errors, counts."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from api.conftest import LINES, SEEDS
from helpers.api_server import ApiServer
from pydantic import TypeAdapter

ASK = [{"role": "user", "content": "How is the weather?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"name": "weather", "description": "Tells it", "input_schema": CITY}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
EVENT = TypeAdapter(RawMessageStreamEvent)


@pytest.fixture(scope="module")
def claude(server: ApiServer) -> Iterator[anthropic.Anthropic]:
    options = {"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 60}
    with anthropic.Anthropic(**options) as client:
        yield client


def fields_of(line: str, **fields: Any) -> dict[str, Any]:
    base = {"model": "parrot", "max_tokens": 4000, "messages": ASK, "tools": [WEATHER, NOW]}
    return base | {"extra_body": {"seed": SEEDS[line]}} | fields


def ask(claude: anthropic.Anthropic, line: str, **fields: Any) -> Message:
    return claude.messages.create(**fields_of(line, **fields))


def raw_events(server: ApiServer, line: str, **fields: Any) -> list[dict]:
    """The events as they come: each has its name and its data, which the package's types must take."""
    body = fields_of(line, stream=True, **fields)
    body |= body.pop("extra_body")
    with httpx.stream("POST", f"{server.url}/v1/messages?beta=true", json=body, trust_env=False) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return events_of(response.read().decode())


def events_of(stream: str) -> list[dict]:
    """The checked events of a stream."""
    events = []
    for frame in stream.strip().split("\n\n"):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            EVENT.validate_python(event)
        events.append(event)
    return events


def blocks(message: Message) -> list[tuple]:
    shown = {
        "text": lambda block: block.text,
        "thinking": lambda block: block.thinking,
        "tool_use": lambda block: (block.name, block.input),
    }
    return [(block.type, shown[block.type](block)) for block in message.content]


CASES = {
    "call": (
        [
            ("thinking", "I look."),
            ("text", "Let me see."),
            ("tool_use", ("weather", {"city": "Köln", "days": 3})),
        ],
        "tool_use",
    ),
    "two calls": ([("tool_use", ("now", {}))] * 2, "tool_use"),
    "hello": ([("text", "Hello, world!")], "end_turn"),
    "thinking": ([("thinking", "Let me see."), ("text", "It is 4.")], "end_turn"),
}


@pytest.mark.parametrize("line", CASES)
def test_stream_and_whole_answer_are_equal(claude: anthropic.Anthropic, line: str) -> None:
    whole = ask(claude, line)
    with claude.messages.stream(**fields_of(line)) as stream:
        streamed = stream.get_final_message()
    assert (blocks(whole), whole.stop_reason) == (blocks(streamed), streamed.stop_reason) == CASES[line]
    assert whole.usage.output_tokens == streamed.usage.output_tokens > 0
    told = [m.usage.input_tokens + m.usage.cache_read_input_tokens for m in (whole, streamed)]
    assert told[0] == told[1]
    assert streamed.usage.cache_read_input_tokens > 0  # the same prompt a second time
    assert whole.usage.output_tokens_details.thinking_tokens <= whole.usage.output_tokens


def test_events_come_in_their_order(server: ApiServer) -> None:
    events = raw_events(server, "call")
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    inside = [event for event in events[2:-2] if event["type"] != "ping"]
    order = [(e["type"].removeprefix("content_block_"), e["index"], delta_kind(e)) for e in inside]
    assert list(dict.fromkeys(order)) == [
        ("start", 0, "thinking"),
        ("delta", 0, "thinking_delta"),
        ("delta", 0, "signature_delta"),
        ("stop", 0, None),
        ("start", 1, "text"),
        ("delta", 1, "text_delta"),
        ("stop", 1, None),
        ("start", 2, "tool_use"),
        ("delta", 2, "input_json_delta"),
        ("stop", 2, None),
    ]
    starts = [event["content_block"] for event in inside if event["type"] == "content_block_start"]
    assert [s.get("text", s.get("thinking", s.get("input"))) for s in starts] == ["", "", {}]


def delta_kind(event: dict) -> str | None:
    return (event.get("delta") or event.get("content_block") or {}).get("type")


def test_arguments_arrive_as_they_are_written(server: ApiServer) -> None:
    deltas = [event["delta"] for event in raw_events(server, "call") if "delta" in event]
    parts = [delta["partial_json"] for delta in deltas if delta.get("type") == "input_json_delta"]
    assert parts == ['{"city": ', '"Kö', "ln", '", "days": ', "3}"]


def test_silence_is_filled_with_pings(server: ApiServer) -> None:
    """CASES 61: `event: ping`, no comment."""
    kinds = [event["type"] for event in raw_events(server, "silent")]
    assert kinds.count("ping") >= 3
    assert kinds[-1] == "message_stop"


@pytest.mark.parametrize(
    ("line", "fields", "ending"),
    [
        ("stops", {"stop_sequences": ["STOP"]}, ("stop_sequence", "STOP")),
        ("stops", {"stop_sequences": [f"none {i}" for i in range(20)]}, ("end_turn", None)),  # CASES 50
        ("hello", {"max_tokens": 2}, ("max_tokens", None)),
        ("hello", {}, ("end_turn", None)),
    ],
)
def test_how_a_message_ends(claude: anthropic.Anthropic, line: str, fields: dict, ending: tuple) -> None:
    message = ask(claude, line, **fields)
    assert (message.stop_reason, message.stop_sequence) == ending


def test_call_that_is_broken_off_has_what_is_there(claude: anthropic.Anthropic) -> None:
    message = ask(claude, "call", max_tokens=len(LINES["call"]) - 7)
    assert message.stop_reason == "max_tokens"
    assert message.content[-1].name == "weather"
    assert set(message.content[-1].input) <= {"city", "days"}


@pytest.mark.parametrize(
    ("choice", "line", "calls"),
    [
        ({"type": "tool", "name": "weather"}, "rest of a call", [("weather", {"city": "Bonn"})]),
        ({"type": "any"}, "name and rest", [("now", {})]),
        ({"type": "auto", "disable_parallel_tool_use": True}, "two calls", [("now", {})]),
        ({"type": "none"}, "two calls", []),
    ],
)
def test_tool_choice(claude: anthropic.Anthropic, choice: dict, line: str, calls: list) -> None:
    message = ask(claude, line, tool_choice=choice)
    assert [shown for kind, shown in blocks(message) if kind == "tool_use"] == calls


def test_thinking_has_a_budget(claude: anthropic.Anthropic) -> None:
    """The budget ends it with the wrap-up, and the model goes on to answer."""
    message = ask(claude, "thoughts", thinking={"type": "enabled", "budget_tokens": 2})
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking.startswith("one two \n\nThat is as long as I may think.")
    assert message.content[1].text == "three four"


def test_thinking_that_is_not_shown_comes_back(claude: anthropic.Anthropic) -> None:
    hidden = {"type": "adaptive", "display": "omitted"}
    block = ask(claude, "thinking", thinking=hidden).content[0]
    assert (block.type, block.thinking) == ("thinking", "")
    shown = ask(claude, "thinking", thinking={"type": "adaptive"}).content[0]
    texts = [{"type": "text", "text": "It is 4."}]
    use = [{"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}]
    result = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]}]

    def count(first: Any) -> int:
        said = [{"role": "assistant", "content": [first.model_dump(), *texts, *use]}]
        messages = [*ASK, *said, *result]
        return claude.messages.count_tokens(model="parrot", messages=messages, tools=[NOW]).input_tokens

    assert count(block) == count(shown)


def test_count_is_that_of_the_prompt(claude: anthropic.Anthropic) -> None:
    asked = {"model": "parrot", "messages": ASK, "tools": [WEATHER], "system": "Be brief."}
    usage = ask(claude, "hello", tools=[WEATHER], system="Be brief.").usage
    told = usage.input_tokens + usage.cache_read_input_tokens
    assert claude.messages.count_tokens(**asked).input_tokens == told
    assert claude.messages.count_tokens(model="parrot", messages=ASK).input_tokens < told


def test_errors_are_anthropic_s(claude: anthropic.Anthropic, server: ApiServer) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        ask(claude, "hello", model="claude-opus")
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="block 0 is of type 'image'") as picture:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
        ask(claude, "hello", messages=[{"role": "user", "content": [image]}])
    assert picture.value.body["type"] == "error"
    assert picture.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(claude, "hello", messages=[{"role": "user", "content": "long " * 60_000}])
    path = f"{server.url}/v1/messages/batches"
    assert httpx.get(path, trust_env=False).json()["error"]["type"] == "not_found_error"


def test_models_are_listed(claude: anthropic.Anthropic) -> None:
    (model,) = claude.models.list()
    assert (model.id, model.type, model.display_name) == ("parrot", "model", "parrot")
    assert claude.models.retrieve("parrot").created_at == model.created_at


def test_error_in_a_stream(server: ApiServer) -> None:
    events = raw_events(server, "crash")
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    server.wait_for(lambda health: health["status"] != "ok")
    raw_events(server, "hello")  # the next request starts the engine again
