"""Anthropic's requests: what is made of them, and what is refused by name."""

import pytest
from pydantic import ValidationError
from serve.test_app import send

from strata.errors import RequestError
from strata.serve.anthropic_schemas import MessagesRequest
from strata.serve.anthropic_stream import arguments_object
from strata.serve.chat import Thinking
from strata.serve.errors import from_validation

HELLO = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "now", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t1", "name": "now", "input": {"zone": "UTC"}}


def messages_of(**fields: object) -> list[dict]:
    return list(MessagesRequest.model_validate(HELLO | fields).turn().messages)


def refusal(body: dict) -> RequestError:
    with pytest.raises((RequestError, ValidationError)) as caught:
        MessagesRequest.model_validate(body).turn()
    return caught.value if isinstance(caught.value, RequestError) else from_validation(caught.value)


def text(value: str) -> dict:
    return {"type": "text", "text": value, "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"max_tokens": None}, "max_tokens", "is missing"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [*HELLO["messages"], {"role": "assistant", "content": "I"}]}, "messages", "last one"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "'user'"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "list of blocks"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "is missing",
        ),
        ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0].content[0]", "'tool_use'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content",
            "'image'; this server reads text only",
        ),
        ({"system": [{"type": "image"}]}, "system", "'image'"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools", "'bash_20250124'"),
        ({"tools": [TOOL, TOOL]}, "tools", "two tools are named 'now'"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading", "False"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "no tools are given"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}},
            "tool_choice.name",
            "no tool is named 'x'",
        ),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "needs"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 5}}, "thinking.budget_tokens", "has no"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format", "'xml'"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema", "is missing"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", "'low'"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "not served"),
        ({"container": "c"}, "container", "not served"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits[0].type",
            "clear_thinking",
        ),
        ({"n": 2}, "n", "unknown field"),
    ],
)
def test_refused_fields_are_named(change: dict, field: str, words: str) -> None:
    error = refusal(HELLO | change)
    assert error.field == field
    assert str(error).startswith(f"{field}: ")
    assert words in str(error)


def test_blocks_come_back_with_nulls() -> None:
    """The `anthropic` package's `model_dump` has one for each field that it knows."""
    blocks = [text("a") | {"citations": None}, USE | {"toolset_name": None, "new": None}]
    messages = [*HELLO["messages"], {"role": "assistant", "content": blocks}, *HELLO["messages"]]
    assert len(MessagesRequest.model_validate(HELLO | {"messages": messages}).turn().messages) == 3


def test_structure_and_strict_tools_are_asked_for() -> None:
    schema = {"type": "object"}
    body = HELLO | {"tools": [TOOL | {"strict": True}, TOOL | {"name": "other"}]}
    body |= {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    turn = MessagesRequest.model_validate(body).turn()
    assert (turn.structure.grammar.kind, turn.strict) == ("json_schema", ["now"])
    assert turn.structure.field == "output_config.format.schema"


def test_blocks_become_messages() -> None:
    """Results come before what the user says beside them; neighbours of one role are one turn."""
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("12:00"), text("sharp")]}
    failed = {"type": "tool_result", "tool_use_id": "t2", "content": "no net", "is_error": True}
    thinking = {"type": "thinking", "thinking": "I look.", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "AAAA"}
    made = messages_of(
        system=[text("x-anthropic-billing-header: cc_version=1; cch=ab12;"), text("Be brief."), text("Now.")],
        messages=[
            {"role": "user", "content": [text("<system-reminder/>"), text("hi")]},
            {"role": "user", "content": "there"},
            {"role": "assistant", "content": [redacted, thinking, text("Let me "), text("see."), USE]},
            {"role": "user", "content": [result, failed, text("and?")]},
        ],
    )
    arguments = {"name": "now", "arguments": '{"zone": "UTC"}'}
    assert made == [
        {"role": "system", "content": "Be brief.\n\nNow."},
        {"role": "user", "content": "<system-reminder/>\nhi\nthere"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "I look.",
            "tool_calls": [{"id": "t1", "type": "function", "function": arguments}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "12:00\nsharp"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no net"},
        {"role": "user", "content": "and?"},
    ]


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking(enabled=False)),
        ({"thinking": {"type": "disabled"}}, Thinking(enabled=False)),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, Thinking(enabled=True, budget=2048)),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            Thinking(enabled=True, effort="low"),
        ),
    ],
)
def test_thinking_is_asked_for(fields: dict, thinking: Thinking) -> None:
    """Without `thinking` there is none, as in Anthropic's API: the few tokens of a title are for it."""
    assert MessagesRequest.model_validate(HELLO | fields).turn().thinking == thinking


@pytest.mark.parametrize(
    ("keep", "kept"), [("all", 3), ({"type": "thinking_turns", "value": 2}, 2), (None, 1)]
)
def test_earlier_thinking_is_taken_out(keep: object, kept: int) -> None:
    said = [
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, text("x")],
        },
        {"role": "user", "content": "go on"},
    ]
    edit = {"type": "clear_thinking_20251015"} | ({"keep": keep} if keep else {})
    made = messages_of(messages=[*HELLO["messages"], *said * 3], context_management={"edits": [edit]})
    assert ["reasoning_content" in m for m in made if m["role"] == "assistant"] == [
        i >= 3 - kept for i in range(3)
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("", {}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ('{"a": "b', {"a": "b"}),
        ("[1]", {"arguments": [1]}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ("no JSON", {"arguments": "no JSON"}),
    ],
)
def test_input_is_always_an_object(written: str, read: dict) -> None:
    assert arguments_object(written) == read


@pytest.mark.parametrize("headers", [{"X-Api-Key": "right"}, {"Authorization": "Bearer right"}])
def test_both_ways_to_send_the_key(headers: dict) -> None:
    options = {"api_key": "right"}
    assert send("GET", "/v1/models", app_options=options, headers=headers).status_code == 200
    wrong = {name: value.replace("right", "wrong") for name, value in headers.items()}
    answer = send("POST", "/v1/messages", app_options=options, headers=wrong)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    assert answer.json()["type"] == "error"


def test_a_tool_s_picture_is_a_note() -> None:
    """CASES 20: an agent that looks at a picture must not lose its session; a person's picture is refused."""
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("a.png"), {"type": "image"}, pdf]}
    messages = [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [result]}]
    (_, told) = messages_of(messages=messages)
    notes = [f"[{kind} left out: this model reads text only]" for kind in ("image", "document")]
    assert told["content"] == "\n".join(["a.png", *notes])


def test_a_reminder_leaves_the_beginning_of_the_prompt_as_it_is() -> None:
    """CASES 124, 882 of the original: what Claude Code says in between must not cost the cache."""
    talk = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "There are agents."},
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "12:00"}]},
    ]
    before = messages_of(system="Be brief.", messages=talk)
    after = messages_of(system="Be brief.", messages=[*talk, {"role": "system", "content": "Use tasks."}])
    assert after[:-1] == before[:-1]
    assert after[-1]["role"] == "tool"
    assert after[-1]["content"] == "12:00\n<system-reminder>\nUse tasks.\n</system-reminder>"
    assert [message["role"] for message in before] == ["system", "user", "assistant", "tool"]
    leading = messages_of(messages=[{"role": "system", "content": "Be brief."}, *talk])
    assert leading[0] == {"role": "system", "content": "Be brief."}
