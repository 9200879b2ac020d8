"""The page *Chat*."""

from collections.abc import Sequence

from nicegui import ui

from strata.serve.backend import Backend
from strata.web.shell import Page, frame


async def build(backend: Backend, pages: Sequence[Page]) -> None:
    """Make the page."""
    with frame(PAGE, pages, backend):
        state = await backend.health()
        ui.label(f"{backend.name}: {state.get('progress') or state['status']}").classes("q-pa-md")


PAGE = Page("/", "Chat", "chat_bubble_outline", build)
