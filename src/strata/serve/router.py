"""The stream router: an answer's text becomes thinking, content and tool calls while it arrives.

It is one pass over one text. What it gives out depends on the text alone, not on how that was cut, and
nothing that it gives out is ever taken back: what may still become something else waits. So a stream and a
whole answer are the same message.

- Thinking is what stands in a think block at the beginning. It goes on to its closing tag, or to the end of
  the answer without one; a later block is content.
- A call begins at a marker of the dialect, if what follows it is one; otherwise the marker is content.
  White space before a call, and between and behind calls, is dropped.
- What stands inside thinking is no call: models think aloud about calls. Only where the model ends its answer
  with calls and never closed its thinking are they taken for meant, see `_stranded`.
- Stop strings are looked for in the content.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from strata.serve.arguments import Tools
from strata.serve.callwriter import CallWriter, new_call_id
from strata.serve.cursor import Cursor, Reader, accept, may_begin, skip
from strata.serve.deltas import (
    ContentDelta,
    Delta,
    End,
    Reason,
    ReasoningDelta,
    ToolCallStart,
    joined,
)
from strata.serve.dialects import Dialect, read_marked
from strata.serve.stops import StopFinder

MAX_STRANDED = 16  # places in unclosed thinking that are looked at for calls


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """What a model writes around its thinking."""

    open: str = "<think>"
    close: str = "</think>"


@dataclass(frozen=True, slots=True)
class Calls:
    """The tool calls that an answer may hold.

    Args:
        dialect: how they are written.
        tools: what is declared.
        max_calls: the answer ends after so many; None for any number.
    """

    dialect: Dialect
    tools: Tools
    max_calls: int | None = None


class Router:
    """Routes one answer.

    Args:
        think: the model's think tags; None where all text is content.
        opened: the prompt ends inside a think block.
        by_token: the closing tag is a token of its own, and only that token closes a block (see `push`),
            unless the model has spelled the opening tag out: then it spells the closing one out as well.
        calls: None where tool calls are content.
        stops: stop strings.

    Attributes:
        thinking: it is inside a think block.
        content: parts of the text that were given out as content, as (begin, end) in characters.
    """

    def __init__(
        self,
        think: ThinkTags | None = None,
        *,
        opened: bool = False,
        by_token: bool = False,
        calls: Calls | None = None,
        stops: Iterable[str] = (),
    ):
        self.thinking = opened and think is not None
        self.content: list[tuple[int, int]] = []
        self._think, self._by_token, self._calls = think, by_token, calls
        self._token_opens = False
        self._cursor = Cursor()
        self._tags: list[int] = []  # where closing tags that are tokens begin
        self._stops = StopFinder(stops)
        self._thoughts: list[str] = []
        self._out: list[Delta] = []
        self._writer: CallWriter | None = None
        if calls is not None:
            new_id = partial(new_call_id, calls.dialect.id_size)
            self._writer = CallWriter(
                calls.tools, new_id, self._out.append, self._begin_call, calls.max_calls
            )
        self._steps = self._run()

    @property
    def done(self) -> bool:
        """The answer is over, whatever the model writes: by a stop string, or as it has all its calls."""
        return self._stops.stopped is not None or (self._writer is not None and self._writer.full)

    @property
    def settled(self) -> int:
        """Characters of the text of which it is decided what they are."""
        return self._cursor.settled - self._stops.held

    def push(self, text: str, opens: bool = False, closes: bool = False) -> list[Delta]:
        """Take more text.

        Args:
            text: goes on from the text before.
            opens: it ends in the opening think tag, which the model wrote as one token.
            closes: it ends in the closing think tag, in the same way.
        """
        if self.done:
            return []
        self._token_opens |= opens
        if closes and self._think:
            arrived = self._cursor.position + len(self._cursor.text) + len(text)
            self._tags.append(arrived - len(self._think.close))
        self._cursor.text += text
        return self._advance()

    def finish(self, reason: Reason) -> list[Delta]:
        """The last deltas, once no text will follow; the very last one is an `End`.

        Args:
            reason: "stop", "length" or "repetition": why the model writes no more.
        """
        self._cursor.ended, self._cursor.cut = True, reason != "stop"
        deltas = [] if self.done else self._advance()
        if self.thinking and reason == "stop" and (calls := self._stranded()):
            return [*deltas, *calls, End("tool_calls")]
        return [*deltas, self._end(reason)]

    def _end(self, reason: Reason) -> End:
        if self._stops.stopped is not None:
            return End("stop", self._stops.stopped)
        num_started, num_complete = 0, 0
        if self._writer is not None:
            num_started, num_complete = self._writer.num_started, self._writer.num_complete
        if num_started and (reason == "stop" or self.done):
            reason = "tool_calls"
        if self.thinking:
            return End(reason, unfinished="reasoning")
        return End(reason, unfinished="tool_call" if num_complete < num_started else None)

    def _advance(self) -> list[Delta]:
        next(self._steps, None)
        deltas, self._out[:] = joined(self._out), []
        return deltas

    # --- the states, in their order -----------------------------------------------------------------

    def _run(self) -> Reader[None]:
        if self._think is not None:
            yield from self._read_thinking(self._think)
        if self._calls is not None and self._writer is not None:
            yield from self._read_content_and_calls(self._calls.dialect, self._writer)
        while not self.done:
            self._give(len(self._cursor.text))
            if self._cursor.ended:
                self._release()
                break
            yield

    def _read_thinking(self, tags: ThinkTags) -> Reader[None]:
        cursor = self._cursor
        # Some models open once more what the prompt has opened.
        if (yield from accept(cursor, tags.open)):
            self._by_token &= self.thinking or self._token_opens
            self.thinking = True
        if not self.thinking:
            return
        yield from skip(cursor, "\n")
        while (at := self._closes_at(tags.close)) < 0:
            tail = len(cursor.text) if self._by_token else may_begin(cursor.text, (tags.close,))
            self._reason(len(cursor.text[:tail].rstrip("\n")))
            if cursor.ended:
                self._reason(len(cursor.text.rstrip("\n")))
                cursor.take(len(cursor.text))
                return
            yield
        self._reason(len(cursor.text[:at].rstrip("\n")))
        cursor.take(cursor.text.index(tags.close) + len(tags.close))
        self.thinking = False
        # Some models close once more what was closed for them.
        yield from accept(cursor, tags.close)
        yield from skip(cursor, "\n")

    def _closes_at(self, close: str) -> int:
        """Where the closing tag begins in the text to be read, or -1."""
        if not self._by_token:
            return self._cursor.text.find(close)
        return self._tags[0] - self._cursor.position if self._tags else -1

    def _read_content_and_calls(self, dialect: Dialect, writer: CallWriter) -> Reader[None]:
        cursor = self._cursor
        markers = re.compile("|".join(map(re.escape, dialect.markers)))
        bare, scanned = dialect.bare, 0  # without a marker, a call comes first or behind another
        while not self.done:
            found = None if bare else markers.search(cursor.text, scanned)
            if found:
                self._give(len(cursor.text[: found.start()].rstrip()))
                scanned = cursor.text.index(found[0]) + 1
            if found or bare:
                called = yield from self._read_calls(dialect, writer, found[0] if found else "")
                bare, scanned = called and dialect.bare, 0 if called else scanned
            elif cursor.ended:
                break
            else:
                self._give(len(cursor.text[: may_begin(cursor.text, dialect.markers, scanned)].rstrip()))
                scanned = 0
                yield
        if writer.num_started and not cursor.text.strip():
            cursor.take(len(cursor.text))

    def _read_calls(self, dialect: Dialect, writer: CallWriter, marker: str) -> Reader[bool]:
        """Read the calls that a marker begins, if there are any; else it stays to be read as text."""
        cursor, num_started = self._cursor, writer.num_started
        cursor.save()
        cursor.take(cursor.text.find(marker) + len(marker))
        yield from read_marked(cursor, writer, dialect, marker)
        if writer.num_started == num_started:
            cursor.restore()
            return False
        if not self.content:
            yield from skip(cursor)
        return True

    def _begin_call(self) -> bool:
        """A call begins here: what was content before it is so for good."""
        self._release()
        if self._stops.stopped is not None:
            return False
        self._cursor.commit()
        return True

    def _stranded(self) -> list[Delta]:
        """Calls that end an answer whose thinking was never closed.

        They begin a line, outside of a code block, are of declared functions, and nothing is left beside
        them. The model waits for their results then: it has ended its turn.
        """
        if self._calls is None:
            return []
        text = "".join(self._thoughts)
        dialect = self._calls.dialect
        markers = "|".join(re.escape(m) for m in dialect.markers if m not in dialect.unsure)
        for found in list(re.finditer(f"^(?:{markers})", text, re.MULTILINE))[-MAX_STRANDED:]:
            router = Router(calls=self._calls)
            deltas = [*router.push(text[found.start() :]), *router.finish("stop")]
            meant = deltas.pop() == End("tool_calls") and all(map(self._is_declared, deltas))
            if meant and text.count("```", 0, found.start()) % 2 == 0:
                return deltas
        return []

    def _is_declared(self, delta: Delta) -> bool:
        assert self._calls is not None
        if isinstance(delta, ToolCallStart):
            return delta.name in self._calls.tools
        return not isinstance(delta, ContentDelta)

    # --- what is given out --------------------------------------------------------------------------

    def _reason(self, size: int) -> None:
        if text := self._cursor.take(size):
            self._out.append(ReasoningDelta(text))
            if self._calls is not None:
                self._thoughts.append(text)

    def _give(self, size: int) -> None:
        """Give out the next characters as content, as far as no stop string can begin in them."""
        begin = self.settled
        self._content(begin, self._stops.push(self._cursor.take(size)))

    def _release(self) -> None:
        """Give out what was withheld for a stop string, now that none can go on from it."""
        begin = self.settled
        self._content(begin, self._stops.finish())

    def _content(self, begin: int, text: str) -> None:
        if not text:
            return
        self._out.append(ContentDelta(text))
        end = begin + len(text)
        if self.content and self.content[-1][1] == begin:
            begin = self.content.pop()[0]
        self.content.append((begin, end))
