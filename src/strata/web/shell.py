"""What all pages have in common: the header with its navigation, light and dark, styles and scripts."""

import html
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nicegui import background_tasks, ui

from strata import __version__
from strata.errors import StrataError
from strata.serve.backend import Backend
from strata.web import files


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the web app.

    Args:
        path: where it is served.
        name: in the navigation and the window's title.
        icon: a name of Material's icons, which NiceGUI brings along.
        build: makes the page's elements, inside `frame`; it gets the backend and all pages.
    """

    path: str
    name: str
    icon: str
    build: Callable[[Backend, Sequence["Page"]], Awaitable[None]]


@contextmanager
def frame(
    page: Page, pages: Sequence[Page], backend: Backend, own_files: Sequence[str] = ()
) -> Iterator[ui.row]:
    """The shell around one page; what is made inside it becomes the page's content.

    Args:
        page: the one that is shown.
        pages: those of the navigation.
        backend: of the server, for the model's name.
        own_files: styles and scripts among the static files that this page needs.

    Yields:
        the row at the start of the header, for buttons of the page's own.
    """
    version = html.escape(__version__)
    for name in ("strata.css", "strata.js", *own_files):
        url = f"{files.URL}/{name}?{version}"
        is_style = name.endswith(".css")
        ui.add_head_html(
            f'<link rel="stylesheet" href="{url}">' if is_style else f'<script defer src="{url}"></script>'
        )
    with ui.header().classes("strata-header"):
        start = ui.row().classes("strata-start")
        with ui.element("nav").props('aria-label="Pages"').classes("strata-nav"):
            for other in pages:
                _navigation_link(other, current=other is page)
        ui.label(backend.name).classes("strata-model").tooltip("the model that is served")
        _theme_button()
        if backend.options.asks_for_key:
            icon_button("logout", "Sign out").props("href=/logout")
    with ui.element("h1").classes("strata-unseen"):
        ui.label(page.name)
    yield start


def icon_button(icon: str, label: str, on_click: Callable | None = None) -> ui.button:
    """A flat round button whose picture is named for those who do not see it."""
    button = (
        ui.button(icon=icon, on_click=on_click, color=None)
        .props("flat round dense")
        .classes("strata-icon-button")
    )
    button.props["aria-label"] = button.props["title"] = label
    return button


def text_field(label: str) -> ui.element:
    """A field for text of any length, which grows with it. What is typed stays in the browser until it is
    sent (see `static/chat.js`): the server hears of no keystroke."""
    field = ui.element("textarea").classes("strata-input").props("rows=1")
    field.props["aria-label"] = label
    return field.on("input", js_handler="(e) => strata.fit(e.target)")


def complain(error: StrataError) -> None:
    """Tell a person what is wrong, if the page is still there."""
    if not ui.context.client.is_deleted:
        ui.notify(str(error), type="negative")


def acting_on(element: ui.element, action: Callable[..., Coroutine]) -> Callable[..., None]:
    """A handler of events that works in the place of `element`.

    NiceGUI lets a handler work in the place of the element that sent the event, which is gone when the
    handler shows a list anew that the element was in. What is wrong is told to the person.
    """

    async def act(*arguments: object) -> None:
        try:
            await action(*arguments)
        except StrataError as error:
            complain(error)

    def handle(*arguments: object) -> None:
        background_tasks.create(act(*arguments), context=element)

    return handle


def _navigation_link(page: Page, current: bool) -> None:
    link = ui.element("a").classes("strata-link")
    link.props["href"] = page.path
    link.props["aria-label"] = page.name
    if current:
        link.props["aria-current"] = "page"
    with link:
        ui.icon(page.icon).props("aria-hidden=true")
        ui.label(page.name).classes("strata-link-name")


def _theme_button() -> None:
    """Changes between the system's choice, light and dark; the browser does it and remembers it by itself."""
    button = ui.button(icon="brightness_auto", color=None).props(
        'flat round dense aria-label="Theme: as the system"'
    )
    button.classes("strata-icon-button strata-theme").on("click", js_handler="() => strata.nextTheme()")
