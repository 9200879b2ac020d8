"""Chat completions through the official client: texts, usage, stops, thinking, log-probabilities."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from api.conftest import LINES, SEEDS

ASK = [{"role": "user", "content": "Say it."}]
TEXTS = {
    "hello": "Hello, world!",
    "thinking": "It is 4.",
    "closes": "Only the end</think>\n\nshows.",
    "unclosed": "",
    "unicode": "€👩‍👧ß",
    "invalid": "a\ufffdb\ufffdc\ufffd",
    "lines": "a\nb\r\ndata: c\n\n",
}


def ask(client: openai.OpenAI, line: str, **fields):
    return client.chat.completions.create(model="parrot", messages=ASK, seed=SEEDS[line], **fields)


def stream(client: openai.OpenAI, line: str, **fields) -> list:
    return list(ask(client, line, stream=True, **fields))


def content(chunks: list) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def reasoning(chunks: list) -> str:
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    return "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)


@pytest.mark.parametrize("line", TEXTS)
def test_stream_and_whole_answer_are_equal(client: openai.OpenAI, line: str) -> None:
    """CASES 36, 40, 44, 45: one path for both, invalid UTF-8 replaced, deltas concatenate to the text."""
    whole = ask(client, line).choices[0]
    chunks = stream(client, line)
    assert whole.message.content == content(chunks) == TEXTS[line]
    assert whole.finish_reason == chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1


def test_thinking_is_set_apart(client: openai.OpenAI) -> None:
    """CASES 37, 38: a model that starts to think by itself."""
    message = ask(client, "thinking").choices[0].message
    assert (message.reasoning_content, message.content) == ("Let me see.", "It is 4.")
    assert message.reasoning == message.reasoning_content
    assert reasoning(stream(client, "thinking")) == "Let me see."


def test_prompt_that_opens_the_think_block(client: openai.OpenAI) -> None:
    """CASES 33: only the closing tag is in the answer."""
    extra = {"chat_template_kwargs": {"enable_thinking": True}}
    message = ask(client, "closes", extra_body=extra).choices[0].message
    assert (message.reasoning_content, message.content) == ("Only the end", "shows.")
    assert reasoning(stream(client, "closes", extra_body={"enable_thinking": True})) == "Only the end"


def test_thinking_without_end(client: openai.OpenAI) -> None:
    """CASES 32: it stays thinking, and finish_reason tells why it ended."""
    choice = ask(client, "unclosed", max_tokens=2).choices[0]
    assert (choice.message.reasoning_content, choice.message.content) == ("for ever", "")
    assert choice.finish_reason == "length"


def test_usage(client: openai.OpenAI) -> None:
    first = ask(client, "hello").usage
    assert first.completion_tokens == 5
    assert first.total_tokens == first.prompt_tokens + 5
    again = stream(client, "hello", stream_options={"include_usage": True})
    assert again[-1].choices == []
    assert all(chunk.usage is None for chunk in again[:-1])
    usage = again[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (first.prompt_tokens, 5)
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


@pytest.mark.parametrize("stop", ["STOP", ["", "STOP"], ["never", *(f"s{i}" for i in range(40)), "STOP"]])
def test_stop_over_tokens(client: openai.OpenAI, stop: str | list[str]) -> None:
    """CASES 46, 49, 50: never sent, found across tokens, empty strings ignored, any number."""
    whole = ask(client, "stops", stop=stop)
    chunks = stream(client, "stops", stop=stop, stream_options={"include_usage": True})
    assert whole.choices[0].message.content == content(chunks) == "one "
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 2


def test_withheld_text_is_flushed(client: openai.OpenAI) -> None:
    """CASES 48."""
    assert content(stream(client, "part of stop", stop="STOP")) == "one ST"
    assert ask(client, "part of stop", stop="STOP").choices[0].message.content == "one ST"


def test_stop_inside_multibyte_text(client: openai.OpenAI) -> None:
    """CASES 41, 42: the joiner in the emoji is a character of its own."""
    assert content(stream(client, "unicode", stop="\u200d")) == "€👩"


@pytest.mark.parametrize("fields", [{"max_tokens": 2}, {"max_completion_tokens": 2}])
def test_length(client: openai.OpenAI, fields: dict) -> None:
    choice = ask(client, "hello", **fields).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello, ", "length")
    unlimited = ask(client, "hello", **dict.fromkeys(fields, -1)).choices[0]
    assert (unlimited.message.content, unlimited.finish_reason) == (TEXTS["hello"], "stop")


@pytest.mark.parametrize("line", ["hello", "unicode", "invalid", "thinking"])
def test_logprobs_are_aligned(client: openai.OpenAI, line: str) -> None:
    """CASES 81, 82: one entry per token, in streams too, and each travels with its text."""
    entries = ask(client, line, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    pieces = LINES[line] if line != "thinking" else ["It is ", "4."]
    expected = [piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces]
    assert [bytes(entry.bytes) for entry in entries] == expected
    assert all(entry.top_logprobs[0].bytes == entry.bytes for entry in entries)
    streamed = []
    for chunk in stream(client, line, logprobs=True):
        if (choice := chunk.choices[0]).logprobs:
            assert choice.delta.content
            streamed += choice.logprobs.content
    assert [bytes(entry.bytes) for entry in streamed] == expected


def test_logprobs_of_withheld_text_wait(client: openai.OpenAI) -> None:
    """The token that holds part of a stop string is reported with the part that is sent, the others not."""
    chunks = stream(client, "stops", stop="STOP", logprobs=True)
    entries = [entry for c in chunks if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
    assert [entry.token for entry in entries] == ["one ST"]


def test_no_mix_up_between_clients(client: openai.OpenAI) -> None:
    """CASES 140: twelve at once on two lanes."""
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda i: content(stream(client, f"voice {i}")), range(12)))
    assert answers == ["".join(LINES[f"voice {i}"]) for i in range(12)]


def test_history_roles_and_parts(client: openai.OpenAI) -> None:
    """CASES 25, 28: developer messages, part lists, reasoning and tool calls sent back."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    history = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " x?"}]},
        {"role": "assistant", "content": None, "reasoning_content": "look it up", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "assistant", "content": "One.", "refusal": None},
        {"role": "user", "content": "Sure?"},
    ]
    answer = client.chat.completions.create(model="parrot", messages=history, seed=SEEDS["hello"])
    assert answer.choices[0].message.content == TEXTS["hello"]


def test_accepted_fields(client: openai.OpenAI) -> None:
    answer = ask(
        client,
        "hello",
        n=1,
        tools=[],
        user="me",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        response_format={"type": "text"},
        temperature=0,
        top_p=0,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"5": -100},
        verbosity="medium",
        extra_body={"top_k": -1, "min_p": 0.1, "repeat_penalty": 1.1, "ignore_eos": False},
    )
    assert answer.choices[0].message.content == TEXTS["hello"]
