"""Questions to the person."""

from collections.abc import Callable

from nicegui import ui


async def confirm(text: str, yes: str) -> bool:
    """Ask before something is lost; closing the dialog means no."""
    with _named_dialog(text) as dialog, ui.card().classes("strata-dialog"):
        ui.label(text)
        _buttons(dialog, yes, lambda: dialog.submit(True), "negative")
    answer = await dialog
    if not dialog.is_deleted:  # with its page
        dialog.delete()
    return answer is True


async def ask(label: str, value: str) -> str | None:
    """Ask for a line of text; None if the person has not given one."""
    with _named_dialog(label) as dialog, ui.card().classes("strata-dialog"):
        field = ui.input(label, value=value).props("autofocus outlined dense maxlength=200")
        field.classes("strata-field").on("keydown.enter", lambda: dialog.submit(field.value))
        _buttons(dialog, "Save", lambda: dialog.submit(field.value), "primary")
    answer = await dialog
    if not dialog.is_deleted:  # with its page
        dialog.delete()
    return answer.strip() or None if answer else None


def _named_dialog(name: str) -> ui.dialog:
    dialog = ui.dialog()
    dialog.props["aria-label"] = name
    return dialog


def _buttons(dialog: ui.dialog, yes: str, on_yes: Callable[[], object], color: str) -> None:
    with ui.row().classes("strata-dialog-buttons"):
        ui.button("Cancel", on_click=dialog.close, color=None).props("flat no-caps")
        ui.button(yes, on_click=on_yes, color=color).props("unelevated no-caps")
