"""Where readers of tool calls write what they find."""

import secrets
import string
from collections.abc import Callable

from strata.serve.arguments import Tools
from strata.serve.deltas import ContentDelta, Delta, ToolArgumentsDelta, ToolCallEnd, ToolCallStart

_ALPHANUMERIC = string.ascii_letters + string.digits


def new_call_id(size: int | None = None) -> str:
    """A name for a call that no other call has; of letters and digits alone where a size is given."""
    if size is None:
        return f"call_{secrets.token_hex(12)}"
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(size))


class CallWriter:
    """Turns calls into deltas.

    Args:
        tools: those that the request declares.
        new_id: names a call.
        emit: takes the deltas.
        begin: called before the first delta of a call; False if there may be none.
        max_calls: most calls of the answer; None for any number.

    Attributes:
        declared_only: begin no call of a function that is not declared.
        num_started: calls begun.
        num_complete: calls that ended complete.
        open: a call has begun and not ended.
    """

    def __init__(
        self,
        tools: Tools,
        new_id: Callable[[], str],
        emit: Callable[[Delta], None],
        begin: Callable[[], bool],
        max_calls: int | None = None,
    ):
        self.tools = tools
        self.declared_only = False
        self.num_started = self.num_complete = 0
        self.open = False
        self._stray = ""
        self._new_id, self._emit, self._begin = new_id, emit, begin
        self._max_calls = max_calls

    @property
    def full(self) -> bool:
        """There may be no further call."""
        return self.num_started == self._max_calls and not self.open

    def start(self, name: str) -> bool:
        """Begin a call; False if this is none, so that what was read is text."""
        if self.full or (self.declared_only and name not in self.tools) or not self._begin():
            return False
        self._emit(ToolCallStart(self.num_started, self._new_id(), name))
        self.num_started += 1
        self.open = True
        return True

    def arguments(self, text: str) -> None:
        """More JSON text of the arguments."""
        if text:
            self._emit(ToolArgumentsDelta(self.num_started - 1, text))

    def stray(self, text: str) -> None:
        """Text inside the call that belongs to nothing in it; it becomes content behind the call."""
        self._stray += text

    def end(self, complete: bool) -> None:
        """End the call."""
        self._emit(ToolCallEnd(self.num_started - 1, complete))
        self.num_complete += complete
        self.open = False
        if self._stray.strip():
            self._emit(ContentDelta(self._stray))
        self._stray = ""
