"""A model's thinking, told apart from its answer while both arrive as one text."""

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Split:
    """A piece of text, divided. Where both parts hold text, the reasoning came first."""

    reasoning: str = ""
    content: str = ""


class ReasoningSplitter:
    """Divides a text into the thinking at its beginning and the answer after it.

    The text thinks if the prompt has opened a think block or if it begins with `<think>` (after white space);
    it does so up to the first `</think>`, or to the end without one. Line ends next to the two tags belong to
    neither part. A later `<think>` is text like any other.

    What might still become a tag is held back, so the pieces joined do not depend on how the text was cut.

    Args:
        opened: the prompt ends inside a think block.

    Attributes:
        content_start: where the answer begins, in characters of the whole text; None while it has not.
        content_end: up to where the text was given out, likewise.
    """

    def __init__(self, opened: bool):
        self._state = "thinking" if opened else "start"
        self._trim = opened  # line ends at the beginning of the part are dropped
        self._pending = ""
        self._num_taken = 0
        self.content_start: int | None = None

    @property
    def content_end(self) -> int:
        return self._num_taken - len(self._pending)

    def push(self, text: str) -> Split:
        """Take text and return what of it, and of text held back before, may be sent."""
        return self._take(text, final=False)

    def finish(self) -> Split:
        """Return what was held back, once no text will follow."""
        return self._take("", final=True)

    def _take(self, text: str, final: bool) -> Split:
        self._pending += text
        self._num_taken += len(text)
        if self._state == "start":
            self._begin(final)
        reasoning = self._think(final) if self._state == "thinking" else ""
        return Split(reasoning, self._answer() if self._state == "content" else "")

    def _begin(self, final: bool) -> None:
        """Decide by the first characters whether the text thinks."""
        head = self._pending.lstrip()
        if head.startswith(OPEN):
            self._state, self._trim, self._pending = "thinking", True, head[len(OPEN) :]
        elif final or not OPEN.startswith(head):
            self._state = "content"

    def _think(self, final: bool) -> str:
        if self._trim:
            self._pending = self._pending.lstrip("\n")
            self._trim = not self._pending
        at = self._pending.find(CLOSE)
        if at >= 0:
            reasoning, self._pending = self._pending[:at].rstrip("\n"), self._pending[at + len(CLOSE) :]
            self._state, self._trim = "content", True
            return reasoning
        end = len(self._pending) if final else _may_close_from(self._pending)
        reasoning, self._pending = self._pending[:end], self._pending[end:]
        return reasoning.rstrip("\n") if final else reasoning

    def _answer(self) -> str:
        if self._trim:
            self._pending = self._pending.lstrip("\n")
            self._trim = not self._pending
        if self._pending and self.content_start is None:
            self.content_start = self.content_end
        content, self._pending = self._pending, ""
        return content


def _may_close_from(text: str) -> int:
    """Where the end of `text` begins that more text may turn into line ends and `</think>`."""
    size = next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)
    return len(text[: len(text) - size].rstrip("\n"))
