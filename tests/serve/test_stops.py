"""Streaming text: however bytes fall into tokens, one text comes out, cut before the first stop string."""

import codecs
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.serve.stops import StopFinder


def stream(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[list[str], StopFinder]:
    """Push the text of each piece; what came out for each and at the end, and the finder."""
    text, decoder = StopFinder(stops), codecs.getincrementaldecoder("utf-8")("replace")
    deltas = [text.push(decoder.decode(piece)) for piece in pieces]
    return [*deltas, text.push(decoder.decode(b"", True)) + text.finish()], text


def cut(text: str, stops: Sequence[str]) -> str:
    return text[: min((at for stop in stops if stop and (at := text.find(stop)) >= 0), default=len(text))]


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


LETTERS = "abé👍"


@given(
    data=st.one_of(st.text(LETTERS, max_size=30).map(str.encode), st.binary(max_size=20)),
    stops=st.lists(st.text(LETTERS, max_size=5), max_size=20),
    cuts=st.lists(st.integers(0, 200), max_size=30),
)
@example(data=b"abc", stops=["abcd", "bc"], cuts=[1, 2])
@example(data=b"aab", stops=["ab", "aaa"], cuts=[1, 2])
def test_any_split_gives_the_same_text(data: bytes, stops: list[str], cuts: list[int]) -> None:
    whole = data.decode("utf-8", "replace")
    deltas, text = stream(split(data, cuts), stops)
    assert "".join(deltas) == cut(whole, stops)
    assert (text.stopped is not None) == (cut(whole, stops) != whole)
    if text.stopped:
        assert whole.startswith(text.stopped, len(cut(whole, stops)))
    assert text.held == 0


@given(
    data=st.text(LETTERS, max_size=20),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=5),
)
def test_no_more_is_withheld_than_may_become_a_stop_string(data: str, stops: list[str]) -> None:
    text = StopFinder(stops)
    shown = ""
    for i in range(len(data)):
        shown += text.push(data[i])
        if text.stopped:
            return
        seen = data[: i + 1]
        # A shorter stop string may lie within the text that a longer one holds back.
        held = [k for k in range(1, i + 2) if any(stop.startswith(seen[-k:]) for stop in stops)]
        assert text.held == max(held, default=0)
        assert len(shown) + text.held == len(seen)


def test_a_character_comes_out_when_it_is_whole() -> None:
    assert stream([b"\xf0\x9f", b"\x91", b"\x8d", b"!"], [])[0] == ["", "", "👍", "!", ""]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert stream([b"a\xff", b"b\xf0\x9f"], [])[0] == ["a\ufffd", "b", "\ufffd"]
    assert stream([b"\xf0\x9f", b"x"], [])[0] == ["", "\ufffdx", ""]


def test_a_stop_string_over_many_tokens_is_never_shown() -> None:
    deltas, text = stream([b"Hi ", b"\n", b"\nUs", b"er", b": no"], ["\n\nUser:"])
    assert deltas == ["Hi ", "", "", "", "", ""]
    assert text.stopped == "\n\nUser:"


def test_a_stop_string_inside_a_character_cuts_on_characters() -> None:
    deltas, text = stream(["👍".encode()[:2], "👍".encode()[2:] + b"x"], ["x"])
    assert deltas == ["", "👍", ""]
    assert text.stopped == "x"


def test_withheld_text_is_shown_at_the_end() -> None:
    assert stream([b"a <", b"|im"], ["<|im_end|>"])[0] == ["a ", "", "<|im"]


def test_withheld_text_is_shown_as_soon_as_no_stop_can_follow() -> None:
    assert stream([b"1 <", b" 2"], ["<|im_end|>"])[0] == ["1 ", "< 2", ""]


def test_the_earliest_stop_wins_even_if_it_is_whole_later() -> None:
    assert stream([b"xab", b"c", b"d", b"e"], ["abcd", "bc"])[0] == ["x", "", "", "", ""]
    deltas, text = stream([b"xab", b"c", b"x"], ["abcd", "bc"])
    assert deltas == ["x", "", "a", ""]
    assert text.stopped == "bc"


@pytest.mark.parametrize("stops", [[""], [], ["", ""]])
def test_empty_stop_strings_do_nothing(stops: list[str]) -> None:
    deltas, text = stream([b"a", b"b"], stops)
    assert deltas == ["a", "b", ""]
    assert text.stopped is None


def test_nothing_comes_after_a_stop() -> None:
    deltas, text = stream([b"a.b", b"c", b"d"], ["."])
    assert deltas == ["a", "", "", ""]
    assert text.held == 0


def test_very_many_stops_do_not_slow_a_token_down() -> None:
    """Text is made in the server's event loop: what takes long there holds up everybody."""
    pieces = [b"once upon a time "] * 20
    start = time.perf_counter()
    deltas, text = stream(pieces, [f"stop number {i}" for i in range(100_000)])
    assert "".join(deltas) == "once upon a time " * 20
    assert text.stopped is None
    assert time.perf_counter() - start < 3
