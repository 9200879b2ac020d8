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
from strata.web.message import Actions, ModelMessage
from strata.web.runs import Run, Runs
from strata.web.settings import SettingsDrawer
from strata.web.shell import Page, acting_on, complain, frame, icon_button, text_field
from strata.web.store import TIMEOUT_S, Store
from strata.web.thread import SHOWN, Thread
from strata.web.windows import Windows

FRAME_S, SLOWEST_FRAME_S = 0.1, 1.0  # between two looks at an answer under way
SHARE = 0.1  # of the time may go to rendering one: a long block is looked at less often
SAVE_S = 3.0  # between two savings of it


class Chat:
    """One page in one browser.

    Args:
        backend: of the server.
        runs: the answers under way.
        windows: all such pages; those that show the same conversation have the same object.
    """

    def __init__(self, backend: Backend, runs: Runs, windows: "Windows[Chat]"):
        self.backend, self.runs, self.windows = backend, runs, windows
        self.store = Store()
        self.conversation = Conversation()
        self.run: Run | None = None  # that this page follows
        self._following: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()  # held while entries and views come and go
        self._saving = asyncio.Lock()
        windows.add(self)

    def close(self) -> None:
        """The page is gone."""
        self.windows.remove(self)
        self._leave()

    # --- elements -----------------------------------------------------------------------------------

    def build(self, start: ui.row) -> None:
        """Make the page's elements; `start` is the row at the start of the header."""
        self.history = History(self.store, self.open, self._rename, self._remove)
        self.settings = SettingsDrawer(self._settings_changed)
        with start:
            icon_button("menu", "Conversations", self.history.drawer.toggle)
        with ui.element("div").classes("strata-chat") as whole:
            actions = Actions(
                copy=self._copy,
                edit=acting_on(whole, self._edit),
                again=acting_on(whole, self._again),
                take_result=acting_on(whole, self._take_result),
            )
            with ui.element("div").classes("strata-scroll"):
                self._thread = Thread(self.backend, actions, acting_on(whole, self._show_earlier))
            self._composer()
            self._status = ui.label().classes("strata-unseen").props("role=status")
        ui.on("strata_stop", self.stop)
        ui.on("strata_went", lambda event: self.open(event.args))  # "back" and "forward" of the browser
        ui.on("strata_focus", self.history.refresh)  # another window may have begun a conversation

    def _composer(self) -> None:
        with ui.element("div").classes("strata-composer"), ui.element("div").classes("strata-composer-box"):
            field = text_field("Message").props('placeholder="Message" autofocus')
            field.on("keydown", self._send, js_handler="(e) => strata.sends(e) && strata.composerSend(emit)")
            field.on("input", js_handler="() => strata.composerInput()")
            icon_button("tune", "Settings", self.settings.drawer.toggle)
            self._send_button = icon_button("arrow_upward", "Send")
            self._send_button.on("click", self._send, js_handler="() => strata.composerSend(emit)")
            self._send_button.classes("strata-send")
            self._stop_button = icon_button("stop", "Stop", self.stop).classes("strata-send strata-stop")
            self._stop_button.set_visibility(False)

    async def _show(self, num_shown: int = SHOWN) -> None:
        """Show the conversation anew, or so many messages of its end."""
        self._leave()  # what follows the run has a view that goes
        await self._thread.show(self.conversation, self.runs.answering(self.conversation), num_shown)
        self._follow()

    async def _show_earlier(self) -> None:
        async with self._changing:
            await self._show(len(self._thread.views) + SHOWN)

    async def _update(self) -> None:
        """Show what the conversation has become."""
        run = self.runs.answering(self.conversation)
        if run is not self.run:
            self._leave()
        await self._thread.update(self.conversation, run)
        self._follow()

    # --- conversations ------------------------------------------------------------------------------

    async def open(self, id_: str | None) -> None:
        """Show a conversation of the browser's, or a new one for None."""
        async with self._changing:
            kept = await self._kept(id_)
            self.conversation = self._live(kept.id) or kept
            self.settings.edit(self.conversation.settings)
            ui.run_javascript(f"strata.opened({json.dumps(self.conversation.id)})")
            self.history.mark(self.conversation.id)
            await self._show()
            ui.run_javascript("strata.showEnd()")

    async def _kept(self, id_: str | None) -> Conversation:
        try:
            kept = await self.store.load(id_) if id_ else None
            if kept is None:
                return Conversation(id=id_ or new_id(), settings=await self.store.settings())
        except StrataError as error:
            complain(error)
            return Conversation()
        if kept.entries and kept.entries[-1].is_unfinished:
            kept.entries[-1].ending = "broken"  # unless it is found under way
        return kept

    def _live(self, id_: str) -> Conversation | None:
        """The conversation of this id that an answer goes to, or that a window shows."""
        if run := self.runs.find(id_):
            return run.conversation
        return next((window.conversation for window in self.windows.showing(id_)), None)

    def _leave(self) -> None:
        """Follow the answer under way no more; it goes on for a while."""
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if self.run is not None:
            self.runs.unwatch(self.run)
            self.run = None
        self._send_button.set_visibility(True)
        self._stop_button.set_visibility(False)

    async def _save(self, is_listed: bool = False) -> None:
        """Have the browser keep the conversation; `is_listed` spares reading all of them for the list."""
        async with self._saving:  # one after another, or an older state could be the last to arrive
            conversation, run = self.conversation, self.runs.find(self.conversation.id)
            is_over = run is not None and run.done
            try:
                await self.store.save(conversation)
                if not is_listed:
                    await self.history.refresh()
            except StrataError as error:
                complain(error)
                return
            if run is not None and is_over:
                self.runs.kept(run)

    async def _rename(self, id_: str, title: str) -> None:
        conversation = self._live(id_) or await self.store.load(id_)
        if conversation is not None:
            conversation.title = title
            await self.store.save(conversation)

    async def _remove(self, id_: str) -> None:
        windows = list(self.windows.showing(id_))
        for window in windows:
            window._leave()  # first, since what follows a run keeps it
        if run := self.runs.find(id_):
            await run.stop("stopped")
            self.runs.kept(run)
        async with self._saving:
            await self.store.remove(id_)
        for window in windows:
            background_tasks.create(window._removed(is_here=window is self), context=window._thread.element)

    async def _removed(self, is_here: bool) -> None:
        await self.open(None)
        if not is_here:
            ui.notify("The conversation was deleted in another window.")

    def _settings_changed(self) -> None:
        self.store.keep_settings(self.conversation.settings)
        if self.conversation.entries:
            self._tell()

    def _tell(self) -> None:
        """Have the browser keep what this window has changed, and other windows show it."""
        background_tasks.create(self._save(), context=self._thread.element)
        for window in self.windows.showing(self.conversation.id, but=self):
            background_tasks.create(window._catch_up(), context=window._thread.element)

    async def _catch_up(self) -> None:
        """Show what another window has changed; what was being typed into what goes moves to the composer."""
        async with self._changing:
            if outdated := self._thread.outdated(self.conversation):
                articles = json.dumps([view.article.html_id for view in outdated])
                with contextlib.suppress(TimeoutError):
                    if await ui.run_javascript(f"strata.keepTyped({articles})", timeout=TIMEOUT_S):
                        ui.notify("Another window removed the message. What you typed is in the field below.")
            self.settings.edit(self.conversation.settings)
            await self._update()
        await self._save()

    # --- talking ------------------------------------------------------------------------------------

    async def _send(self, event: GenericEventArguments) -> None:
        async with self._changing:
            taken = self._can_ask()  # else the text stays where it was typed
            ui.run_javascript(f"strata.composerTaken({json.dumps(taken)})")
            if taken:
                self.conversation.say(event.args)
                await self._ask()

    def _can_ask(self) -> bool:
        """Whether the model can be asked; tells why not, before anything is lost."""
        run = self.runs.find(self.conversation.id)
        if run is not None and not run.done:
            ui.notify("The model is answering, asked in another window perhaps.", type="warning")
            return False
        return self._has_usable_settings()

    def _has_usable_settings(self) -> bool:
        if wrong := self.settings.wrong:
            ui.notify(f"{wrong}: this value cannot be used", type="negative")
            self.settings.drawer.show()
        return not wrong

    async def _ask(self) -> None:
        """Have the model answer."""
        try:
            self.runs.begin(self.backend, self.conversation)
        except StrataError as error:
            self.conversation.entries.append(Entry("assistant", error=str(error)))
        self._tell()
        await self._update()
        ui.run_javascript("strata.showEnd()")

    def _follow(self) -> None:
        """Show how the answer goes on, if there is one under way."""
        run = self.runs.answering(self.conversation)
        if run is None or run is self.run:
            return
        self.run = run
        self.runs.watch(run)
        self._show_running(True)
        self._following = background_tasks.create(self._watch(run), context=self._thread.element)

    async def _watch(self, run: Run) -> None:
        """Show a run until it ends."""
        view, saved = self._thread.views[-1], time.monotonic()
        assert isinstance(view, ModelMessage)
        while not run.done:
            view.follow(run)
            await asyncio.sleep(min(max(FRAME_S, view.cost_s / SHARE), SLOWEST_FRAME_S))
            if time.monotonic() - saved > SAVE_S:
                await self._save(is_listed=True)
                saved = time.monotonic()
        view.finish()
        view.show_calls(take_results=True)
        self.runs.unwatch(run)
        self.run = None
        self._show_running(False)
        await self._save()

    def _show_running(self, running: bool) -> None:
        self._status.text = "The model is answering." if running else "The answer is complete."
        self._send_button.set_visibility(not running)
        self._stop_button.set_visibility(running)
        if not running:
            ui.run_javascript("strata.focusComposer()")  # the button that stops may have had the focus

    async def stop(self) -> None:
        """End the answer under way; what is there of it stays."""
        if self.run is not None:
            await self.run.stop("stopped")

    # --- what can be done with messages -------------------------------------------------------------

    def _copy(self, entry: Entry) -> None:
        ui.run_javascript(f"strata.copyAndTell({json.dumps(entry.content)})")

    async def _edit(self, entry: Entry, text: str) -> None:
        if text.strip():
            await self._redo(entry, "Changing this message", text)

    async def _again(self, entry: Entry) -> None:
        await self._redo(entry, "Another answer")

    async def _redo(self, entry: Entry, what: str, text: str | None = None) -> None:
        """Have the model answer anew in the place of an entry and of what follows it.

        Args:
            entry: the first that goes.
            what: is about to happen, for the question if more than an answer is lost.
            text: what the person says instead.
        """
        conversation, place = self.conversation, self._place(entry)
        seen, num_lost = list(conversation.entries), len(conversation.entries) - place - 1
        if place == len(seen) or not self._has_usable_settings():
            return
        if entry.role == "user":
            num_lost -= num_lost == 1  # its own answer alone is what is to be made anew
        question = f"{what} removes the {num_lost} messages that follow it."
        if num_lost > 0 and not await dialogs.confirm(question, "Remove them"):
            return
        async with self._changing:
            if self.conversation is not conversation or self._place(entry) == len(conversation.entries):
                return  # it has gone already, by a second click or in another window
            if run := self.runs.answering(conversation):
                await run.stop("stopped")
            if list(map(id, conversation.entries)) != list(map(id, seen)):
                ui.notify("Nothing was changed: the conversation has gone on meanwhile.", type="warning")
                return
            del conversation.entries[place:]
            if text is not None:
                conversation.say(text)
            await self._ask()

    def _place(self, entry: Entry) -> int:
        """Of an entry in the conversation; the end for one that is not there any more."""
        entries = self.conversation.entries
        return next((i for i, other in enumerate(entries) if other is entry), len(entries))

    async def _take_result(self, entry: Entry, call: Call, result: str) -> None:
        async with self._changing:
            if self._place(entry) != len(self.conversation.entries) - 1 or call.result is not None:
                ui.notify("The conversation has gone on without this result.", type="warning")
            elif self._can_ask():
                call.result = result
                if all(other.result is not None for other in entry.calls):
                    await self._ask()
                else:
                    self._tell()
                    await self._update()


async def build(backend: Backend, pages: Sequence[Page]) -> None:
    """Make the page and show the conversation that its address names."""
    with frame(PAGE, pages, backend, own_files=("chat.css", "store.js", "chat.js")) as start:
        chat = Chat(backend, _RUNS, _WINDOWS)
        chat.build(start)
    client = ui.context.client
    id_ = client.request.query_params.get("c")
    client.on_delete(chat.close)
    await client.connected()
    ui.run_javascript("strata.chatReady()")
    await chat.open(id_)
    with contextlib.suppress(StrataError):
        await chat.history.refresh()


# Of all pages of this process, which has one web app (see `app.mount`).
_RUNS = Runs()
_WINDOWS: Windows[Chat] = Windows()


async def keep_answers() -> None:
    """Have browsers keep what is being written; the server stops."""
    await _RUNS.end()


PAGE = Page("/", "Chat", "chat_bubble_outline", build)
