"""Thinking and answer come apart the same way however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serve.reasoning import CLOSE, OPEN, ReasoningSplitter

FRAGMENTS = st.lists(st.sampled_from([OPEN, CLOSE, "\n", "<", "</", "think>", "a", "é ", " "]), max_size=12)


def expected(text: str, opened: bool) -> tuple[str, str]:
    """What the two parts are, said of the whole text at once."""
    if not opened:
        if not text.lstrip().startswith(OPEN):
            return "", text
        text = text.lstrip()[len(OPEN) :]
    reasoning, _, content = text.partition(CLOSE)
    return reasoning.strip("\n"), content.lstrip("\n")


@given(fragments=FRAGMENTS, cuts=st.lists(st.integers(0, 60)), opened=st.booleans())
def test_any_cut_gives_the_same_parts(fragments: list[str], cuts: list[int], opened: bool) -> None:
    text = "".join(fragments)
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    splitter = ReasoningSplitter(opened)
    splits = [splitter.push(text[a:b]) for a, b in pairwise(borders)]
    splits.append(splitter.finish())
    reasoning = "".join(split.reasoning for split in splits)
    content = "".join(split.content for split in splits)
    assert (reasoning, content) == expected(text, opened)
    if content:
        assert text[splitter.content_start : splitter.content_end] == content


@pytest.mark.parametrize("text", ["<b>", "1 < 2", "<thin ice", "\n\nplain"])
def test_a_bare_bracket_is_not_held(text: str) -> None:
    """CASES 13: what can no longer become a tag goes out at once."""
    assert ReasoningSplitter(opened=False).push(text).content == text


def test_thinking_streams() -> None:
    splitter = ReasoningSplitter(opened=True)
    assert splitter.push("\nI see <").reasoning == "I see "
    assert splitter.push("b>").reasoning == "<b>"
