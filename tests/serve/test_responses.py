"""OpenAI's Responses: what is made of a request, what is refused by name, and what is kept."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from strata.errors import RequestError
from strata.serve.chat import Turn
from strata.serve.errors import from_validation
from strata.serve.responses_items import Items, sealed, unsealed
from strata.serve.responses_schemas import ResponseRequest
from strata.serve.responses_store import Entry, ResponseStore
from strata.serve.responses_stream import InputText

HELLO = {"model": "m", "input": "hi"}
TOOL = {"type": "function", "name": "now", "parameters": {"type": "object"}, "strict": False}
CUSTOM = {"type": "custom", "name": "patch", "description": "Edits."}
SPACE = {"type": "namespace", "name": "docs", "description": "Documents.", "tools": [TOOL, CUSTOM]}


def turn_of(**fields: Any) -> Turn:
    body = ResponseRequest.model_validate(HELLO | fields)
    known = body.known_tools(body.input)
    return body.turn(body.input, known)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"input": None}, "input", "is missing"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "'item_reference'"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "'user'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content",
            "'input_image'",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "is missing"),
        ({"tools": [{"type": "teleport"}]}, "tools", "'teleport'"),
        ({"tools": [TOOL, TOOL]}, "tools", "two tools are named 'now'"),
        ({"tools": [SPACE, TOOL | {"name": "docs__now"}]}, "tools", "two tools are named 'docs__now'"),
        ({"tool_choice": "required"}, "tool_choice", "no tools are given"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice", "no tools are given"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "'required'"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [TOOL]}, "tool_choice", "named 'x'"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "'xml'"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "'medium'"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "'low'"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]", "reasoning.encrypted_content"),
        ({"background": True, "stream": True}, "background", "without stream"),
        ({"background": True, "store": False}, "background", "with store"),
        ({"truncation": "auto"}, "truncation", "not served"),
        ({"conversation": "c"}, "conversation", "not served"),
        ({"prompt": {"id": "p"}}, "prompt", "not served"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"messages": []}, "messages", "unknown field"),
    ],
)
def test_refused_fields_are_named(change: dict, field: str, words: str) -> None:
    with pytest.raises((RequestError, ValidationError)) as caught:
        turn_of(**change)
    error = caught.value if isinstance(caught.value, RequestError) else from_validation(caught.value)
    assert error.field == field
    assert str(error).startswith(f"{field}: ")
    assert words in str(error)


ADDED = {"type": "additional_tools", "role": "developer", "tools": [TOOL | {"description": "New."}, CUSTOM]}


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [TOOL, TOOL]},
        {"input": [ADDED | {"tools": [TOOL, TOOL]}]},
        {"text": {"format": {"type": "json_schema"}}},
    ],
)
def test_what_is_wrong_in_itself_is_found_before_the_model_is_asked(change: dict) -> None:
    """A stream that waits for the model could say it only after its status."""
    with pytest.raises(RequestError):
        ResponseRequest.model_validate(HELLO | change)


def test_a_tool_that_comes_again_is_as_it_came_last() -> None:
    """Clients add their tools anew after they have shortened a history."""
    user = {"role": "user", "content": "hi"}
    tools = turn_of(tools=[TOOL, SPACE], input=[ADDED, user, ADDED]).tools
    assert [tool["function"]["name"] for tool in tools] == ["now", "docs__now", "docs__patch", "patch"]
    assert tools[0]["function"]["description"] == "New."


def test_items_become_messages() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "now", "namespace": "docs", "arguments": "{}"}
    made = turn_of(
        instructions="Be brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": t} for t in ("one", "two")]},
            {
                "type": "reasoning",
                "id": "r",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
            },
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I see."}]},
            call | {"id": None, "status": "completed"},
            {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": 'a "b"'},
            {"type": "function_call_output", "call_id": "1", "output": "noon"},
            {
                "type": "custom_tool_call_output",
                "call_id": "2",
                "output": [{"type": "input_text", "text": "ok"}],
            },
        ],
    ).messages
    functions = [c["function"] for c in made[2].pop("tool_calls")]
    assert functions == [
        {"name": "docs__now", "arguments": "{}"},
        {"name": "patch", "arguments": '{"input": "a \\"b\\""}'},
    ]
    assert made == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "I see.", "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
        {"role": "tool", "tool_call_id": "2", "content": "ok"},
    ]


def test_tools_become_functions() -> None:
    """CASES 68: namespaces are flattened, hosted tools passed over, and the rest is kept."""
    grammar = CUSTOM | {
        "name": "sql",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
    }
    tools = turn_of(tools=[TOOL, {"type": "web_search", "filters": {}}, SPACE, grammar]).tools
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    assert list(functions) == ["now", "docs__now", "docs__patch", "sql"]
    assert functions["docs__patch"]["description"] == "Documents.\nEdits."
    assert functions["docs__patch"]["parameters"]["required"] == ["input"]
    assert "start: X" in functions["sql"]["description"]


def test_tools_that_were_added_later() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [TOOL]}
    turn = turn_of(input=[added, {"role": "user", "content": "hi"}])
    assert [tool["function"]["name"] for tool in turn.tools] == ["now"]


def test_structure_and_strict_tools_are_asked_for() -> None:
    strict = SPACE | {"tools": [TOOL | {"strict": True}]}
    turn = turn_of(tools=[TOOL, strict], text={"format": {"type": "json_schema", "name": "n", "schema": {}}})
    assert (turn.structure.field, turn.strict) == ("text.format.schema", ["docs__now"])


def test_allowed_tools() -> None:
    allowed = [{"type": "web_search"}, {"type": "function", "name": "now"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    turn = turn_of(tools=[TOOL, CUSTOM, {"type": "web_search"}], tool_choice=choice)
    assert ([t["function"]["name"] for t in turn.tools], turn.forced) == (["now"], ["now"])


@given(st.text(), st.lists(st.integers(1, 5)), st.booleans())
@example('\\ " \u2028 \U0001f469\u200d\U0001f467 \\u', [1], True)
def test_input_of_a_custom_tool_in_any_pieces(text: str, sizes: list[int], ascii_only: bool) -> None:
    """What comes early is the beginning of what comes in the end, and no text is lost."""
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    reader, parts, at = InputText(), [], 0
    for size in [*sizes, len(written)]:
        parts.append(reader.push(written[at : at + size]))
        at += size
    rest, whole = reader.finish()
    assert "".join([*parts, rest]) == whole == text


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("", ""),
        ('{"text": "a"}', '{"text": "a"}'),
        ('{"input": 5}', '{"input": 5}'),
        ('{"more": 1, "input": "a"}', "a"),
        ('{"input": "a\\', "a"),
        ('{"input": "a\\qb"}', "a"),
        ('{"input": "a\\ud83d"}', "a"),
        ("*** Begin Patch", "*** Begin Patch"),
    ],
)
def test_input_that_is_not_as_it_should_be(written: str, read: str) -> None:
    reader = InputText()
    early = "".join(reader.push(character) for character in written)
    rest, whole = reader.finish()
    assert early + rest == whole
    assert whole.startswith(read)
    whole.encode()  # no lone surrogates, which a response could not carry


@pytest.mark.parametrize("content", [None, "", "gAAAA", "strata:%%", "strata:/w=="])
def test_what_others_have_sealed_says_nothing(content: str | None) -> None:
    assert unsealed(content) == ""
    assert unsealed(sealed("Hm, ß.")) == "Hm, ß."


def entry(name: str, size: int = 0) -> Entry:
    return Entry({"id": name, "status": "completed", "background": False, "output": "x" * size})


def test_store_is_bounded() -> None:
    store = ResponseStore(max_responses=3, max_bytes=1000)
    for name in "abcd":
        store.put(entry(name))
    assert [name for name in "abcd" if name in store] == ["b", "c", "d"]
    store.previous("b")  # used again, so it stays
    store.put(entry("e"))
    assert [name for name in "bcde" if name in store] == ["b", "d", "e"]
    store.put(entry("large", 5000))
    assert len(store) == 1 and "large" in store
    store.put(entry("large"))  # it has become small
    store.put(entry("f"))
    assert len(store) == 2


def test_size_counts_the_items_that_are_new() -> None:
    store = ResponseStore(max_bytes=1900)
    (item,) = TypeAdapter(Items).validate_python("y" * 900)
    store.put(entry("a"), [item])
    store.put(Entry({"id": "b", "status": "completed"}, [item]))
    assert "a" in store and "b" in store
    store.put(entry("c"), [item])
    assert "a" not in store and "b" in store


def test_work_of_a_forgotten_response_ends() -> None:
    async def run() -> bool:
        store = ResponseStore(max_responses=1)
        task = asyncio.create_task(asyncio.sleep(60))
        store.put(Entry({"id": "a", "status": "in_progress"}, task=task))
        with pytest.raises(RequestError, match="is in_progress"):
            store.previous("a")
        store.put(entry("b"))
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(run())


def test_a_tool_s_picture_is_a_note() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="}
    output = {"type": "function_call_output", "call_id": "c", "output": [picture]}
    (told,) = turn_of(input=[output]).messages
    assert told["content"] == "[input_image left out: this model reads text only]"
