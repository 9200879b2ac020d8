"""Structured output through the official client: every way to ask for it, tools, thinking, refusals."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import jsonschema
import openai
import pytest
from helpers.api_server import ApiServer

ASK = [{"role": "user", "content": "Where?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}}
UNITS = {
    "type": "object",
    "properties": {**SCHEMA["properties"], "unit": {"type": "string", "enum": ["C", "F"]}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
NOW = {"type": "function", "function": {"name": "now"}}
OPEN = ["<tool_call>", "\n<function=weather>\n"]
LINES = {
    "json": ['{"city": ', '"Bonn"', ', "days": 2', "}", " and more"],
    "prose": ["It ", "is ", "in Bonn."],
    "thought": ["Let me see", "</think>", "\n\n", '{"city": "Ulm", "days": 1}'],
    "call": [
        "Well.\n",
        *OPEN,
        "<parameter=city>\nBonn\n</parameter>\n",
        "<parameter=days>\n",
        "3\n",
        "</parameter>",
    ],
    "lazy call": [
        "Well.\n",
        *OPEN,
        "<parameter=city>\nBonn\n</parameter>\n",
        "</function>\n",
        "</tool_call>",
    ],
    "arguments": ["<parameter=city>\n", "Bonn\n</parameter>\n<parameter=days>\nmany\n", "</parameter>\n"],
    "name": ["nowhere", "?"],
}
SEEDS = {name: i for i, name in enumerate(LINES)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder: Path = tmp_path_factory.mktemp("structured")
    with ApiServer(list(LINES.values()), folder, "--lanes", "3") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(client: openai.OpenAI, line: str, **fields: Any) -> Any:
    fields = {"model": "parrot", "messages": ASK, "seed": SEEDS[line], **fields}
    return client.chat.completions.create(**fields).choices[0]


@pytest.mark.parametrize("line", ["json", "prose"])
def test_an_answer_follows_its_schema(client: openai.OpenAI, line: str) -> None:
    """The end of the grammar ends the answer, also of a model that would have gone on."""
    choice = ask(client, line, response_format=NAMED)
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    assert choice.finish_reason == "stop"
    if line == "json":
        assert choice.message.content == '{"city": "Bonn", "days": 2}'


def test_streams_and_choices_follow_it_too(client: openai.OpenAI) -> None:
    texts = ["", "", ""]
    fields = {"model": "parrot", "messages": ASK, "seed": 0, "response_format": NAMED}
    for chunk in client.chat.completions.create(stream=True, n=3, **fields):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


ASKED = {
    "response_format": {"type": "json_object"},
    "guided_json": SCHEMA,
    "guided_regex": "[a-c]{2}x",
    "guided_choice": ["Berlin", "Bonn"],
    "guided_grammar": 'start: "[" /[0-9]/ "]"',
    "grammar": 'root ::= "<" [x-z]+ ">"',
    "json_schema": SCHEMA,
    "structured_outputs": {"choice": ["one", "two"]},
}


@pytest.mark.parametrize("name", ASKED)
def test_everybodys_words(client: openai.OpenAI, name: str) -> None:
    value = ASKED[name]
    text = ask(client, "prose", extra_body={name: value}, max_tokens=200).message.content
    completion = client.completions.create(model="parrot", prompt="x", seed=1, extra_body={name: value})
    assert completion.choices[0].text == text
    match name:
        case "guided_json" | "json_schema":
            jsonschema.validate(json.loads(text), SCHEMA)
        case "response_format":
            assert isinstance(json.loads(text), dict)
        case "guided_choice" | "structured_outputs":
            assert text in ("Berlin", "Bonn", "one", "two")
        case _:
            assert text in ("aax", "[0]", "<x>")


def test_it_begins_behind_the_thinking(client: openai.OpenAI) -> None:
    choice = ask(client, "thought", response_format=NAMED, extra_body={"enable_thinking": True})
    assert choice.message.reasoning_content == "Let me see"
    assert (choice.message.content, choice.finish_reason) == ('{"city": "Ulm", "days": 1}', "stop")


def test_stop_strings_and_limits_cut_it(client: openai.OpenAI) -> None:
    stopped = ask(client, "json", response_format=NAMED, stop=["days"])
    assert (stopped.message.content, stopped.finish_reason) == ('{"city": "Bonn", "', "stop")
    cut = ask(client, "json", response_format=NAMED, max_tokens=2)
    assert (cut.message.content, cut.finish_reason) == ('{"city": "Bonn"', "length")


def test_biases_do_not_break_it(client: openai.OpenAI) -> None:
    choice = ask(client, "json", response_format=NAMED, logit_bias={"65": 100}, logprobs=True)
    assert choice.message.content == '{"city": "Bonn", "days": 2}'
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content


def arguments(choice: Any) -> tuple[str, Any]:
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    return call.function.name, json.loads(call.function.arguments)


@pytest.mark.parametrize("line", ["call", "lazy call"])
def test_strict_arguments_follow_their_schema(client: openai.OpenAI, line: str) -> None:
    choice = ask(client, line, tools=[WEATHER, NOW])
    name, given = arguments(choice)
    jsonschema.validate(given, SCHEMA)
    assert name == "weather" and choice.message.content == "Well."
    if line == "call":
        assert given == {"city": "Bonn", "days": 3}


def test_strict_tools_leave_text_free(client: openai.OpenAI) -> None:
    choice = ask(client, "prose", tools=[WEATHER])
    assert (choice.message.content, choice.finish_reason) == ("It is in Bonn.", "stop")


PATTERN = {
    "type": "object",
    "properties": {"id": {"type": "string", "pattern": "^[a-z]{3}$"}},
    "required": ["id"],
}


def test_what_tags_cannot_say_is_written_as_json(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": PATTERN, "strict": True}}
    _, given = arguments(ask(client, "call", tools=[tool], parallel_tool_calls=False))
    jsonschema.validate(given, PATTERN)


def test_forced_calls_are_calls(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    fields = {"tools": [WEATHER, NOW], "parallel_tool_calls": False}
    name, given = arguments(ask(client, "arguments", tool_choice=named, **fields))
    jsonschema.validate(given, SCHEMA)
    assert (name, given["city"]) == ("weather", "Bonn")
    assert arguments(ask(client, "name", tool_choice="required", **fields)) == ("now", {})


def test_a_schema_beside_tools(client: openai.OpenAI) -> None:
    choice = ask(client, "json", response_format=NAMED, tools=[NOW])
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)


CYCLE = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
WRONG = {
    "response_format": ({"type": "xml"}, "response_format"),
    "response_format.json_schema": ({"type": "json_schema"}, "response_format.json_schema"),
    "response_format.json_schema.schema": (
        {"type": "json_schema", "json_schema": {"name": "a", "schema": CYCLE}},
        "response_format.json_schema.schema",
    ),
    "guided_json": ({"not": {}}, "guided_json"),
    "guided_regex": ("(a", "guided_regex"),
    "guided_choice": ([], "guided_choice"),
    "guided_grammar": ("junk", "guided_grammar"),
    "grammar": ("root ::= nothing", "grammar"),
    "structured_outputs": ({"json": {}, "regex": "a"}, "structured_outputs"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_structures_are_400_by_name(server: ApiServer, name: str) -> None:
    value, field = WRONG[name]
    for extra in ({}, {"stream": True}):
        body = {"model": "parrot", "messages": ASK, name.split(".")[0]: value, **extra}
        response = httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=60)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, field), error
        assert error["message"].startswith(f"{field}: ")


def test_two_structures_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="send one"):
        ask(client, "json", response_format=NAMED, extra_body={"guided_regex": "a"})
    with pytest.raises(openai.BadRequestError, match="ignore_eos"):
        ask(client, "json", response_format=NAMED, extra_body={"ignore_eos": True})


@pytest.mark.parametrize(
    "schema", [CYCLE, {"properties": []}, {"x-guidance": {}}, {"properties": {"a": {"not": {}}}}]
)
def test_wrong_strict_tools_are_400(client: openai.OpenAI, schema: dict) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "prose", tools=[tool])
    assert caught.value.param == "tools[0].function.parameters"


FORMAT = {"type": "json_schema", "schema": SCHEMA}


@pytest.mark.parametrize("line", ["prose", "json"])
def test_formats_of_the_other_protocols(client: openai.OpenAI, server: ApiServer, line: str) -> None:
    body = {"model": "parrot", "extra_body": {"seed": SEEDS[line]}}
    response = client.responses.create(**body, input="Where?", text={"format": FORMAT | {"name": "place"}})
    jsonschema.validate(json.loads(response.output_text), SCHEMA)
    assert response.text.format.schema_ == SCHEMA
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
        asked = {"max_tokens": 500, "messages": ASK, "output_config": {"format": FORMAT}}
        (block,) = claude.messages.create(**body, **asked).content
    jsonschema.validate(json.loads(block.text), SCHEMA)


def test_strict_tools_of_the_other_protocols(client: openai.OpenAI, server: ApiServer) -> None:
    body = {"model": "parrot", "extra_body": {"seed": SEEDS["lazy call"]}}
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    *_, call = client.responses.create(**body, input="Where?", tools=[tool]).output
    jsonschema.validate(json.loads(call.arguments), SCHEMA)
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
        tool = {"name": "weather", "input_schema": SCHEMA, "strict": True}
        *_, block = claude.messages.create(**body, max_tokens=500, messages=ASK, tools=[tool]).content
    jsonschema.validate(block.input, SCHEMA)


def test_bad_schema_is_refused_in_a_protocol_s_own_words(client: openai.OpenAI, server: ApiServer) -> None:
    bad = {"type": "json_schema", "schema": {"type": "nothing"}}
    with pytest.raises(openai.BadRequestError, match=r"text\.format\.schema: "):
        client.responses.create(model="parrot", input="Where?", text={"format": bad | {"name": "place"}})
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude,
        pytest.raises(anthropic.BadRequestError, match=r"output_config\.format\.schema: "),
    ):
        asked = {"max_tokens": 5, "messages": ASK, "output_config": {"format": bad}}
        claude.messages.create(model="parrot", **asked)
