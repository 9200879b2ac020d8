"""A model's format: what its tokens and its template make of a turn, and of the model's answer to it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.engine.messages import Finished, SamplingParams, Token
from strata.errors import RequestError, StrataError
from strata.formats.tokenizer import Tokenizer
from strata.options import Options
from strata.serve.chat import EFFORT_BUDGETS, WRAP_UP, ChatFormat, Thinking, Turn
from strata.serve.deltas import Message
from strata.serve.job import Job
from strata.serve.templates import ChatTemplate
from tests.helpers.chat_templates import TEMPLATES
from tests.helpers.vocabularies import CONTROL, USER_DEFINED, MetadataOnly, byte_letters, byte_level_metadata

USER = {"role": "user", "content": "u"}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "number": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "edit", "parameters": SCHEMA}}
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>")
CHAT = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")
LETTERS = {letter: i for i, letter in enumerate(byte_letters().values())}
CALLING = ("tiny", "thinking", "headers", "inst")


def chat_format(name: str = "tiny", kind: int = USER_DEFINED, markup: tuple[str, ...] = MARKUP) -> ChatFormat:
    special = dict.fromkeys(CHAT, CONTROL) | dict.fromkeys(markup, kind)
    tokenizer = Tokenizer.from_checkpoint(
        MetadataOnly(byte_level_metadata(LETTERS, [], "qwen2", special, bos_token_id=258, eos_token_id=259))
    )
    return ChatFormat(tokenizer, ChatTemplate.for_tokenizer(tokenizer, TEMPLATES.get(name, name)))


def turn(**fields: Any) -> Turn:
    return Turn(messages=[USER], **fields)


def job(of: ChatFormat, asked: Turn, **sampling: Any) -> Job:
    prompt = of.tokenizer.encode_rendered(of.render(asked).pieces)
    sampled = SamplingParams(stop_ids=[257], **sampling)
    return Job(0, "id", prompt, sampled, of.answer(asked, prompt), "messages", of.steering(asked))


def answered(of: ChatFormat, asked: Turn, text: str) -> Message:
    """The message of an answer that the model's own tokens spell."""
    answer = job(of, asked).answer
    message = Message()
    for token_id in of.tokenizer.encode(text, special=True):
        message.add(answer.take([Token(token_id)]).deltas)
    message.add(answer.finish("stop").deltas)
    return message


# Calls as the template shows them are calls as the router reads them.
FORMATS = {
    (name, kind): chat_format(name, kind)
    for name in (*CALLING, "smollm2")
    for kind in (CONTROL, USER_DEFINED)
}
TEXT = st.text("ab<>/\"'\\\n {}[]é👩", max_size=12).filter(lambda text: "<" not in text or "/" not in text)


@given(text=TEXT, number=st.integers(), form=st.sampled_from(list(FORMATS)))
def test_a_call_in_the_history_is_read_as_the_same_call(
    text: str, number: int, form: tuple[str, int]
) -> None:
    of, arguments = FORMATS[form], {"text": text, "number": number}
    called = [{"id": "abcdefghi", "type": "function", "function": {"name": "edit", "arguments": arguments}}]
    asked = turn(tools=[TOOL])
    before = of.render(asked).text
    after = of.template.render(
        [USER, {"role": "assistant", "content": "", "tool_calls": called}],
        [TOOL],
        add_generation_prompt=False,
    ).text
    message = answered(of, asked, after[len(_common(before, after)) :])
    ((name, written),) = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    assert (name, written) == ("edit", arguments)


def _common(a: str, b: str) -> str:
    size = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:size]


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
@pytest.mark.parametrize("name", [*CALLING, "smollm2"])
def test_a_forced_call_is_one_whatever_its_markup_is(name: str, kind: int) -> None:
    """Markup that is control tokens, which are no text elsewhere, is text to the router."""
    of = chat_format(name, kind)
    asked = turn(tools=[TOOL], forced=["edit"], thinking=Thinking(enabled=False))
    forced = job(of, asked)
    message = Message()
    message.add(forced.begin())
    rest = '{"number": 5}' if name != "tiny" else "<parameter=number>5</parameter></function>"
    ids = of.tokenizer.encode(rest, special=True)
    message.add(forced.answer.take([Token(token_id) for token_id in ids]).deltas)
    message.add(forced.answer.finish("stop").deltas)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("edit", '{"number": 5}')]
    assert forced.request().prompt[: len(forced.prompt)] == forced.prompt
    assert len(forced.request().prompt) > len(forced.prompt)


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
def test_think_tags_are_text_to_the_router(kind: int) -> None:
    of = chat_format("thinking", kind)
    message = answered(of, turn(), "<think>\nhm\n</think>\n\nyes")
    assert (message.reasoning, message.content) == ("hm", "yes")


def test_other_think_tags_are_seen_from_the_template() -> None:
    of = chat_format(
        "{% if add_generation_prompt %}{{ '[THINK]' }}{% endif %}{# [/THINK] tools #}", markup=()
    )
    message = answered(of, turn(), "hm[/THINK]yes")
    assert (message.reasoning, message.content) == ("hm", "yes")


# Thinking.
SHOWS = "{# </think> tools #}{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }}"


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        (Thinking(), "  "),
        (Thinking(enabled=True), "True True "),
        (Thinking(effort="none"), "False False "),
        (Thinking(effort="low"), "True True low"),
        (Thinking(effort="xhigh"), "True True high"),
        (Thinking(budget=0), "False False "),
        (Thinking(budget=5), "True True "),
        (Thinking(enabled=False, effort="high"), "False False high"),
    ],
)
def test_what_the_template_hears_of_thinking(thinking: Thinking, shown: str) -> None:
    assert chat_format(SHOWS).render(turn(thinking=thinking)).text == shown
    own = turn(thinking=thinking, variables={"enable_thinking": "own"})
    assert chat_format(SHOWS).render(own).text.startswith("own")


def test_an_effort_is_a_budget_where_the_template_knows_none() -> None:
    budget = EFFORT_BUDGETS["low"]
    assert chat_format().steering(turn(thinking=Thinking(effort="low"))).budget == budget
    assert chat_format(SHOWS).steering(turn(thinking=Thinking(effort="low"))).budget is None
    assert chat_format().steering(turn(thinking=Thinking(effort="low", budget=7))).budget == 7
    assert chat_format().steering(turn(thinking=Thinking(effort="high"))).budget is None
    assert (
        chat_format("smollm2").steering(turn(thinking=Thinking(budget=7))).budget is None
    )  # it cannot think


PRESERVES = """{# </think> tools #}{%- for m in messages -%}
{%- if m.role == 'assistant' and preserve_thinking -%}<think>{{ m.reasoning_content }}</think>{%- endif -%}
{{ m.content }};{%- endfor -%}"""
TALK = [USER, {"role": "assistant", "content": "a", "reasoning_content": "hm"}, USER]


def test_thinking_of_earlier_turns_is_preserved_where_the_template_can() -> None:
    """CASES 29: by the request, or for all by the server; then a prompt goes on where the last turn ended."""

    def text(of: ChatFormat, **thinking: bool) -> str:
        return of.render(Turn(messages=TALK, thinking=Thinking(**thinking))).text

    of = chat_format(PRESERVES)
    assert text(of) == text(of, preserve=False) == "u;a;u;"
    assert text(of, preserve=True) == "u;<think>hm</think>a;u;"
    always = ChatFormat(of.tokenizer, of.template, preserves_thinking=True)
    assert text(always) == "u;<think>hm</think>a;u;"
    assert text(always, preserve=False) == "u;a;u;"


def test_a_template_that_cannot_preserve_thinking_is_told_of() -> None:
    of = chat_format()
    assert of.render(turn(thinking=Thinking(preserve=False))).text == of.render(turn()).text
    with pytest.raises(RequestError, match="preserve_thinking: this model's template") as caught:
        of.render(turn(thinking=Thinking(preserve=True)))
    assert caught.value.field == "preserve_thinking"
    with pytest.raises(StrataError, match="--preserve-thinking: this model's template"):
        ChatFormat(of.tokenizer, of.template, preserves_thinking=True)


@pytest.mark.parametrize("effort", [*EFFORT_BUDGETS, "high", "max"])
def test_an_effort_that_is_a_budget_leaves_the_prompt_as_it_is(effort: str) -> None:
    """CASES 458: what a template says of it stands where prompts begin."""
    of = chat_format(SHOWS)
    budgets = ChatFormat(of.tokenizer, of.template, effort_is_budget=True)
    asked = turn(thinking=Thinking(effort=effort))
    assert budgets.render(asked).text == "True True "
    assert budgets.steering(asked).budget == EFFORT_BUDGETS.get(effort)
    assert of.render(asked).text != "True True " and of.steering(asked).budget is None


def test_the_server_s_options_reach_the_format() -> None:
    tokenizer = chat_format().tokenizer
    tokenizer.chat_template = PRESERVES + SHOWS
    options = Options(preserve_thinking=True, effort_as="budget")
    of = ChatFormat.for_tokenizer(tokenizer, options)
    asked = Turn(messages=TALK, thinking=Thinking(effort="low"))
    assert of.render(asked).text == "u;<think>hm</think>a;u;True True "


def ended(reason: str) -> Finished:
    return Finished("id", reason, 1, 0, 1, 0.0, 0.0, 0.0)


def spelled(of: ChatFormat, ids: list[int]) -> str:
    return of.tokenizer.decode_bytes(ids, special=True).decode()


@pytest.mark.parametrize("by_token", [True, False])
def test_a_budget_run_by_run(by_token: bool) -> None:
    """The engine is told to stop at the budget and at the closing tag; then it may write the rest."""
    of = chat_format(markup=MARKUP if by_token else ())
    thinking = job(of, turn(thinking=Thinking(budget=4)), max_tokens=900)
    assert thinking.begin() == []
    first = thinking.request()
    assert (first.sampling.max_tokens, len(first.sampling.stop_ids)) == (4, 1 + by_token)
    thinking.answer.take([Token(token_id) for token_id in of.tokenizer.encode("hmmm")])
    written = Message()
    written.add(thinking.go_on(ended("length"), 10_000))
    assert written.reasoning == WRAP_UP.rstrip("\n")
    second = thinking.request()
    assert (first.keeps_lane, first.after, second.keeps_lane, second.after) == (True, None, False, first.id)
    assert spelled(of, second.prompt).endswith(f"<think>\nhmmm{WRAP_UP}</think>\n\n")
    assert second.sampling.max_tokens == 900 - thinking.answer.num_tokens
    assert second.sampling.stop_ids == [257]
    assert second.id != first.id
    thinking.answer.take([Token(token_id) for token_id in of.tokenizer.encode("ok")])
    assert thinking.go_on(ended("stop"), 10_000) is None


def test_thinking_that_ends_before_its_budget() -> None:
    of = chat_format()
    thinking = job(of, turn(thinking=Thinking(budget=40)))
    thinking.begin()
    thinking.answer.take([Token(token_id) for token_id in of.tokenizer.encode("hm\n")])
    assert thinking.go_on(ended("stop"), 10_000) == []
    assert spelled(of, thinking.request().prompt).endswith("<think>\nhm\n</think>\n\n")
    assert thinking.request().sampling.max_tokens is None


@pytest.mark.parametrize(
    ("reason", "limit", "context"), [("cancelled", None, 10_000), ("length", 4, 10_000), ("length", None, 60)]
)
def test_what_ends_the_answer_ends_the_thinking(reason: str, limit: int | None, context: int) -> None:
    of = chat_format()
    thinking = job(of, turn(thinking=Thinking(budget=4)), max_tokens=limit)
    thinking.begin()
    thinking.answer.take([Token(token_id) for token_id in of.tokenizer.encode("hmmm")])
    assert thinking.go_on(ended(reason), context) is None


@pytest.mark.parametrize(("markup", "ignore_eos"), [((), False), (MARKUP, True)])
def test_a_forced_call_comes_first_where_the_engine_cannot_stop_behind_thinking(
    markup: tuple[str, ...], ignore_eos: bool
) -> None:
    of = chat_format(markup=markup)
    asked = turn(tools=[TOOL], forced=["edit"], thinking=Thinking(enabled=True))
    forced = job(of, asked, ignore_eos=ignore_eos)
    message = Message()
    message.add(forced.begin())
    opened = "<think>\n</think>\n\n<tool_call>\n<function=edit>\n"
    assert spelled(of, forced.request().prompt).endswith(opened)
    message.add(forced.answer.take([Token(token_id) for token_id in of.tokenizer.encode("<")]).deltas)
    assert [call.name for call in message.tool_calls] == ["edit"]
