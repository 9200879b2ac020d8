"""The page *Chat*: talk with the model, in conversations that the browser keeps."""

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence

from nicegui import background_tasks, ui
from nicegui.events import GenericEventArguments

from strata.errors import StrataError
from strata.serve.backend import Backend
from strata.web import dialogs
from strata.web.conversation import Call, Conversation, Entry, new_id
from strata.web.history import History
from strata.web.message import Actions, ModelMessage, UserMessage
from strata.web.runs import Run, Runs
from strata.web.settings import SettingsDrawer
from strata.web.shell import Page, acting_on, frame, icon_button
from strata.web.store import Store

FRAME_S, SLOWEST_FRAME_S = 0.1, 1.0  # between two looks at an answer under way
SHARE = 0.1  # of the time may go to rendering one: a long block is looked at less often
SHOWN = 40  # messages; each change of a page costs the browser the more, the more there are in it
SAVE_S = 3.0  # between two savings of it


class Chat:
    """One page in one browser.

    Args:
        backend: of the server.
        runs: the answers under way.
    """

    def __init__(self, backend: Backend, runs: Runs):
        self.backend, self.runs = backend, runs
        self.store = Store()
        self.conversation = Conversation()
        self.run: Run | None = None
        self._views: list[UserMessage | ModelMessage] = []  # of the conversation's last entries
        self._following: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()  # held while entries and views come and go
        self._saving = asyncio.Lock()

    # --- elements -----------------------------------------------------------------------------------

    def build(self, start: ui.row) -> None:
        """Make the page's elements; `start` is the row at the start of the header."""
        self.history = History(self.store, self.open, self._rename, self._remove)
        self.settings = SettingsDrawer(self._settings_changed)
        with start:
            icon_button("menu", "Conversations", self.history.drawer.toggle)
        with ui.element("main").classes("strata-chat"):
            with ui.element("div").classes("strata-scroll"):
                self._thread = ui.element("div").classes("strata-thread")
                self._thread.props('role=log aria-label="Conversation" aria-live=off')
            self._composer()
            self._actions = Actions(
                copy=self._copy,
                edit=acting_on(self._thread, self._edit),
                again=acting_on(self._thread, self._again),
                take_result=acting_on(self._thread, self._take_result),
            )
            self._status = ui.label().classes("strata-unseen").props("role=status")
        ui.on("strata_stop", self.stop)

    def _composer(self) -> None:
        with ui.element("div").classes("strata-composer"), ui.element("div").classes("strata-composer-box"):
            field = ui.element("textarea").classes("strata-input")
            field.props('rows=1 placeholder="Message" aria-label="Message" autofocus')
            field.on("keydown", self._send, js_handler="(e) => strata.composerKey(e, emit)")
            field.on("input", js_handler="(e) => strata.composerInput()")
            icon_button("tune", "Settings", self.settings.drawer.toggle)
            self._send_button = icon_button("arrow_upward", "Send")
            self._send_button.on("click", self._send, js_handler="() => strata.composerSend(emit)")
            self._send_button.classes("strata-send")
            self._stop_button = icon_button("stop", "Stop", self.stop).classes("strata-send strata-stop")
            self._stop_button.set_visibility(False)

    async def _show(self, num_shown: int = SHOWN) -> None:
        """Show the conversation, or so many entries of its end."""
        self._thread.clear()
        self._views.clear()
        entries = self.conversation.entries
        with self._thread:
            if not entries:
                self._welcome()
            elif len(entries) > num_shown:
                earlier = acting_on(self._thread, self._show_earlier)
                button = ui.button("Show earlier messages", on_click=earlier, color=None)
                button.props("flat no-caps").classes("strata-note")
        for entry in entries[-num_shown:]:
            self._show_entry(entry)
            await asyncio.sleep(0)  # the server has others to serve meanwhile

    async def _show_earlier(self) -> None:
        async with self._changing:
            run, num_shown = self.run, len(self._views) + SHOWN
            self.leave()  # what follows the run has a view that goes
            await self._show_with(run, num_shown)

    async def _show_with(self, run: Run | None, num_shown: int = SHOWN) -> None:
        """Show the conversation, and follow the answer under way if there is one."""
        self.run = run
        await self._show(num_shown)
        if run is not None:
            self._follow(run)

    def _show_entry(self, entry: Entry) -> None:
        run = self.run if self.run is not None and self.run.entry is entry else None
        is_last = entry is self.conversation.entries[-1]
        with self._thread:
            if entry.role == "user":
                self._views.append(UserMessage(entry, self._actions))
            else:
                self._views.append(ModelMessage(entry, self._actions, is_last, run))

    def _hide_from(self, place: int) -> None:
        """Show no more the entry at a place, and those that follow it."""
        kept = max(0, len(self._views) - (len(self.conversation.entries) - place))
        for view in self._views[kept:]:
            view.article.delete()
        del self._views[kept:]

    def _welcome(self) -> None:
        with ui.element("div").classes("strata-welcome"):
            ui.label(self.backend.name).classes("strata-welcome-name")
            label = ui.label().classes("strata-note").props("role=status")

            async def look() -> None:
                state = await self.backend.health()
                ready = state["status"] == "ok"
                words = state.get("reason") or state.get("progress") or "the model"
                label.text = "What would you like to know?" if ready else f"{state['status']} {words}"
                if ready:
                    timer.deactivate()

            timer = ui.timer(0.5, look)

    # --- conversations ------------------------------------------------------------------------------

    async def open(self, id_: str | None) -> None:
        """Show a conversation of the browser's, or a new one for None."""
        async with self._changing:
            self.leave()
            self.conversation = await self._kept(id_)
            run = self.runs.find(self.conversation.id)
            if run is not None:
                self.conversation = run.conversation
            self.settings.edit(self.conversation.settings)
            ui.run_javascript(f"strata.opened({json.dumps(self.conversation.id)})")
            self.history.mark(self.conversation.id)
            await self._show_with(run)
            ui.run_javascript("strata.toEnd()")

    async def _kept(self, id_: str | None) -> Conversation:
        try:
            kept = await self.store.load(id_) if id_ else None
            if kept is None:
                return Conversation(id=id_ or new_id(), settings=await self.store.settings())
        except StrataError as error:
            ui.notify(str(error), type="negative")
            return Conversation()
        if kept.entries and kept.entries[-1].is_unfinished:
            kept.entries[-1].ending = "broken"  # unless it is found under way
        return kept

    def leave(self) -> None:
        """Show the conversation no more; an answer under way goes on for a while."""
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if self.run is not None:
            self.runs.unwatch(self.run)
        self.run = None
        self._send_button.set_visibility(True)
        self._stop_button.set_visibility(False)

    async def _save(self) -> None:
        async with self._saving:  # one after another, or an older state could be the last to arrive
            try:
                await self.store.save(self.conversation)
                await self.history.refresh()
            except StrataError as error:
                ui.notify(str(error), type="negative")

    async def _rename(self, id_: str, title: str) -> None:
        conversation = self.conversation if id_ == self.conversation.id else await self.store.load(id_)
        if conversation is not None:
            conversation.title = title
            await self.store.save(conversation)

    async def _remove(self, id_: str) -> None:
        if id_ == self.conversation.id:
            run = self.run
            self.leave()  # first, since what follows a run keeps it
            if run is not None:
                await run.stop("stopped")
                self.runs.kept(run)
        async with self._saving:
            await self.store.remove(id_)
        if id_ == self.conversation.id:
            await self.open(None)

    def _settings_changed(self) -> None:
        self.store.keep_settings(self.conversation.settings)
        if self.conversation.entries:
            background_tasks.create(self._save(), context=self._thread)

    # --- talking ------------------------------------------------------------------------------------

    async def _send(self, event: GenericEventArguments) -> None:
        text = event.args
        if not self._usable():
            ui.run_javascript(f"strata.composerFill({json.dumps(text)})")
            return
        async with self._changing:
            await self._say(text)

    def _usable(self) -> bool:
        """Whether the settings can be asked with; tells what is wrong with them, before anything is lost."""
        if wrong := self.settings.wrong:
            ui.notify(f"{wrong}: this value cannot be used", type="negative")
            self.settings.drawer.show()
        return not wrong

    async def _say(self, text: str) -> None:
        if not self.conversation.entries:
            self._thread.clear()  # of the welcome
        self.conversation.say(text)
        self._show_entry(self.conversation.entries[-1])
        self._ask()

    def _ask(self) -> None:
        """Have the model answer."""
        entries = self.conversation.entries
        try:
            self.run = self.runs.begin(self.backend, self.conversation)
        except StrataError as error:
            entries.append(Entry("assistant", error=str(error)))
        self._show_entry(entries[-1])
        ui.run_javascript("strata.toEnd()")
        if self.run is not None:
            self._follow(self.run)

    def _follow(self, run: Run) -> None:
        self.runs.watch(run)
        self._show_running(True)
        self._following = background_tasks.create(self._watch(run), context=self._thread)

    async def _watch(self, run: Run) -> None:
        """Show a run until it ends."""
        view, saved = self._views[-1], time.monotonic()
        await self._save()
        while not run.done:
            view.follow(run)
            await asyncio.sleep(min(max(FRAME_S, view.cost_s / SHARE), SLOWEST_FRAME_S))
            if time.monotonic() - saved > SAVE_S:
                await self._save()
                saved = time.monotonic()
        view.finish()
        self.runs.unwatch(run)
        self.run = None
        self._show_running(False)
        await self._save()
        self.runs.kept(run)

    def _show_running(self, running: bool) -> None:
        self._status.text = "The model is answering." if running else "The answer is complete."
        self._send_button.set_visibility(not running)
        self._stop_button.set_visibility(running)

    async def stop(self) -> None:
        """End the answer under way; what is there of it stays."""
        if self.run is not None:
            await self.run.stop("stopped")

    # --- what can be done with messages -------------------------------------------------------------

    def _copy(self, entry: Entry) -> None:
        ui.run_javascript(f"strata.copyMessage({json.dumps(entry.content)})")

    async def _edit(self, entry: Entry, text: str) -> None:
        if text.strip() and self._usable() and await self._cut(entry, "Changing this message"):
            async with self._changing:
                await self._say(text)

    async def _again(self, entry: Entry) -> None:
        if self._usable() and await self._cut(entry, "Another answer"):
            async with self._changing:
                self._ask()

    async def _cut(self, entry: Entry, what: str) -> bool:
        """Remove an entry and what follows, once the person has agreed; returns whether."""
        entries, place = self.conversation.entries, self._place(entry)
        num_lost = len(entries) - place - 1
        if entry.role == "user":
            num_lost -= num_lost == 1  # its own answer alone is what is to be made anew
        if num_lost > 0 and not await dialogs.confirm(
            f"{what} removes the {num_lost} messages that follow it.", "Remove them"
        ):
            return False
        await self.stop()
        async with self._changing:
            if self._place(entry) != place or place == len(entries):  # a second click
                return False
            self.leave()  # what follows the run that was stopped
            self._hide_from(place)
            del entries[place:]
        return True

    def _place(self, entry: Entry) -> int:
        """Of an entry in the conversation; the end for one that is not there any more."""
        entries = self.conversation.entries
        return next((i for i, other in enumerate(entries) if other is entry), len(entries))

    async def _take_result(self, entry: Entry, call: Call, result: str) -> None:
        if self._place(entry) != len(self.conversation.entries) - 1:
            ui.notify("The conversation has gone on without this result.", type="warning")
            return
        call.result = result
        self._views[-1].show_calls()
        if all(other.result is not None for other in entry.calls):
            async with self._changing:
                self._ask()


async def build(backend: Backend, pages: Sequence[Page]) -> None:
    """Make the page and show the conversation that its address names."""
    with frame(PAGE, pages, backend, own_files=("chat.css", "store.js", "chat.js")) as start:
        chat = Chat(backend, _RUNS)
        chat.build(start)
    client = ui.context.client
    id_ = client.request.query_params.get("c")
    client.on_delete(chat.leave)
    await client.connected()
    ui.run_javascript("strata.chatReady()")
    await chat.open(id_)
    with contextlib.suppress(StrataError):
        await chat.history.refresh()


_RUNS = Runs()  # of all pages of this process, which has one web app (see `app.mount`)
PAGE = Page("/", "Chat", "chat_bubble_outline", build)
