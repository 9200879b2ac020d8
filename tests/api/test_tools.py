"""Tools and thinking through the official client: every tool_choice, budgets, loops, several choices."""

import json
from typing import Any

import httpx
import openai
import pytest
from api.conftest import SEEDS
from helpers.api_server import ApiServer
from openai.types.chat import ChatCompletion, ChatCompletionChunk

ASK = [{"role": "user", "content": "How is the weather?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it", "parameters": CITY}}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "weather"}}
Calls = list[tuple[str, str]]


def ask(client: openai.OpenAI, line: str, **fields: Any) -> ChatCompletion:
    fields = {"model": "parrot", "messages": ASK, "tools": [WEATHER, NOW], "seed": SEEDS[line], **fields}
    answer = client.chat.completions.create(**fields)
    return ChatCompletion.model_validate(answer.model_dump())


def stream(client: openai.OpenAI, line: str, **fields: Any) -> list[ChatCompletionChunk]:
    fields = {"model": "parrot", "messages": ASK, "tools": [WEATHER, NOW], "seed": SEEDS[line], **fields}
    chunks = client.chat.completions.create(stream=True, **fields)
    return [ChatCompletionChunk.model_validate(chunk.model_dump()) for chunk in chunks]


def whole_parts(answer: ChatCompletion) -> tuple[str | None, str | None, Calls, str]:
    choice = answer.choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    reasoning = getattr(choice.message, "reasoning_content", None)
    return reasoning, choice.message.content, calls, choice.finish_reason


def streamed_parts(chunks: list[ChatCompletionChunk]) -> tuple[str | None, str | None, Calls, str]:
    """The parts put together as the API reference says: by index, names once, arguments appended."""
    reasoning, content, calls, ids = "", "", [], []
    for chunk in chunks:
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                if call.id:
                    assert (call.index, call.type) == (len(calls), "function")
                    ids.append(call.id)
                    calls.append([call.function.name, ""])
                assert call.index == len(calls) - 1
                calls[call.index][1] += call.function.arguments
    assert len(set(ids)) == len(ids)
    # A whole message has null where there is nothing.
    told = content or ("" if not calls else None)
    return (
        reasoning or None,
        told,
        [(name, text) for name, text in calls],
        chunks[-1].choices[0].finish_reason,
    )


CASES = {
    "call": ("I look.", "Let me see.", [("weather", '{"city": "Köln", "days": 3}')], "tool_calls"),
    "two calls": (None, None, [("now", "{}")] * 2, "tool_calls"),
    "stranded": (
        "Now.\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        None,
        [("now", "{}")],
        "tool_calls",
    ),
    "hello": (None, "Hello, world!", [], "stop"),
}


@pytest.mark.parametrize("line", CASES)
def test_stream_and_whole_answer_are_equal(client: openai.OpenAI, line: str) -> None:
    """CASES 2, 8, 12, 22."""
    assert whole_parts(ask(client, line)) == CASES[line]
    assert streamed_parts(stream(client, line)) == CASES[line]


def test_arguments_arrive_as_they_are_written(client: openai.OpenAI) -> None:
    deltas = [choice.delta for chunk in stream(client, "call") for choice in chunk.choices]
    texts = [call.function.arguments for delta in deltas for call in delta.tool_calls or []]
    assert texts == ["", '{"city": ', '"Kö', "ln", '", "days": ', "3}"]


def test_one_call_only(client: openai.OpenAI) -> None:
    answer = ask(client, "two calls", parallel_tool_calls=False)
    assert whole_parts(answer)[2:] == ([("now", "{}")], "tool_calls")
    assert answer.usage.completion_tokens < 6


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": openai.NOT_GIVEN}])
def test_without_tools_a_call_is_text(client: openai.OpenAI, fields: dict) -> None:
    _, content, calls, reason = whole_parts(ask(client, "two calls", **fields))
    assert (calls, reason) == ([], "stop")
    assert content.startswith("<tool_call>\n<function=now>")


def test_tools_are_shown_to_the_model(client: openai.OpenAI) -> None:
    none = ask(client, "hello", tool_choice="none").usage.prompt_tokens
    one = ask(client, "hello", tools=[WEATHER]).usage.prompt_tokens
    assert one > none + len(json.dumps(WEATHER)) // 2


@pytest.mark.parametrize(
    ("line", "fields", "call"),
    [
        ("rest of a call", {"tool_choice": NAMED}, ("weather", '{"city": "Bonn"}')),
        ("rest of a call", {"tool_choice": "required", "tools": [WEATHER]}, ("weather", '{"city": "Bonn"}')),
        ("name and rest", {"tool_choice": "required"}, ("now", "{}")),
    ],
)
def test_forced_calls(client: openai.OpenAI, line: str, fields: dict, call: tuple[str, str]) -> None:
    """The server writes the beginning, up to the name or behind it."""
    assert whole_parts(ask(client, line, **fields)) == (None, None, [call], "tool_calls")
    assert streamed_parts(stream(client, line, **fields)) == (None, None, [call], "tool_calls")


def test_a_forced_call_comes_after_thinking(client: openai.OpenAI) -> None:
    fields = {"tool_choice": NAMED, "extra_body": {"enable_thinking": True}}
    parts = ("Where?", None, [("weather", '{"city": "Bonn"}')], "tool_calls")
    assert whole_parts(ask(client, "thought and rest of a call", **fields)) == parts
    assert streamed_parts(stream(client, "thought and rest of a call", **fields)) == parts


def test_a_call_cut_by_the_limit(client: openai.OpenAI) -> None:
    """CASES 18, 211."""
    answer = ask(client, "call", max_tokens=13)
    assert whole_parts(answer)[2:] == ([("weather", '{"city": "Köln')], "length")
    assert answer.choices[0].unfinished == "tool_call"


def test_a_conversation_with_calls(client: openai.OpenAI) -> None:
    first = ask(client, "call").choices[0].message
    (call,) = first.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "5 °C"}]}
    history = [*ASK, first.model_dump(exclude_none=True), result]
    assert whole_parts(ask(client, "hello", messages=history))[1] == "Hello, world!"
    broken = [*ASK, {"role": "assistant", "tool_calls": [call.model_dump()]}, result]
    broken[1]["tool_calls"][0]["function"]["arguments"] = '{"city": "K'
    assert whole_parts(ask(client, "hello", messages=broken))[1] == "Hello, world!"


# Several choices.
def test_several_choices(client: openai.OpenAI) -> None:
    """With a seed they differ, and are the same again; the prompt counts once."""
    seed = SEEDS["voice 0"]
    one = ask(client, "voice 0", n=1)
    answer = ask(client, "voice 0", n=3)
    texts = [choice.message.content.split("-")[0] for choice in answer.choices]
    assert texts == ["0", "1", "2"]
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens
    assert answer.usage.completion_tokens == 60
    streamed = ["", "", ""]
    for chunk in stream(client, "voice 0", n=3):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == [choice.message.content for choice in answer.choices]
    completions = client.completions.create(model="parrot", prompt=["a", "bc"], n=2, seed=seed)
    assert [c.text.split("-")[0] for c in completions.choices] == ["0", "1", "0", "1"]
    assert completions.usage.prompt_tokens == 3


# Thinking.
def think(client: openai.OpenAI, line: str, **fields: Any) -> tuple[Any, ChatCompletion]:
    extra = {"enable_thinking": True} | fields.pop("extra_body", {})
    fields |= {"tools": openai.NOT_GIVEN, "extra_body": extra}
    answer = ask(client, line, **fields)
    assert whole_parts(answer) == streamed_parts(stream(client, line, **fields))
    return answer.choices[0], answer


def test_a_thinking_budget_ends_in_words(client: openai.OpenAI) -> None:
    """CASES 123: what it has thought, the wrap-up, and then the answer."""
    choice, answer = think(client, "thoughts", extra_body={"thinking_budget": 2})
    assert choice.message.reasoning_content.startswith("one two \n\nThat is as long as I may think.")
    assert (choice.message.content, choice.finish_reason) == ("three four", "stop")
    details = answer.usage.completion_tokens_details
    assert 2 < details.reasoning_tokens < answer.usage.completion_tokens - 2


def test_thinking_that_ends_within_its_budget(client: openai.OpenAI) -> None:
    choice, _ = think(client, "closes", extra_body={"thinking_budget": 100})
    assert choice.message.reasoning_content == "Only the end"
    assert choice.message.content == "shows."


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 2}])
def test_an_answer_with_a_budget_lets_its_lane_go(
    client: openai.OpenAI, server: ApiServer, fields: dict
) -> None:
    """It keeps it only as long as it may be gone on with."""
    think(client, "thoughts", extra_body={"thinking_budget": 2}, **fields)
    status = httpx.get(f"{server.url}/v1/status", trust_env=False).json()
    assert [lane["busy"] for lane in status["lanes_held"]] == [False, False]


def test_an_answer_without_thinking_goes_on_over_the_budget(client: openai.OpenAI) -> None:
    fields = {"tools": openai.NOT_GIVEN, "extra_body": {"thinking_budget": 3, "enable_thinking": False}}
    content = whole_parts(ask(client, "hello", **fields))[1]
    assert content.startswith("Hello, wor")


@pytest.mark.parametrize("fields", [{"reasoning_effort": "none"}, {"extra_body": {"thinking_budget": 0}}])
def test_thinking_off(client: openai.OpenAI, fields: dict) -> None:
    answer = ask(client, "closes", tools=openai.NOT_GIVEN, **fields)
    assert whole_parts(answer)[:2] == (None, "Only the end</think>\n\nshows.")


def test_an_effort_turns_thinking_on(client: openai.OpenAI) -> None:
    answer = ask(client, "closes", tools=openai.NOT_GIVEN, reasoning_effort="high")
    assert whole_parts(answer)[:2] == ("Only the end", "shows.")


def test_a_limit_within_thinking_is_told(client: openai.OpenAI) -> None:
    choice, _ = think(client, "thoughts", max_tokens=2, extra_body={"thinking_budget": 2})
    assert (choice.message.reasoning_content, choice.finish_reason) == ("one two ", "length")
    assert choice.unfinished == "reasoning"


def test_thinking_that_loops_is_ended(client: openai.OpenAI) -> None:
    """CASES 606: in thinking by itself; the answer, which may be meant, only if that is asked for."""
    choice, _ = think(client, "loop")
    assert "That is as long as I may think" in choice.message.reasoning_content
    assert choice.message.content == "Done."
    choice = ask(client, "loop", tools=openai.NOT_GIVEN, extra_body={"loop_guard": True}).choices[0]
    assert (choice.finish_reason, choice.stop_reason) == ("length", "repetition")
    assert 512 <= len(choice.message.content.split()) < 1024


def test_the_stop_string_that_ended_an_answer_is_told(client: openai.OpenAI) -> None:
    choice = ask(client, "stops", stop=["never", "STOP"], tools=openai.NOT_GIVEN).choices[0]
    assert (choice.message.content, choice.finish_reason, choice.stop_reason) == ("one ", "stop", "STOP")


def test_a_schema_that_makes_no_sense_does_no_harm(client: openai.OpenAI) -> None:
    """CASES 21: arguments are read all the same, and only `strict` needs a schema that can be compiled."""
    odd = {
        "type": "object",
        "properties": {"city": {"$ref": "#/nowhere", "pattern": "("}, "days": {"type": 7}},
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": odd}}
    ((name, arguments),) = whole_parts(ask(client, "call", tools=[tool]))[2]
    assert (name, json.loads(arguments).keys()) == ("weather", {"city", "days"})
    strict = {"type": "function", "function": {"name": "weather", "parameters": odd, "strict": True}}
    with pytest.raises(openai.BadRequestError, match="tools"):
        ask(client, "call", tools=[strict])
