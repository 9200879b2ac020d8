"""Markdown to HTML that is safe wherever the text comes from, in blocks that stay as they are.

The text is a model's, so it is hostile until shown otherwise: HTML in it is shown as text, addresses lead to
https, http and mailto alone, and pictures, which would be fetched, are shown as links. CommonMark 0.31, with
GitHub's tables and strikethrough. Code is coloured by Pygments.
"""

import re
import time
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

# Of Pygments' five hundred languages those that models write; each is code that runs on hostile text.
_LANGUAGE_NAMES = """
    bash c c# c++ cpp cs css cuda diff docker dockerfile go golang haskell html ini java javascript js json
    jsx julia kotlin lua make makefile markdown md perl php powershell ps1 py python r rb ruby rs rust scala
    sh shell sql swift toml ts tsx typescript xml yaml yml zig
"""
_LANGUAGES = frozenset(_LANGUAGE_NAMES.split())
_COLOURED = 20_000  # characters of code, of more than these nobody reads the colours
_COLOURED_LIVE = 2_000  # while it is still growing
_MARKED = 10_000  # characters of one paragraph; in hostile ones the work grows with the square of them
_FORMATTER = HtmlFormatter(nowrap=True)
_DIRECTED = {"paragraph_open", "heading_open", "bullet_list_open", "ordered_list_open", "blockquote_open"}
_NESTING = {"blockquote_open", "list_item_open"}
_DEEPEST = 19  # level at which these have nothing in them; CommonMark's preset goes that far
_SAFE_LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)


class _Renderer(RendererHTML):
    """Fences with a button that copies them, and pictures as links."""

    def fence(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: EnvType) -> str:
        """A block of code; `env["coloured"]` is the most characters that are coloured."""
        token = tokens[i]
        language = token.info.split()[0] if token.info.split() else ""
        return _code(token.content, language, env.get("coloured", _COLOURED))

    def code_block(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: EnvType) -> str:
        """An indented block of code."""
        return _code(tokens[i].content, "", 0)

    def image(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: EnvType) -> str:
        """A picture is named and never fetched."""
        address = str(tokens[i].attrGet("src") or "")
        name = self.renderInlineAsText(tokens[i].children or [], options, env)
        return f'<a href="{escape(address)}">{escape(name or address)}</a>'

    def table_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: EnvType) -> str:
        """Tables scroll by themselves where the window is narrow."""
        return '<div class="strata-table" tabindex="0"><table dir="auto">'

    def table_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: EnvType) -> str:
        """The end of one."""
        return "</table></div>"


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    parser.validateLink = lambda url: _SAFE_LINK.match(url) is not None
    parser.core.ruler.after("block", "depth", _flatten_deepest)
    parser.core.ruler.at("inline", _parse_paragraphs)
    parser.core.ruler.push("direction", _set_directions)
    return parser


def _flatten_deepest(state: StateCore) -> None:
    """Show blocks as they were written that nest so deeply that markdown-it leaves out what is in them."""
    tokens, lines = state.tokens, state.src.split("\n")
    tops = [i for i, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
    state.tokens = []
    for begin, end in pairwise([*tops, len(tokens)]):
        block = tokens[begin:end]
        if any(token.level >= _DEEPEST and token.type in _NESTING for token in block):
            # To the next block's begin: it may have left out lines behind its own, too.
            first, last = block[0].map[0], tokens[end].map[0] if end < len(tokens) else len(lines)
            text = "\n".join(lines[first:last]) + "\n"
            block = [Token("fence", "code", 0, content=text, map=[first, last])]
        state.tokens += block


def _parse_paragraphs(state: StateCore) -> None:
    """markdown-it's rule of this name, but endless paragraphs stay plain text."""
    for token in state.tokens:
        if token.type != "inline":
            continue
        if len(token.content) > _MARKED:
            token.children = [Token("text", "", 0, content=token.content)]
        else:
            state.md.inline.parse(token.content, state.md, state.env, token.children)


def _set_directions(state: StateCore) -> None:
    """Let each block run as its first letters do, whatever the language of the page.

    What is in a quote or list runs as all of it: no letter of a part with its own direction would count.
    """
    for token in state.tokens:
        if token.level == 0 and token.type in _DIRECTED:
            token.attrSet("dir", "auto")


_PARSER = _parser()


def _code(text: str, language: str, coloured: int) -> str:
    body = escape(text)
    if language.lower() in _LANGUAGES and len(text) <= coloured:
        body = highlight(text, get_lexer_by_name(language.lower(), stripnl=False), _FORMATTER)
    return (
        f'<div class="strata-code"><div class="strata-code-head"><span>{escape(language) or "text"}</span>'
        '<button type="button" class="strata-copy">Copy</button></div>'
        f'<pre tabindex="0"><code>{body}</code></pre></div>'
    )


def render(text: str) -> str:
    """The HTML of a whole text."""
    return _PARSER.render(text)


class GrowingMarkdown:
    """The HTML of a text that grows at its end: only its last two blocks are made anew.

    The last one may yet turn out to be none: `#` is a heading until `#x` goes on with the paragraph above it,
    and a table's second line may end in what spoils it. So the block above is not over either.

    Attributes:
        blocks: HTML of the blocks that will not change, in order.
        last: HTML of the others.
        start: of the others in the text.
        cost_s: seconds that the last `grow` took.
    """

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.last = ""
        self.cost_s = 0.0
        self.start = 0
        self._length = 0
        self._references: EnvType = {}

    @property
    def has_references(self) -> bool:
        """Whether a part of the text says where links of other parts lead."""
        return bool(self._references.get("references"))

    def grow(self, text: str) -> bool:
        """Take the text as it is now, which begins with what it was; returns whether anything is new."""
        if len(text) == self._length:
            return False
        begin = time.perf_counter()
        tail = text[self.start :]
        env: EnvType = {**self._references, "coloured": _COLOURED_LIVE}
        tokens = _PARSER.parse(tail, env)
        tops = [i for i, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
        if len(tops) > 2:
            line = tokens[tops[-2]].map[0]
            split = _offset_of_line(tail, line)
            # Now that they will not change they get all their colours.
            self._references = {"references": env.get("references", {})}
            self.blocks.append(_PARSER.render(tail[:split], {**self._references}))
            self.start += split
            tokens = tokens[tops[-2] :]
        self.last = _PARSER.renderer.render(tokens, _PARSER.options, env)
        self._length = len(text)
        self.cost_s = time.perf_counter() - begin
        return True


def _offset_of_line(text: str, line: int) -> int:
    """Where line number `line`, from 0, begins. Lines end as markdown-it ends them."""
    offset = 0
    for match in re.finditer(r"\r\n|\r|\n", text):
        if line == 0:
            break
        line, offset = line - 1, match.end()
    return offset
