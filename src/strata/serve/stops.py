"""Text from a stream of tokens: bytes become characters, and nothing of a stop string is ever let out."""

import codecs
from bisect import bisect_left
from collections.abc import Callable, Iterable


class TextStream:
    """Turns token ids into the text that is safe to send, piece by piece.

    The pieces joined are the text of all tokens, cut before the first stop string in it. That holds however
    the bytes are spread over the tokens, because a character is let out only when it is whole and when no
    stop string can begin at or before it any more. Bytes that are not UTF-8 become U+FFFD, never an error.

    Args:
        token_bytes: the bytes of a token id, e.g. `Tokenizer.token_bytes`.
        stops: the stop strings; empty ones are ignored.

    Attributes:
        stopped: the stop string that ended the text, or None. Where two begin at one place, the shorter,
            which is whole first.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stops: Iterable[str] = ()):
        self._token_bytes = token_bytes
        self._stops = sorted({stop for stop in stops if stop}, key=len)
        self._by_text = sorted(self._stops)  # those that begin alike stand together
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""
        self.stopped: str | None = None

    @property
    def held(self) -> int:
        """Characters that are decoded and withheld, because a stop string may have begun in them."""
        return len(self._pending)

    def push(self, token_id: int) -> str:
        """Take one token and return the text that may now be sent; empty once a stop string was met."""
        if self.stopped is not None:
            return ""
        self._pending += self._decoder.decode(self._token_bytes(token_id))
        return self._release(self._first_open())

    def finish(self) -> str:
        """Return what was withheld, once no token will follow; an unfinished character becomes U+FFFD."""
        if self.stopped is not None:
            return ""
        self._pending += self._decoder.decode(b"", final=True)
        return self._release(len(self._pending))

    def _release(self, open_from: int) -> str:
        """Let out the text before the first stop string, or else before `open_from`."""
        found = [(at, stop) for stop in self._stops if (at := self._pending.find(stop)) >= 0]
        # `min` keeps the first of equals, and the shortest stop comes first.
        at, stop = min(found, key=lambda match: match[0], default=(len(self._pending), None))
        if stop is not None and at <= open_from:
            self.stopped, text, self._pending = stop, self._pending[:at], ""
            return text
        # An earlier, longer stop string may still be under way: a match behind it has to wait for it.
        text, self._pending = self._pending[:open_from], self._pending[open_from:]
        return text

    def _first_open(self) -> int:
        """Where the longest end of the pending text that may grow into a stop string begins."""
        size = len(self._pending)
        longest = len(self._stops[-1]) - 1 if self._stops else 0
        for start in range(max(0, size - longest), size):
            tail = self._pending[start:]
            first = bisect_left(self._by_text, tail)
            if first < len(self._by_text) and self._by_text[first].startswith(tail):
                return start
        return size
