"""The stream router: one message however the text is cut, in order, and nothing ever taken back."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serve.arguments import Tools
from strata.serve.deltas import (
    ContentDelta,
    Delta,
    End,
    Message,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from strata.serve.dialects import DIALECTS, HERMES, QWEN, Dialect
from strata.serve.router import Calls, Router, ThinkTags

OPEN, CLOSE = "<think>", "</think>"
WEATHER = {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": ["object", "null"]}}
TOOLS = Tools([{"name": "weather", "parameters": {"type": "object", "properties": WEATHER}}, {"name": "now"}])
QWEN_CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
HERMES_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 3}}\n</tool_call>'
BARE_CALL = '{"name": "now", "parameters": {}}'
ARGUMENTS = '{"city": "Köln", "days": 3}'


def router(dialect: Dialect | None = QWEN, **options) -> Router:
    max_calls = options.pop("max_calls", None)
    calls = Calls(dialect, TOOLS, max_calls) if dialect else None
    return Router(ThinkTags(), calls=calls, **options)


def route(text: str, cuts: list[int] = (), reason: str = "stop", **options) -> list[Delta]:
    """All deltas of a text that comes in pieces."""
    of = router(**options)
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    deltas = [delta for a, b in pairwise(borders) for delta in of.push(text[a:b])]
    return [*deltas, *of.finish(reason)]


def message(deltas: list[Delta]) -> Message:
    collected = Message()
    collected.add(deltas)
    for call in collected.tool_calls:
        call.id = ""
    return collected


def parts(deltas: list[Delta]) -> tuple[str, str, list[tuple[str, str, bool]], End | None]:
    m = message(deltas)
    return m.reasoning, m.content, [(c.name, c.arguments, c.complete) for c in m.tool_calls], m.end


def check_order(deltas: list[Delta]) -> None:
    """The promises of `deltas.py` on the order of deltas."""
    calls, open_, last = 0, False, None
    for delta in deltas:
        assert not isinstance(last, End), "something follows the end"
        match delta:
            case ReasoningDelta(text):
                assert text
                assert last is None or isinstance(last, ReasoningDelta)
            case ContentDelta(text):
                assert text
                assert not open_
            case ToolCallStart(index, id, name):
                assert not open_
                assert (index, bool(id), bool(name)) == (calls, True, True)
                open_, calls = True, calls + 1
            case ToolArgumentsDelta(index, text):
                assert text
                assert open_
                assert index == calls - 1
            case ToolCallEnd(index):
                assert open_
                assert index == calls - 1
                open_ = False
        last = delta
    assert isinstance(last, End)
    assert not open_


FRAGMENTS = [
    *(OPEN, CLOSE, QWEN_CALL, HERMES_CALL, BARE_CALL, "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "; "),
    *("<tool_call>", "</tool_call>", "<function=", "<function=now>", "</function>", "<parameter=", "```\n"),
    *(
        "<parameter=city>",
        "</parameter>",
        "</para",
        "\n",
        "\n\n",
        " ",
        "<",
        "{",
        "}",
        '"',
        "\\",
        "[",
        "]",
        ":",
    ),
    *('{"name": "now"', '"arguments": ', "a", "é", "👩", "STOP", "ST", "null", "5", ">", "\x00"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=40)


@given(
    text=TEXTS,
    cuts=CUTS,
    dialect=st.sampled_from([None, *DIALECTS]),
    opened=st.booleans(),
    stops=st.sampled_from([[], ["STOP"], ["\n\n", "a<", "aé"]]),
    reason=st.sampled_from(["stop", "length"]),
    max_calls=st.sampled_from([None, 1]),
)
def test_any_cut_gives_the_same_message_in_order(text: str, cuts: list[int], reason: str, **options) -> None:
    """CASES 2, 8, 12, 36, 44: one path, append only; whatever the model writes, the stream is sound."""
    at_once, in_pieces = route(text, [], reason, **options), route(text, cuts, reason, **options)
    by_character = route(text, range(len(text)), reason, **options)
    for deltas in (at_once, in_pieces, by_character):
        check_order(deltas)
    assert message(at_once) == message(in_pieces) == message(by_character)


@given(text=TEXTS, dialect=st.sampled_from([None, *DIALECTS]), opened=st.booleans())
def test_no_text_is_lost_where_there_is_no_call(text: str, dialect: Dialect | None, opened: bool) -> None:
    """CASES 14, 48: what is not a call is given back as it was written."""
    m = message(route(text, dialect=dialect, opened=opened))
    if not m.tool_calls:
        assert [c for c in m.reasoning + m.content if c not in " \n"] == [
            c for c in _without_tags(text, opened) if c not in " \n"
        ]


def _without_tags(text: str, opened: bool) -> str:
    """The text without the tags of a think block at its beginning."""
    if text.lstrip().startswith(OPEN):
        text = text.lstrip().removeprefix(OPEN)
    elif not opened:
        return text
    reasoning, tag, rest = text.partition(CLOSE)
    return reasoning + (rest.lstrip().removeprefix(CLOSE) if tag else "")


@given(
    fragments=st.lists(
        st.sampled_from([OPEN, CLOSE, "\n", "<", "</", "think>", "a", "é ", " "]), max_size=12
    ),
    cuts=CUTS,
    opened=st.booleans(),
)
def test_thinking_and_answer(fragments: list[str], cuts: list[int], opened: bool) -> None:
    text = "".join(fragments)
    reasoning, content = "", text
    if opened or text.lstrip().startswith(OPEN):
        text = text.lstrip()[len(OPEN) :] if text.lstrip().startswith(OPEN) else text
        reasoning, _, content = text.partition(CLOSE)
        content = content.lstrip().removeprefix(CLOSE) if content.lstrip().startswith(CLOSE) else content
        reasoning, content = reasoning.strip("\n"), content.lstrip("\n")
    assert parts(route("".join(fragments), cuts, dialect=None, opened=opened))[:2] == (reasoning, content)


@pytest.mark.parametrize("text", ["<b>", "1 < 2", "<thin ice", "\n\nplain", "{a", '{"a"a', "[1]"])
def test_a_bare_bracket_is_not_held(text: str) -> None:
    """CASES 13: what can no longer become a tag or a call goes out at once."""
    for dialect in (None, *DIALECTS):
        assert router(dialect).push(text) == [ContentDelta(text)]


def test_thinking_streams() -> None:
    of = router(None, opened=True)
    assert of.push("\nI see <") == [ReasoningDelta("I see ")]
    assert of.push("b>") == [ReasoningDelta("<b>")]


def test_a_quoted_closing_tag_is_thinking_where_the_tag_is_a_token() -> None:
    """CASES 34."""
    of = router(None, opened=True, by_token=True)
    assert of.push("I write </think> to end") == [ReasoningDelta("I write </think> to end")]
    assert of.push("\n</think>", closes=True) == []
    assert of.push("\n\nDone") == [ContentDelta("Done")]
    assert of.finish("stop") == [End("stop")]


def test_a_block_whose_opening_tag_is_spelled_out_is_closed_by_one_that_is() -> None:
    """Under a grammar the tags' own tokens cannot be written, and a model that wants to think spells them."""
    spelled = router(None, by_token=True).push("<think>hm</think>\n\nDone")
    assert spelled == [ReasoningDelta("hm"), ContentDelta("Done")]
    of = router(None, by_token=True)
    assert of.push("<think>", opens=True) == []
    assert of.push("a </think> b") == [ReasoningDelta("a </think> b")]


@pytest.mark.parametrize("opening", ["<think>\n", "\n<think>", ""])
def test_a_block_that_is_opened_twice_is_one(opening: str) -> None:
    """CASES 37: the prompt may have opened it already."""
    assert parts(route(f"{opening}hm\n</think>\n\nDone", opened=True))[:2] == ("hm", "Done")


def test_a_closing_tag_that_comes_twice_is_no_content() -> None:
    assert parts(route("hm</think>\n\n</think>\n\nDone", opened=True))[:2] == ("hm", "Done")


def test_unfinished_thinking_is_reported() -> None:
    """CASES 32, 1053."""
    for reason in ("stop", "length"):
        end = End(reason, unfinished="reasoning")
        assert parts(route("for ever", reason=reason, opened=True)) == ("for ever", "", [], end)


def test_stop_strings_are_looked_for_in_the_content_only() -> None:
    text = f"<think>\nSTOP?\n</think>\n\n{QWEN_CALL.replace('Köln', 'STOP')}\nok STOP no"
    reasoning, content, calls, end = parts(route(text, stops=["STOP"]))
    assert (reasoning, content, calls) == (
        "STOP?",
        "ok ",
        [("weather", ARGUMENTS.replace("Köln", "STOP"), True)],
    )
    assert end == End("stop", "STOP")


def test_a_stop_string_does_not_go_on_over_a_call() -> None:
    assert parts(route(f"ST{QWEN_CALL}OP", stops=["STOP"]))[1] == "STOP"
    assert parts(route(f"ST{QWEN_CALL}", stops=["STOP", "T"]))[1:3] == ("S", [])


# Calls among text.
CALLS = [
    ("", QWEN_CALL, ""),
    ("Let me look.\n\n", QWEN_CALL, "\n"),
    ("", QWEN_CALL, "\nDone."),
    ("Let me look. ", QWEN_CALL, "\n\nDone."),
]


@pytest.mark.parametrize(("before", "call", "after"), CALLS)
def test_text_before_and_after_calls(before: str, call: str, after: str) -> None:
    """CASES 22; white space next to calls is nobody's."""
    reasoning, content, calls, end = parts(route(f"<think>\nhm\n</think>\n\n{before}{call}{after}"))
    assert reasoning == "hm"
    assert content == (before.rstrip() + after if before and after.strip() else (before + after).strip())
    assert calls == [("weather", ARGUMENTS, True)]
    assert end == End("tool_calls")


@pytest.mark.parametrize("between", ["", "\n", "\n\n \n"])
@pytest.mark.parametrize(("dialect", "call"), [(QWEN, QWEN_CALL), (HERMES, HERMES_CALL), (HERMES, QWEN_CALL)])
def test_calls_side_by_side(dialect: Dialect, call: str, between: str) -> None:
    deltas = route(call + between + call, dialect=dialect)
    assert parts(deltas)[1:] == ("", [("weather", ARGUMENTS, True)] * 2, End("tool_calls"))
    ids = [delta.id for delta in deltas if isinstance(delta, ToolCallStart)]
    assert len(set(ids)) == 2


def test_one_call_only() -> None:
    """`parallel_tool_calls: false`: the answer is over as soon as the call is."""
    of = router(max_calls=1)
    deltas = of.push(QWEN_CALL.removesuffix("\n</tool_call>"))
    assert isinstance(deltas[-1], ToolCallEnd)
    assert of.done
    assert of.push(QWEN_CALL) == []
    assert of.finish("length") == [End("tool_calls")]


@pytest.mark.parametrize(
    "text",
    [
        "The tag <tool_call> begins a call.",
        "Write `<tool_call>` or `<function=`.",
        "<tool_call></tool_call>",
        "<tool_call>\nI forgot\n</tool_call>",
        '<tool_call>{"nme": "weather"}</tool_call>',
        "<tool_call>{'name': 'weather'}</tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<function=unknown>\n</function>",
        "x <tool_cal",
        "<tool_call>\n<func",
        '<tool_call>\n{"name": "weat',
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    """CASES 10, 14, 20, 2026: mentions, empty and broken ones, given back as they are."""
    assert parts(route(text)) == ("", text, [], End("stop"))


@pytest.mark.parametrize("dialect", [QWEN, HERMES])
def test_a_call_of_an_unknown_function_is_the_clients(dialect: Dialect) -> None:
    """CASES 17."""
    call = HERMES_CALL if dialect is HERMES else QWEN_CALL
    ((name, arguments, complete),) = parts(route(call.replace("weather", "sunrise"), dialect=dialect))[2]
    assert (name, complete) == ("sunrise", True)
    assert arguments == ARGUMENTS


def test_without_tools_calls_are_content() -> None:
    assert parts(route(QWEN_CALL, dialect=None))[1] == QWEN_CALL


# Calls in thinking that was never closed.
STRANDED = f"I should look.\n\n{QWEN_CALL}"


@pytest.mark.parametrize("tail", ["", "\n", f"\n{QWEN_CALL}"])
def test_calls_that_end_unclosed_thinking_are_meant(tail: str) -> None:
    """CASES 525, 804, 970, 980."""
    reasoning, content, calls, end = parts(route(STRANDED + tail, opened=True))
    assert (reasoning, content) == ((STRANDED + tail).strip("\n"), "")
    assert calls == [("weather", ARGUMENTS, True)] * (1 + ("tool_call" in tail))
    assert end == End("tool_calls")


@pytest.mark.parametrize(
    "text",
    [
        STRANDED + "\nOr not?",  # it goes on
        "```\n" + QWEN_CALL,  # an example
        "Like this: " + QWEN_CALL,  # a mention
        "  " + QWEN_CALL,
        "> " + QWEN_CALL,
        STRANDED.replace("weather", "sunrise"),  # not declared
        STRANDED.removesuffix("</parameter>\n</function>\n</tool_call>"),  # broken off
        "\n<tool_call></tool_call>",
        "\n<tool_call>",
        "\n<function=",
    ],
)
def test_mentions_in_unclosed_thinking_are_not(text: str) -> None:
    reasoning, content, calls, end = parts(route(text, opened=True))
    assert (reasoning, content, calls) == (text.strip("\n"), "", [])
    assert end == End("stop", unfinished="reasoning")


def test_calls_in_thinking_are_thinking() -> None:
    for text in (STRANDED + "\n</think>\n\nNo.", QWEN_CALL + "</think>No."):
        assert parts(route(text, opened=True))[1:3] == ("No.", [])
    assert parts(route(STRANDED, reason="length", opened=True))[2:] == (
        [],
        End("length", unfinished="reasoning"),
    )
