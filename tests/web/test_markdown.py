"""Markdown to HTML: safe for any text, and the same in one piece as while it grows."""

import re
import time
from html.parser import HTMLParser

import pytest
from helpers.hostile import HOSTILE
from hypothesis import example, given
from hypothesis import strategies as st

from strata.web.markdown import GrowingMarkdown, render

TEXT_TAGS = {"a", "br", "code", "del", "em", "s", "span", "strong", "button"}
BLOCK_TAGS = {"blockquote", "div", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "ul"}
TAGS = TEXT_TAGS | BLOCK_TAGS | {"table", "tbody", "td", "th", "thead", "tr"}
ATTRIBUTES = {"class", "dir", "href", "title", "start", "style", "tabindex", "type"}
P = '<p dir="auto">'
PIECES = [
    "\n",
    "\n\n",
    "# ",
    "- ",
    "1. ",
    "> ",
    "```",
    "```py\n",
    "`",
    "**",
    "*",
    "| a | b |\n|--|--|\n",
    "---",
]
PIECES += [
    "    ",
    "[x](",
    ")",
    "[1]: https://a.example\n",
    "[x][1]",
    "<script>",
    "javascript:",
    "word ",
    "ß",
    "\r\n",
]


class Checker(HTMLParser):
    """Fails on anything that is not plain formatting."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        for name, value in attrs:
            assert name in ATTRIBUTES
            if name == "href":
                assert not value or re.match("https?://|mailto:", value, re.IGNORECASE)
            if name == "style":
                assert re.fullmatch("text-align:(left|right|center)", value or "")


def pieces_of_markdown() -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join)


@given(pieces_of_markdown())
@example(HOSTILE)
def test_html_is_plain_formatting(text: str) -> None:
    Checker().feed(render(text))


@given(pieces_of_markdown(), st.randoms(use_true_random=False))
@example("# a\n\nb\n\n- c\n\n- d\n\n```py\nx = 1\n```\ne\n", None)
@example("| a | b |\n|--|--|\n**", None)
@example("a\n#b\n\nc\n***d**\n\ne\n```f`\n\ng\n| h |\n|--|i\n", None)
@example("a\r\rb\x0b\x0c\u2028c\n\nd", None)
def test_growing_text_gives_the_same_html(text: str, random: object) -> None:
    growing, length = GrowingMarkdown(), 0
    while length < len(text):
        length += 1 if random is None else random.randint(1, 8)
        growing.grow(text[:length])
    if not growing.has_references:  # those that follow their use count at the end alone, see `GrowingText`
        assert "".join(growing.blocks) + growing.last == render(text)


def test_blocks_that_are_over_stay() -> None:
    growing = GrowingMarkdown()
    growing.grow("one\n\ntwo\n\nthree")
    assert growing.blocks == [f"{P}one</p>\n"]
    first = growing.blocks[0]
    growing.grow("one\n\ntwo\n\nthree\n\nfour")
    assert growing.blocks[0] is first
    assert growing.last == f"{P}three</p>\n{P}four</p>\n"
    assert not growing.grow("one\n\ntwo\n\nthree\n\nfour")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("~~x~~", f"{P}<s>x</s></p>\n"),
        ("<b>x</b>", f"{P}&lt;b&gt;x&lt;/b&gt;</p>\n"),
        ("![cat](https://a.example/c.png)", f'{P}<a href="https://a.example/c.png">cat</a></p>\n'),
        ("[x](/logout)", f"{P}[x](/logout)</p>\n"),
    ],
)
def test_what_becomes_of(text: str, html: str) -> None:
    assert render(text) == html


def test_code_is_coloured_and_can_be_copied() -> None:
    html = render("```python\ndef f(): pass\n```\n")
    assert '<span class="k">def</span>' in html
    assert 'class="strata-copy"' in html
    assert "<span" not in render("```unheard-of\ndef f(): pass\n```\n").partition("<pre")[2]


@pytest.mark.parametrize("unit", ["![", "[", "[a](b", "*a ", "_a", "`", "> ", "|a", "<a "])
def test_time_is_bounded_for_hostile_text(unit: str) -> None:
    begin = time.process_time()
    render(unit * 50_000)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("nested", ["> " * 30, "- " * 30, "- > " * 30])
def test_nothing_is_left_out_of_deep_nesting(nested: str) -> None:
    text = f"*First*\n\n{nested}inside\n\n*last*\n"
    html = render(text)
    assert "<em>First</em>" in html and "inside" in html and "last" in html
    assert nested.replace(">", "&gt;") in html


def test_a_quote_runs_as_its_first_letters_do() -> None:
    """`dir=auto` heeds no letters of parts that have a direction of their own."""
    html = render("> שלום\n>\n> hello\n")
    assert html.count("dir=") == 1 and '<blockquote dir="auto">' in html
