"""The elements that show a conversation: its last messages, and what stands where there are none."""

import asyncio
from collections.abc import Callable
from itertools import takewhile

from nicegui import ui

from strata.serve.backend import Backend
from strata.web.conversation import Conversation, Entry
from strata.web.message import Actions, ModelMessage, UserMessage
from strata.web.runs import Run

SHOWN = 40  # messages; each change of a page costs the browser the more, the more there are in it


class Thread:
    """The last messages of a conversation.

    Args:
        backend: of the server.
        actions: what can be done with messages.
        show_earlier: called when more messages are asked for.

    Attributes:
        element: they are in it.
        views: one for each message that is shown.
    """

    def __init__(self, backend: Backend, actions: Actions, show_earlier: Callable[[], object]):
        self._backend, self._actions, self._show_earlier = backend, actions, show_earlier
        self.views: list[UserMessage | ModelMessage] = []
        self._num_hidden = 0  # messages before them
        self.element = ui.element("div").classes("strata-thread")
        self.element.props('role=log aria-label="Conversation" aria-live=off')

    async def show(self, conversation: Conversation, run: Run | None, num_shown: int = SHOWN) -> None:
        """Show a conversation anew, or so many messages of its end; `run` makes its last one."""
        self.element.clear()
        self.views.clear()
        entries = list(conversation.entries)
        self._num_hidden = max(0, len(entries) - num_shown)
        with self.element:
            if not entries:
                self._welcome()
            elif self._num_hidden:
                button = ui.button("Show earlier messages", on_click=self._show_earlier, color=None)
                button.props("flat no-caps").classes("strata-note")
        for entry in entries[self._num_hidden :]:
            self._add(entry, run)
            await asyncio.sleep(0)  # the server has others to serve meanwhile
        self._offer_results(run)

    async def update(self, conversation: Conversation, run: Run | None) -> None:
        """Make the messages what the conversation has become; those that are the same stay as they are."""
        num_current = len(self.views) - len(self.outdated(conversation))
        if not num_current:
            await self.show(conversation, run)
            return
        for view in self.views[num_current:]:
            view.article.delete()
        del self.views[num_current:]
        for entry in conversation.entries[self._num_hidden + num_current :]:
            self._add(entry, run)
        self._offer_results(run)

    def outdated(self, conversation: Conversation) -> list[UserMessage | ModelMessage]:
        """The views of messages that the conversation has no more."""
        pairs = zip(self.views, conversation.entries[self._num_hidden :], strict=False)
        return self.views[sum(1 for _ in takewhile(lambda pair: pair[0].entry is pair[1], pairs)) :]

    def _add(self, entry: Entry, run: Run | None) -> None:
        with self.element:
            if entry.role == "user":
                self.views.append(UserMessage(entry, self._actions))
            else:
                its_run = run if run is not None and run.entry is entry and not run.done else None
                self.views.append(ModelMessage(entry, self._actions, its_run))

    def _offer_results(self, run: Run | None) -> None:
        """Let the last answer take the results of its calls, and no other."""
        for view in self.views:
            if isinstance(view, ModelMessage):
                view.show_calls(view is self.views[-1] and run is None)

    def _welcome(self) -> None:
        with ui.element("div").classes("strata-welcome"):
            ui.label(self._backend.name).classes("strata-welcome-name")
            label = ui.label().classes("strata-note").props("role=status")

            async def look() -> None:
                state = await self._backend.health()
                label.text = welcome_text(state)
                if state["status"] == "ok":
                    timer.deactivate()

            timer = ui.timer(0.5, look)


def welcome_text(state: dict) -> str:
    """What a new conversation says of the server; `state` is `Backend.state`'s."""
    if state["status"] == "ok":
        return "What would you like to know?"
    if state["status"] == "loading":
        return f"loading the model: {state['progress']}" if "progress" in state else "loading the model"
    note = f"; {state['note']}" if "note" in state else ""  # one who asks finds it at work again
    return f"{state['reason']}{note}" if note else f"the model cannot be asked now: {state['reason']}"
