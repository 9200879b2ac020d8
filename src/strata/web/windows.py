"""Windows that show the same conversation share it, so that none works on an older state of it.

A browser's store keeps one record for a conversation. Were each window to change a copy of its own, the last
one to save would remove what the others said.
"""

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from strata.web.conversation import Conversation


class Window(Protocol):
    """What shows a conversation."""

    conversation: Conversation


W = TypeVar("W", bound=Window)


class Windows(Generic[W]):
    """All windows of a server."""

    def __init__(self) -> None:
        self._windows: list[W] = []

    def add(self, window: W) -> None:
        """A window has been opened."""
        self._windows.append(window)

    def remove(self, window: W) -> None:
        """It has been closed."""
        self._windows.remove(window)

    def showing(self, conversation_id: str, but: W | None = None) -> Iterator[W]:
        """The windows that show a conversation, without one that need not be told."""
        for window in list(self._windows):
            if window is not but and window.conversation.id == conversation_id:
                yield window
