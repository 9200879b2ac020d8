"""Stop strings: found wherever a text is cut, and nothing of one is ever let out."""

from bisect import bisect_left
from collections.abc import Iterable


class StopFinder:
    """Lets a text through up to the first stop string in it.

    A part is let out only when no stop string can begin at or before it any more, so what comes out, joined,
    does not depend on how the text was cut.

    Args:
        stops: the stop strings; empty ones are ignored.

    Attributes:
        stopped: the stop string that ended the text, or None. Where two begin at one place, the shorter,
            which is whole first.
    """

    def __init__(self, stops: Iterable[str] = ()):
        self._stops = {stop for stop in stops if stop}
        self._sizes = sorted({len(stop) for stop in self._stops})
        self._by_text = sorted(self._stops)  # those that begin alike stand together
        self._pending = ""
        self.stopped: str | None = None

    @property
    def held(self) -> int:
        """Characters that are withheld, because a stop string may have begun in them."""
        return len(self._pending)

    def push(self, text: str) -> str:
        """Take text and return what may now be sent; empty once a stop string was met."""
        if self.stopped is not None:
            return ""
        if not self._stops:
            return text
        self._pending += text
        return self._release(self._first_open())

    def finish(self) -> str:
        """Return what was withheld, once no text will go on from it."""
        return self._release(len(self._pending))

    def _release(self, open_from: int) -> str:
        """Let out the text before the first stop string, or else before `open_from`."""
        for at in range(min(open_from + 1, len(self._pending))):
            for size in self._sizes:
                if (stop := self._pending[at : at + size]) in self._stops:
                    self.stopped, text, self._pending = stop, self._pending[:at], ""
                    return text
        # An earlier, longer stop string may still be under way: a match behind it has to wait for it.
        text, self._pending = self._pending[:open_from], self._pending[open_from:]
        return text

    def _first_open(self) -> int:
        """Where the longest end of the pending text that may grow into a stop string begins."""
        size = len(self._pending)
        longest = self._sizes[-1] - 1
        for start in range(max(0, size - longest), size):
            tail = self._pending[start:]
            first = bisect_left(self._by_text, tail)
            if first < len(self._by_text) and self._by_text[first].startswith(tail):
                return start
        return size
