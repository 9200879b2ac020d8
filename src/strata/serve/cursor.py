"""Text that arrives in pieces, read from the front by generators that yield where they need more of it.

What a generator does depends on the text alone, never on how it was cut, if it decides nothing before it has
seen all that the decision depends on. So each of the readers below either knows, or yields.
"""

import re
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Reader = Generator[None, None, T]  # yields to be resumed when there is more text, or none will follow


class Cursor:
    """A text and how far it is read.

    Attributes:
        text: what has arrived and is not read.
        position: characters read.
        ended: nothing more will arrive.
        cut: that is because a limit was reached, not because the model had done.
    """

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.ended = False
        self.cut = False
        self._saved: list[str] | None = None
        self._saved_from = 0

    def take(self, size: int) -> str:
        """Read some characters."""
        taken, self.text = self.text[:size], self.text[size:]
        self.position += len(taken)
        if self._saved is not None:
            self._saved.append(taken)
        return taken

    def put_back(self, text: str) -> None:
        """Undo a `take` of this text, the last that was read."""
        self.text = text + self.text
        self.position -= len(text)
        if self._saved is not None:
            self._saved = ["".join(self._saved)[: -len(text)]]

    def save(self) -> None:
        """Keep what is read from here on, until `restore` or `commit`."""
        self._saved, self._saved_from = [], self.position

    def restore(self) -> None:
        """Go back to where `save` was called."""
        assert self._saved is not None
        self.text = "".join(self._saved) + self.text
        self.position, self._saved = self._saved_from, None

    def commit(self) -> None:
        """What was read stays read."""
        self._saved = None

    @property
    def settled(self) -> int:
        """Characters that are read for good."""
        return self.position if self._saved is None else self._saved_from


def accept(cursor: Cursor, *options: str) -> Reader[str | None]:
    """Read the option that comes next, with the white space before it; None, and nothing read, if none does.

    No option may be the beginning of another.
    """
    while True:
        rest = cursor.text.lstrip()
        for option in options:
            if rest.startswith(option):
                cursor.take(len(cursor.text) - len(rest) + len(option))
                return option
        if cursor.ended or not any(option.startswith(rest) for option in options):
            return None
        yield


def name_before(cursor: Cursor, *ends: str, limit: int = 256) -> Reader[str | None]:
    """Read a name and the end behind it; None if another line or tag begins first, or it is too long."""
    pattern = re.compile("|".join(map(re.escape, [*ends, "\n", "<"])))
    while True:
        match = pattern.search(cursor.text)
        if match is not None:
            # An end may consist of several characters, but begins with none that a name may hold.
            name = cursor.text[: match.start()].strip()
            if match[0] not in ends or not name or match.start() > limit:
                return None
            cursor.take(match.end())
            return name
        # The end itself may have begun within the limit.
        if cursor.ended or len(cursor.text) >= limit + max(map(len, ends)):
            return None
        yield


def skip(cursor: Cursor, characters: str | None = None) -> Reader[None]:
    """Read past white space, or past these characters."""
    while True:
        cursor.take(len(cursor.text) - len(cursor.text.lstrip(characters)))
        if cursor.text or cursor.ended:
            return
        yield


def may_begin(text: str, options: tuple[str, ...], start: int = 0) -> int:
    """Where the end of `text` begins that more text may turn into one of the options; its length if none."""
    longest = max(map(len, options), default=1)
    firsts = {option[0] for option in options}
    for at in range(max(start, len(text) - longest + 1), len(text)):
        if text[at] in firsts and any(option.startswith(text[at:]) for option in options):
            return at
    return len(text)
