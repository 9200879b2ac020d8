"""Pieces of an answer: text and log-probabilities stay together however the bytes are spread."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from strata.engine.messages import Token
from strata.serve.answer import Answer, Piece, TokenText
from strata.serve.arguments import Tools
from strata.serve.deltas import End, Message
from strata.serve.dialects import QWEN
from strata.serve.router import Calls, Router, ThinkTags

TEXT = "a€é👩b STOP c</think>\n\nx"


def run(chunks: list[bytes], router: Router) -> list[Piece]:
    answer = Answer(lambda token_id: chunks[token_id], router)
    pieces = [answer.take([Token(i, -1.0)]) for i in range(len(chunks))]
    return [*pieces, answer.finish("stop")]


def message(*pieces: Piece) -> Message:
    collected = Message()
    for piece in pieces:
        collected.add(piece.deltas)
    return collected


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(raw), *(at % len(raw) for at in cuts)})
    return [raw[a:b] for a, b in pairwise(borders)]


@given(cuts=st.lists(st.integers(0, 100)), stops=st.sampled_from([[], ["STOP"], ["€"], ["zz", "x"]]))
def test_every_token_of_the_text_once_and_in_order(cuts: list[int], stops: list[str]) -> None:
    chunks = cut(TEXT.encode(), cuts)
    pieces = run(chunks, Router(stops=stops))
    text = message(*pieces).content
    assert text == (TEXT.split(stops[-1])[0] if stops else TEXT)
    tokens: list[TokenText] = [item for piece in pieces for item in piece.tokens]
    assert [item.token.id for item in tokens] == list(range(len(tokens)))
    raw = b"".join(chunks[: len(tokens)])
    assert raw.startswith(text.encode())
    # The last one reported is needed for the text: without it, some of the text is missing.
    assert not tokens or len(b"".join(chunks[: len(tokens) - 1])) < len(text.encode())
    for item in tokens:
        before = b"".join(chunks[: item.token.id])
        assert item.offset == len(before.decode(errors="ignore"))


@given(cuts=st.lists(st.integers(0, 100)))
def test_a_token_never_leaves_before_its_text(cuts: list[int]) -> None:
    chunks = cut(TEXT.encode(), cuts)
    text, num_bytes = "", 0
    for piece in run(chunks, Router(stops=["STOX"])):
        text += message(piece).content
        for item in piece.tokens:
            num_bytes += len(chunks[item.token.id])
            # Up to three bytes of a character may be sent before the token that completes it.
            assert num_bytes <= len(text.encode()) + 3


@given(cuts=st.lists(st.integers(0, 100)))
@example(cuts=[6, 7])  # one token ends a character, the thinking, and the answer
def test_thinking_has_no_logprobs(cuts: list[int]) -> None:
    chunks = cut(TEXT.encode(), cuts)
    pieces = run(chunks, Router(ThinkTags(), opened=True))
    assert message(*pieces).reasoning == "a€é👩b STOP c"
    assert message(*pieces).content == "x"
    (item,) = [item for piece in pieces for item in piece.tokens]
    assert chunks[item.token.id].endswith(b"x")
    assert item.offset == 0


@given(cuts=st.lists(st.integers(0, 200)))
def test_calls_have_no_logprobs(cuts: list[int]) -> None:
    """Tokens with a part in the text before or behind a call are reported, and no others."""
    parts = ["Hi é.", "\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>", "\nok"]
    chunks = cut("".join(parts).encode(), cuts)
    pieces = run(chunks, Router(calls=Calls(QWEN, Tools([{"name": "f"}]))))
    assert message(*pieces).content == parts[0] + parts[2]
    content, end = [], 0
    for part in parts:
        content.append((end, end := end + len(part.encode())))
    del content[1]
    expected, begin = [], 0
    for i, chunk in enumerate(chunks):
        if any(begin < stop and start < begin + len(chunk) for start, stop in content):
            expected.append(i)
        begin += len(chunk)
    reported = [item.token.id for piece in pieces for item in piece.tokens]
    assert reported == expected


def test_a_character_over_tokens_is_reported_whole() -> None:
    pieces = run([b"\xe2", b"\x82", b"\xac"], Router())
    contents = [(message(piece).content, len(piece.tokens)) for piece in pieces]
    assert contents == [("", 0), ("", 0), ("€", 3), ("", 0)]


def test_tokens_after_a_stop_string_are_dropped() -> None:
    chunks = [b"a", b"b", b"c"]
    answer = Answer(lambda token_id: chunks[token_id], Router(stops=["b"]))
    piece = answer.take([Token(0, -1.0), Token(1, -1.0), Token(2, -1.0)])
    assert (message(piece).content, [item.token.id for item in piece.tokens]) == ("a", [0])
    assert (answer.num_tokens, answer.stopped) == (2, True)
    last = answer.finish("length")
    assert (list(last.deltas), last.tokens) == ([End("stop", "b")], [])
