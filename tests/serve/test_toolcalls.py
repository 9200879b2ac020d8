"""Tool calls in every dialect: what models really write, well and badly, becomes arguments."""

import json
import re
import time
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strata.serve.arguments import Tools
from strata.serve.deltas import Message, ToolArgumentsDelta, ToolCallStart
from strata.serve.dialects import (
    DIALECTS,
    GENERIC,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_LIST,
    QWEN,
    Dialect,
    dialect_of,
)
from strata.serve.router import Calls, Router
from tests.helpers.chat_templates import TEMPLATES

EDIT = {
    "path": {"type": "string"},
    "text": {"type": "string"},
    "line": {"type": "integer"},
    "dry": {"type": "boolean"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "list": {"type": "array"},
    "any": {},
}
TOOLS = Tools([{"name": "edit", "parameters": {"type": "object", "properties": EDIT}}])
Call = tuple[str, str, bool]


def routed(text: str, dialect: Dialect, cuts: list[int] | None = None, reason: str = "stop") -> Message:
    router, collected = Router(calls=Calls(dialect, TOOLS)), Message()
    borders = (
        range(len(text) + 1) if cuts is None else sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    )
    for start, end in pairwise(borders):
        collected.add(router.push(text[start:end]))
    collected.add(router.finish(reason))
    return collected


def calls(text: str, dialect: Dialect = QWEN, reason: str = "stop") -> list[Call]:
    return [(c.name, c.arguments, c.complete) for c in routed(text, dialect, reason=reason).tool_calls]


def tagged(body: str) -> str:
    return f"<tool_call>\n<function=edit>\n{body}\n</function>\n</tool_call>"


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>"


def only(text: str, dialect: Dialect = QWEN) -> dict:
    """The arguments of the one complete call that is all of the text."""
    message = routed(text, dialect)
    assert message.content == ""
    ((name, arguments, complete),) = [(c.name, c.arguments, c.complete) for c in message.tool_calls]
    assert (name, complete) == ("edit", True)
    return json.loads(arguments)


# The tag dialect.
VALUE_PARTS = ["</parameter>", "<parameter=", "<parameter=x>", "</function>", "<tool_call>", "</tool_call>"]
VALUES = st.lists(
    st.sampled_from([*VALUE_PARTS, "\n", " ", "<", "a", '"', "\\", "é", "👩", "\t", "null"]), max_size=9
)


# What may as well be a value's end, or a closing tag that was written twice.
UNCERTAIN = re.compile(
    r"</parameter>(?:\s|</parameter>)*(?:<parameter=|</function>|</tool_call>|\Z)|</function>|</tool_call>"
)


@given(values=st.lists(VALUES.map("".join), min_size=1, max_size=2), cuts=st.lists(st.integers(0, 300)))
def test_any_text_is_an_argument(values: list[str], cuts: list[int]) -> None:
    """CASES 16, 210: whatever a file holds arrives as it is, as long as its end can be told."""
    written = dict(zip(["path", "text"], values, strict=False))
    text = tagged("\n".join(parameter(key, value) for key, value in written.items()))
    assume(not any(UNCERTAIN.search(value) for value in values))
    message = routed(text, QWEN, cuts)
    assert json.loads(message.tool_calls[0].arguments) == written


def test_strings_stream_as_they_come() -> None:
    """CASES 9: a long argument is never silent, and only a possible end is withheld."""
    router = Router(calls=Calls(QWEN, TOOLS))
    router.push("<tool_call>\n<function=edit>\n<parameter=text>\n")
    for piece in ("def", ' f("x"):', "\n    return", " a < b", " </p>"):
        deltas = router.push(piece)
        assert [type(delta) for delta in deltas] == [ToolArgumentsDelta]
    assert router.push("\n</parameter>") == []
    assert router.push(" is")[0].text == "\\n</parameter> is"


def test_a_string_or_null_streams_too() -> None:
    router = Router(calls=Calls(QWEN, TOOLS))
    router.push("<tool_call>\n<function=edit>\n<parameter=note>\n")
    assert router.push("nu") == []
    assert router.push("mber")[0].text == '"number'
    assert only(tagged(parameter("note", "null"))) == {"note": None}
    assert only(tagged(parameter("note", "nul"))) == {"note": "nul"}


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("", {}),
        (parameter("path", ""), {"path": ""}),
        (parameter("path", "a\n"), {"path": "a\n"}),  # 16
        ("<parameter=path>a</parameter><parameter=line>5</parameter>", {"path": "a", "line": 5}),
        (
            parameter("path", "a") + "\n</parameter>\n</parameter>\n" + parameter("line", "5"),
            {"path": "a", "line": 5},
        ),  # 1
        ("<parameter=path>\na\n</parameter>\n</parameter>", {"path": "a"}),  # 1
        ("<parameter=path>\na", {"path": "a"}),  # 10
        ("<parameter=path>\na\n<parameter=line>\n5\n</parameter>", {"path": "a", "line": 5}),  # 10
        ("<parameter=path>\na\n<parameter=else>\n5\n</parameter>", {"path": "a\n<parameter=else>\n5"}),
        (parameter("path", "a </parameter> b"), {"path": "a </parameter> b"}),  # 210
        (
            parameter("text", "<parameter=path>\nx\n</parameter>\ny"),
            {"text": "<parameter=path>\nx\n</parameter>\ny"},
        ),
        (parameter("path", "a") + "\n" + parameter("path", "b"), {"path": "a"}),  # the first has been sent
        (parameter("other", "5") + parameter("more", "x"), {"other": 5, "more": "x"}),
        ('{"path": "a"}', {"path": "a"}),
        ("<parameter=path>a\r\nb</parameter>", {"path": "a\r\nb"}),
    ],
)
def test_tags_as_models_write_them(body: str, arguments: dict) -> None:
    assert only(tagged(body)) == arguments
    assert only(tagged(body).replace("\n</tool_call>", "")) == arguments  # the outer tag was left out
    assert only(tagged(body).removeprefix("<tool_call>\n")) == arguments


@pytest.mark.parametrize(
    "stray", ["</tool_call>", "\n</function>\n</tool_call>", "</parameter>\n</tool_call>"]
)
def test_closing_tags_too_many_are_dropped(stray: str) -> None:
    """CASES 1."""
    assert only(tagged(parameter("path", "a")) + stray) == {"path": "a"}


def test_text_between_parameters_is_given_back() -> None:
    """CASES 14: behind the call, where it disturbs nothing."""
    message = routed(tagged(parameter("path", "a") + "\nand <b>now</b>\n" + parameter("line", "5")), QWEN)
    # The end tag of `path` is followed by text, so it is none.
    assert json.loads(message.tool_calls[0].arguments)["line"] == 5
    message = routed(tagged("I set <b>this</b>:\n" + parameter("line", "5")), QWEN)
    assert message.content == "I set <b>this</b>:\n"
    assert message.tool_calls[0].arguments == '{"line": 5}'


FULL = tagged(parameter("path", "a") + "\n" + parameter("list", "[1, 2]"))


@pytest.mark.parametrize("size", range(len("<tool_call>\n<function=edit>"), FULL.index("</function>")))
def test_a_call_cut_by_the_limit_is_not_complete(size: int) -> None:
    """CASES 18, 211: its JSON stays open, wherever the cut is."""
    ((name, arguments, complete),) = calls(FULL[:size], reason="length")
    assert (name, complete) == ("edit", False)
    with pytest.raises(ValueError):
        json.loads(arguments)


def test_a_call_is_complete_when_its_function_is() -> None:
    size = FULL.index("</function>") + len("</function>")
    assert (
        calls(FULL[:size], reason="length")
        == calls(FULL)
        == [("edit", '{"path": "a", "list": [1, 2]}', True)]
    )


@pytest.mark.parametrize(
    "rest", ["<parameter=pa", "<parameter=path>", "<parameter=path>\na", "<parameter=path>\na\n</para"]
)
def test_a_call_in_the_middle_of_which_the_model_stops_is_not_complete(rest: str) -> None:
    ((_, _, complete),) = calls(f"<tool_call>\n<function=edit>\n{rest}")
    assert not complete


# JSON dialects.
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WRITTEN = {
    QWEN: '<tool_call>{"name": "edit", "arguments": %s}</tool_call>',
    HERMES: '<tool_call>\n{"name": "edit", "arguments": %s}\n</tool_call>',
    LLAMA: '{"name": "edit", "parameters": %s}',
    MISTRAL: "[TOOL_CALLS]edit[ARGS]%s",
    MISTRAL_LIST: '[TOOL_CALLS] [{"name": "edit", "arguments": %s, "id": "abcdefghi"}]',
    GENERIC: '{"name": "edit", "arguments": %s}',
}


@given(
    arguments=st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    dialect=st.sampled_from(DIALECTS),
    plain=st.booleans(),
    indent=st.sampled_from([None, 2]),
    cuts=st.lists(st.integers(0, 300)),
)
def test_any_json_is_passed_on(
    arguments: dict, dialect: Dialect, plain: bool, indent: int | None, cuts: list[int]
) -> None:
    raw = json.dumps(arguments, ensure_ascii=plain, indent=indent)
    message = routed(WRITTEN[dialect] % raw, dialect, cuts)
    assert message.content == ""
    assert [(c.name, c.arguments, c.complete) for c in message.tool_calls] == [("edit", raw, True)]


def test_json_arguments_stream() -> None:
    router = Router(calls=Calls(HERMES, TOOLS))
    assert router.push('<tool_call>\n{"name": "edit"') == []
    assert isinstance(router.push(', "arguments": {"text": "')[0], ToolCallStart)
    for piece in ("def", " f():", "\\n", " a < b"):
        assert router.push(piece)[0].text == piece


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"arguments": {"line": 5}, "name": "edit"}', {"line": 5}),
        (
            '{"id": "x", "type": "function", "function": {"name": "edit", "arguments": {"line": 5}}}',
            {"line": 5},
        ),
        ('{"type": "function", "name": "edit", "parameters": {"line": 5}}', {"line": 5}),
        ('{"name": "edit"}', {}),
        ('{"name": "edit", "arguments": null}', {}),
        ('{"name": "edit", "arguments": "{\\"line\\": 5}"}', {"line": 5}),
        ('{"name": "edit", "arguments": "plain"}', "plain"),
        ('{"name": "edit", "arguments": {"text": "a\nb\t</tool_call>"}}', {"text": "a\nb\t</tool_call>"}),
        ('{"name": "edit", "arguments": {"text": "\\d+\\\'"}}', {"text": "\\d+\\'"}),
        ('{"name": "edit", "arguments": {"line": 5}', {"line": 5}),  # the last brace was forgotten
        ('{"name": "edit", "arguments": {"line": 5}}}', {"line": 5}),
        ('{"name": "edit", "arguments": {"text": "\\ud83d\\ude00 \\ud83d"}}', {"text": "😀 \ud83d"}),
    ],
)
def test_json_as_models_write_it(text: str, arguments: object) -> None:
    ((name, raw, complete), *rest) = calls(f"<tool_call>\n{text}\n</tool_call>", HERMES)
    assert (name, complete, rest) == ("edit", True, [])
    assert json.loads(raw) == arguments


@pytest.mark.parametrize(
    "arguments",
    [
        '{"text": "a',
        '{"list": [1, 2',
        '{"text": "a"',
        '{"list": [1, </tool_call>',
        '{"text": "a \\',
        "tru</tool_call>",
    ],
)
def test_broken_json_arguments_are_the_clients(arguments: str) -> None:
    """CASES 18, 20: passed on as they are, never closed, and the stream goes on."""
    message = routed(f'<tool_call>{{"name": "edit", "arguments": {arguments}', HERMES, reason="length")
    (call,) = message.tool_calls
    assert not call.complete or call.arguments == "tru"
    assert message.end.unfinished == (None if call.complete else "tool_call")


@pytest.mark.parametrize(
    ("dialect", "text", "names"),
    [
        (LLAMA, '<|python_tag|>{"name": "edit", "parameters": {}}', ["edit"]),
        (LLAMA, '{"name": "edit", "parameters": {}}; {"name": "edit", "parameters": {}}', ["edit"] * 2),
        (LLAMA, "<function=edit>{}</function>", ["edit"]),
        (LLAMA, '{"name": "Ann", "parameters": {}}', []),  # JSON as an answer
        (LLAMA, 'See {"name": "edit", "parameters": {}}', []),
        (MISTRAL, "[TOOL_CALLS]edit[ARGS]{}[TOOL_CALLS]other[ARGS]{}", ["edit", "other"]),
        (MISTRAL, "[TOOL_CALLS]edit[CALL_ID]abcdefghi[ARGS]{}", ["edit"]),
        (MISTRAL, "[TOOL_CALLS]edit{}", []),
        (
            MISTRAL_LIST,
            '[TOOL_CALLS][{"name": "edit", "arguments": {}}, {"name": "b", "arguments": {}}]',
            ["edit", "b"],
        ),
        (GENERIC, '[{"name": "edit", "arguments": {}}]', ["edit"]),
        (GENERIC, "[1] is the first", []),
    ],
)
def test_forms_of_the_dialects(dialect: Dialect, text: str, names: list[str]) -> None:
    message = routed(text, dialect)
    assert [call.name for call in message.tool_calls] == names
    assert message.content == ("" if names else text)
    assert all(call.arguments == "{}" for call in message.tool_calls)


def cpu_s(text: str, dialect: Dialect, step: int) -> float:
    """Time to route a text in pieces, whatever else the machine does meanwhile."""
    start = time.process_time()
    routed(text, dialect, range(0, len(text), step))
    return time.process_time() - start


@pytest.mark.parametrize("step", [16, 10**9])
def test_huge_arguments_are_fast(step: int) -> None:
    """In one piece or in many: what takes long here holds up every stream of the server."""
    value = 'line "with" <tags> and \\ more\n' * 3_000
    inside = json.dumps(json.dumps({"text": value}))
    for text, dialect in (
        (tagged(parameter("text", value)), QWEN),
        (tagged(parameter("list", f"[{json.dumps(value)}]")), QWEN),
        (WRITTEN[HERMES] % json.dumps({"text": value}), HERMES),
        (WRITTEN[HERMES] % inside, HERMES),
        (f'<tool_call>{{"id": {inside}, "name": "edit"}}</tool_call>', HERMES),
    ):
        assert len(routed(text, dialect, []).tool_calls) == 1
        assert cpu_s(text, dialect, step) < 20e-6 * len(text)


HOSTILE = [
    "<",
    "</parameter>",
    "<tool_call>",
    "{",
    "\n",
    "[",
    '"',
    "\\",
    "<parameter=",
    "\n<parameter=a",
    "</function>",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_is_fast(unit: str) -> None:
    heads = (
        "",
        "<tool_call>",
        '<tool_call>{"name": "edit", "arguments": {"a": ',
        "<tool_call>{",
        '{"name": "',
    )
    inside = "<tool_call>\n<function=edit>\n<parameter=text>\n"
    for dialect in DIALECTS:
        for head in (*heads, inside, inside + "</parameter>"):
            text = head + unit * (3_000 // len(unit))
            assert cpu_s(text, dialect, 24) < 40e-6 * len(text)


@pytest.mark.parametrize("size", [250, 256, 257, 300])
@pytest.mark.parametrize("blank", ["n", " "])
def test_long_names_do_not_depend_on_the_cut(size: int, blank: str) -> None:
    name = blank * size + "edit"
    for text in (
        f"<tool_call><function={name}></function></tool_call>",
        f'<tool_call>{{"name": "{name}"}}</tool_call>',
        f'<tool_call>{{"{name}": 1, "name": "edit"}}</tool_call>',
        tagged(f"<parameter={name}>\n5\n</parameter>"),
        tagged(f"<parameter=path>\na\n<parameter={name}>\n5\n</parameter>"),
        f"[TOOL_CALLS]{name}[ARGS]{{}}",
    ):
        for dialect in (QWEN, HERMES, MISTRAL):
            whole, pieces = routed(text, dialect, []), routed(text, dialect)
            assert whole.content == pieces.content
            assert [c.arguments for c in whole.tool_calls] == [c.arguments for c in pieces.tool_calls]


@pytest.mark.parametrize(
    ("name", "dialect"),
    [("tiny", QWEN), ("thinking", HERMES), ("headers", LLAMA), ("inst", MISTRAL_LIST), ("smollm2", GENERIC)],
)
def test_the_dialect_is_seen_from_the_template(name: str, dialect: Dialect) -> None:
    assert dialect_of(TEMPLATES[name]) is dialect


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_forced_opening_is_the_beginning_of_a_call(dialect: Dialect) -> None:
    named = dialect.forced_opening(["edit"])
    rest = "</function>" if dialect is QWEN else '{"line": 5}'
    assert [call[0] for call in calls(named + rest, dialect)] == ["edit"]
    assert named.startswith(dialect.forced_opening(["edit", "other"]).rstrip(" "))
