"""Pieces of an answer: text and log-probabilities stay together however the bytes are spread."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from strata.engine.messages import Token
from strata.serve.answer import Answer, Piece, TokenText
from strata.serve.reasoning import ReasoningSplitter

TEXT = "a€é👩b STOP c</think>\n\nx"


def run(chunks: list[bytes], stops: list[str], splitter: ReasoningSplitter | None = None) -> list[Piece]:
    answer = Answer(lambda token_id: chunks[token_id], stops, splitter)
    pieces = [answer.take([Token(i, -1.0)]) for i in range(len(chunks))]
    return [*pieces, answer.finish()]


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(raw), *(at % len(raw) for at in cuts)})
    return [raw[a:b] for a, b in pairwise(borders)]


@given(cuts=st.lists(st.integers(0, 100)), stops=st.sampled_from([[], ["STOP"], ["€"], ["zz", "x"]]))
def test_every_token_of_the_text_once_and_in_order(cuts: list[int], stops: list[str]) -> None:
    chunks = cut(TEXT.encode(), cuts)
    pieces = run(chunks, stops)
    text = "".join(piece.content for piece in pieces)
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
    for piece in run(chunks, ["STOX"]):
        text += piece.content
        for item in piece.tokens:
            num_bytes += len(chunks[item.token.id])
            # Up to three bytes of a character may be sent before the token that completes it.
            assert num_bytes <= len(text.encode()) + 3


@given(cuts=st.lists(st.integers(0, 100)))
@example(cuts=[6, 7])  # one token ends a character, the thinking, and the answer
def test_thinking_has_no_logprobs(cuts: list[int]) -> None:
    chunks = cut(TEXT.encode(), cuts)
    pieces = run(chunks, [], ReasoningSplitter(opened=True))
    assert "".join(piece.reasoning for piece in pieces) == "a€é👩b STOP c"
    assert "".join(piece.content for piece in pieces) == "x"
    (item,) = [item for piece in pieces for item in piece.tokens]
    assert chunks[item.token.id].endswith(b"x")
    assert item.offset == 0


def test_a_character_over_tokens_is_reported_whole() -> None:
    pieces = run([b"\xe2", b"\x82", b"\xac"], [])
    assert [(piece.content, len(piece.tokens)) for piece in pieces] == [("", 0), ("", 0), ("€", 3), ("", 0)]


def test_tokens_after_a_stop_string_are_dropped() -> None:
    chunks = [b"a", b"b", b"c"]
    answer = Answer(lambda token_id: chunks[token_id], ["b"])
    piece = answer.take([Token(0, -1.0), Token(1, -1.0), Token(2, -1.0)])
    assert (piece.content, [item.token.id for item in piece.tokens]) == ("a", [0])
    assert (answer.num_tokens, answer.stopped, bool(answer.finish())) == (2, True, False)
