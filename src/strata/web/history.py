"""The list of conversations: open, search, rename, delete."""

from collections.abc import Awaitable, Callable

from nicegui import ui

from strata.errors import StrataError
from strata.web import dialogs
from strata.web.shell import acting_on, complain, icon_button
from strata.web.store import Store, Summary

LISTED = 50  # conversations at first; a page with many more in it is slow


class History:
    """The drawer with the list.

    Args:
        store: where the conversations are.
        on_open: called with the id of the one to show, None for a new one.
        on_rename: called with the id of one and its new title.
        on_remove: called with the id of one that is to be deleted.
    """

    def __init__(
        self,
        store: Store,
        on_open: Callable[[str | None], Awaitable[None]],
        on_rename: Callable[[str, str], Awaitable[None]],
        on_remove: Callable[[str], Awaitable[None]],
    ):
        self._store, self._on_open = store, on_open
        self._on_rename, self._on_remove = on_rename, on_remove
        self._current: str | None = None
        self._items: list[Summary] = []
        self._most = LISTED
        # Quasar opens it where the window is wide; NiceGUI's own way asks the browser, which may be too slow.
        with ui.left_drawer(value=False, bordered=True).classes("strata-history") as self.drawer:
            self.drawer.props('show-if-above width=280 aria-label="Conversations"')
            new = ui.button("New conversation", icon="add", on_click=lambda: self._open(None), color=None)
            new.props("no-caps outline align=left").classes("strata-new")
            self._search = ui.input(placeholder="Search", on_change=self.refresh)
            self._search.props('dense outlined clearable debounce=250 aria-label="Search conversations"')
            self._none = ui.label().classes("strata-note")
            with ui.element("div").classes("strata-list-box"):
                self._list = ui.element("ul").classes("strata-list")
                self._more = ui.button("Show older ones", on_click=self._show_more, color=None)
                self._more.props("flat no-caps").classes("strata-note")
        self._open, self._rename, self._remove = (
            acting_on(self.drawer, action) for action in (self._do_open, self._do_rename, self._do_remove)
        )

    async def refresh(self) -> None:
        """Show the list as the browser has it."""
        try:
            items = await self._store.list(self._search.value or "", self._most + 1)
        except StrataError as error:
            complain(error)
            return
        if items != self._items:
            self._items = items
            self._show()

    def mark(self, id_: str) -> None:
        """Show which conversation is open."""
        self._current = id_
        self._show()

    async def _show_more(self) -> None:
        self._most += LISTED
        await self.refresh()

    def _show(self) -> None:
        self._list.clear()
        with self._list:
            for item in self._items[: self._most]:
                self._item(item)
        self._more.set_visibility(len(self._items) > self._most)
        self._none.text = "Nothing found" if self._search.value else "No conversations yet"
        self._none.set_visibility(not self._items)

    def _item(self, item: Summary) -> None:
        with ui.element("li").classes("strata-item") as line:
            button = ui.element("button").classes("strata-item-title").props("type=button")
            button.props["title"] = item.title
            if item.id == self._current:
                line.classes("strata-current")
                button.props["aria-current"] = "true"
            button.on("click", lambda: self._open(item.id))
            with button:
                ui.label(item.title or "Untitled").props("dir=auto")
            with icon_button("more_horiz", f"Rename or delete: {item.title}"), ui.menu():
                ui.menu_item("Rename", lambda: self._rename(item))
                ui.menu_item("Delete", lambda: self._remove(item))

    async def _do_open(self, id_: str | None) -> None:
        await self._on_open(id_)
        ui.run_javascript(f"strata.closeDrawer({self.drawer.id})")

    async def _do_rename(self, item: Summary) -> None:
        title = await dialogs.ask("Name of the conversation", item.title)
        if title:
            await self._on_rename(item.id, title)
            await self.refresh()
            ui.run_javascript("strata.focusComposer()")  # the line that had the focus is another one now

    async def _do_remove(self, item: Summary) -> None:
        if await dialogs.confirm(f"Delete “{item.title}”? It cannot be brought back.", "Delete"):
            await self._on_remove(item.id)
            await self.refresh()
            ui.run_javascript("strata.focusComposer()")
