"""OpenAI's Responses through the official client: items, events in their order, storage, background."""

import json
import time
from typing import Any

import httpx
import openai
import pytest
from api.conftest import SEEDS
from helpers.api_server import ApiServer
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"type": "function", "name": "weather", "parameters": CITY, "strict": False}
NOW = {"type": "function", "name": "now", "parameters": None, "strict": False}
SEARCH = {"type": "function", "name": "search", "parameters": CITY, "strict": False}
DOCS = {"type": "namespace", "name": "mcp__docs__", "description": "Documents", "tools": [SEARCH]}
PATCH = {"type": "custom", "name": "apply_patch"}
TOOLS = [WEATHER, NOW, DOCS, PATCH, {"type": "web_search"}]
EVENT = TypeAdapter(ResponseStreamEvent)


def fields_of(line: str, **fields: Any) -> dict[str, Any]:
    base = {"model": "parrot", "input": "How is the weather?", "tools": TOOLS, "store": False}
    return base | {"extra_body": {"seed": SEEDS[line]}} | fields


def ask(client: openai.OpenAI, line: str, **fields: Any) -> Response:
    answer = client.responses.create(**fields_of(line, **fields))
    return Response.model_validate(answer.model_dump())


def raw_events(server: ApiServer, line: str, **fields: Any) -> list[dict]:
    """The events as they come: each has its name, its number and data that the package's types take."""
    body = fields_of(line, stream=True, **fields)
    return checked_events(server, body | body.pop("extra_body"))


def checked_events(server: ApiServer, body: dict) -> list[dict]:
    answer = httpx.post(f"{server.url}/v1/responses", json=body, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    events = []
    frames = answer.text.strip().split("\n\n")
    for frame in (frame for frame in frames if not frame.startswith(":")):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        EVENT.validate_python(event)
        events.append(event)
    return events


def items(output: list[dict]) -> list[tuple]:
    shown = {
        "message": lambda item: "".join(part["text"] for part in item["content"]),
        "reasoning": lambda item: "".join(p["text"] for p in [*item["summary"], *item.get("content", [])]),
        "function_call": lambda item: (item.get("namespace"), item["name"], item["arguments"]),
        "custom_tool_call": lambda item: (item["name"], item["input"]),
    }
    return [(item["type"], shown[item["type"]](item)) for item in output]


CASES = {
    "call": [
        ("reasoning", "I look."),
        ("message", "Let me see."),
        ("function_call", (None, "weather", '{"city": "Köln", "days": 3}')),
    ],
    "two calls": [("function_call", (None, "now", "{}"))] * 2,
    "patch": [("custom_tool_call", ("apply_patch", '*** Begin Patch\n+say "Köln\\"\n*** End Patch'))],
    "search": [("function_call", ("mcp__docs__", "search", '{"query": "b"}'))],
    "hello": [("message", "Hello, world!")],
}


@pytest.mark.parametrize("line", CASES)
def test_stream_and_whole_answer_are_equal(client: openai.OpenAI, server: ApiServer, line: str) -> None:
    whole = ask(client, line)
    with client.responses.stream(**fields_of(line)) as stream:
        streamed = stream.get_final_response()
    assert items(whole.model_dump(exclude_none=True)["output"]) == CASES[line]
    assert items(streamed.model_dump(exclude_none=True)["output"]) == CASES[line]
    assert whole.status == streamed.status == "completed"
    assert whole.usage.output_tokens == streamed.usage.output_tokens > 0
    assert streamed.usage.input_tokens_details.cached_tokens > 0
    assert [tool.type for tool in whole.tools] == ["function", "function", "namespace", "custom"]


def test_events_come_in_their_order(server: ApiServer) -> None:
    """And their deltas make what the items hold in the end."""
    events = raw_events(server, "call")
    order = [(event["type"].removeprefix("response."), event.get("output_index")) for event in events]
    assert list(dict.fromkeys(order)) == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("completed", None),
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert events[-1]["response"]["output"] == done
    assert {item["status"] for item in done} == {"completed"}
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert (added[0]["content"], added[1]["content"], added[2]["arguments"]) == ([], [], "")
    deltas = [
        "".join(e["delta"] for e in events if "delta" in e and e["output_index"] == i) for i in range(3)
    ]
    assert deltas == ["I look.", "Let me see.", '{"city": "Köln", "days": 3}']


def test_input_of_a_custom_tool_streams(server: ApiServer) -> None:
    events = raw_events(server, "patch")
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == CASES["patch"][0][1][1]


def test_thinking_as_summary_and_sealed(client: openai.OpenAI, server: ApiServer) -> None:
    """A client that stores nothing sends back what it was given, and the model has its thinking again."""
    asked = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    kinds = [event["type"] for event in raw_events(server, "call", **asked)]
    assert list(dict.fromkeys(kinds))[2:8] == [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
    ]
    output = ask(client, "call", **asked).model_dump(exclude_none=True)["output"]
    plain = ask(client, "call").model_dump(exclude_none=True)["output"]
    sealed = output[0] | {"summary": []}
    sizes = []
    for first in (output[0], sealed, plain[0]):
        given = [
            *output[1:],
            {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "5"},
        ]
        sizes.append(ask(client, "hello", input=[first, *given]).usage.input_tokens)
    without = ask(client, "hello", input=given).usage.input_tokens
    assert sizes[0] == sizes[1] == sizes[2] > without


@pytest.mark.parametrize(
    ("choice", "line", "calls"),
    [
        ({"type": "function", "name": "weather"}, "rest of a call", ["weather"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [NOW]}, "two calls", ["now", "now"]),
        ("none", "two calls", []),
    ],
)
def test_tool_choice(client: openai.OpenAI, choice: Any, line: str, calls: list) -> None:
    answer = ask(client, line, tool_choice=choice)
    assert [item.name for item in answer.output if item.type == "function_call"] == calls


def test_one_call_only(client: openai.OpenAI) -> None:
    assert len(ask(client, "two calls", parallel_tool_calls=False).output) == 1


def test_limit_of_tokens(client: openai.OpenAI, server: ApiServer) -> None:
    answer = ask(client, "hello", max_output_tokens=2)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"
    assert raw_events(server, "hello", max_output_tokens=2)[-1]["type"] == "response.incomplete"


def test_stored_responses_are_gone_on_from(client: openai.OpenAI) -> None:
    first = client.responses.create(**fields_of("call", store=True, instructions="Be brief."))
    assert client.responses.retrieve(first.id).output == first.output
    call_id = first.output[-1].call_id
    result = [{"type": "function_call_output", "call_id": call_id, "output": "rain"}]
    second = client.responses.create(
        **fields_of("hello", store=True, previous_response_id=first.id, input=result)
    )
    told = [{"role": "user", "content": "How is the weather?"}, *first.to_dict()["output"], *result]
    assert second.usage.input_tokens == ask(client, "hello", input=told).usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="there is no response") as gone:
        ask(client, "hello", previous_response_id=first.id)
    assert gone.value.code == "previous_response_not_found"
    third = ask(client, "hello", previous_response_id=second.id)  # which has its own history
    assert third.usage.input_tokens > second.usage.input_tokens


def test_what_is_not_stored_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(ask(client, "hello").id)


def test_background(client: openai.OpenAI) -> None:
    begun = client.responses.create(**fields_of("silent", store=True, background=True))
    assert (begun.status, begun.output) == ("queued", [])
    with pytest.raises(openai.BadRequestError, match="only an answer"):
        ask(client, "hello", previous_response_id=begun.id)
    deadline = time.monotonic() + 20
    while (now := client.responses.retrieve(begun.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (now.status, now.output_text) == ("completed", "late")
    assert client.responses.cancel(begun.id).status == "completed"


def test_background_work_is_cancelled(client: openai.OpenAI, server: ApiServer) -> None:
    server.wait_for(lambda health: health["running"] == 0)
    begun = client.responses.create(**fields_of("slow", store=True, background=True))
    server.wait_for(lambda health: health["running"] == 1)
    assert client.responses.cancel(begun.id).status == "cancelled"
    server.wait_for(lambda health: health["running"] == 0)
    kept = client.responses.create(**fields_of("hello", store=True))
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(kept.id)


def test_error_in_a_stream(server: ApiServer) -> None:
    last = raw_events(server, "crash")[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    raw_events(server, "hello")  # the next request starts the engine again
