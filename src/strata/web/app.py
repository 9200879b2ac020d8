"""The web app: its pages around a server's backend, and how they come to be served beside the endpoints."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from nicegui import app as nicegui_app
from nicegui import ui

from strata.options import Options
from strata.serve.backend import Backend
from strata.web import about, chat, files, monitor, planner
from strata.web.gate import Gate
from strata.web.shell import Page

PAGES: tuple[Page, ...] = (
    chat.PAGE,
    monitor.PAGE,
    planner.PAGE,
    about.PAGE,
)  # in the order of the navigation
RECONNECT_S = 30.0  # how long a page that lost its connection (a phone that slept) may take to come back


def mount(app: FastAPI, settings: Options) -> None:
    """Let a server show the web app to browsers; what is asked for by other clients stays as it was.

    NiceGUI keeps one application per process, so a process can do this once.

    Args:
        app: from `create_app`, not started yet.
        settings: its options.
    """
    backend: Backend = app.state.backend
    for page in PAGES:
        ui.page(page.path, title=f"{page.name} · Strata")(_builder(page, backend))
    nicegui_app.add_static_files(files.URL, files.FOLDER)
    # Quasar's bar for requests flashes at the top of the page, and has no name for who cannot see it.
    nicegui_app.config.quasar_config["loadingBar"]["skipHijack"] = True
    # NiceGUI wants a catch-all place in an application; ours must go on to answer 404 in its own words.
    shell = FastAPI(openapi_url=None)
    ui.run_with(
        shell,
        title="Strata",
        favicon=files.FOLDER / "icon.svg",
        dark=None,  # as the system
        language="en-US",
        reconnect_timeout=RECONNECT_S,
        tailwind=False,  # it watches the page for class names, which would slow a stream down
        show_welcome_message=False,
    )
    app.state.before_stop.append(chat.keep_answers)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: FastAPI) -> AsyncGenerator[None, None]:
        async with inner(running), shell.router.lifespan_context(shell):
            yield

    app.router.lifespan_context = lifespan
    app.add_middleware(
        Gate, web=shell, options=settings, keys=app.state.keys, pages=[page.path for page in PAGES]
    )


def _builder(page: Page, backend: Backend) -> Callable[[], Awaitable[None]]:
    async def build() -> None:  # NiceGUI reads the signature of what it is given
        await page.build(backend, PAGES)

    return build
