"""The element that shows one call of a function in an answer."""

from collections.abc import Callable

from nicegui import ui
from nicegui.events import GenericEventArguments

from strata.web.conversation import Call
from strata.web.shell import text_field


class CallView:
    """A call's name and arguments, and below them its result, or a field for it.

    Args:
        take: called with the call and what a person says that it gave.
    """

    def __init__(self, take: Callable[[Call, str], object]):
        self._take = take
        self._call: Call
        self._below = ""  # what is shown there: "", "field" or "result"
        with ui.element("div").classes("strata-call").props('role=group aria-label="Tool call"'):
            with ui.row().classes("strata-call-head"):
                ui.icon("build").props("aria-hidden=true")
                self._name = ui.label()
            with ui.element("pre").props('tabindex=0 role=group aria-label="Arguments"'):
                self._arguments = ui.label()
            self._box = ui.element("div")

    def show(self, call: Call, takes_result: bool) -> None:
        """Show the call as it is now.

        Args:
            call: the call; while an answer is written, each look at it has another object.
            takes_result: the model waits for what it gave.
        """
        self._call = call
        self._name.text, self._arguments.text = call.name, call.arguments
        below = "result" if call.result is not None else "field" if takes_result else ""
        if below == self._below:
            return  # what is being typed stays
        self._below = below
        self._box.clear()
        with self._box:
            if below == "result":
                result = ui.element("pre").classes("strata-result")
                with result.props('tabindex=0 role=group aria-label="Result"'):
                    ui.label(call.result or "")
            elif below == "field":
                self._field()

    def _field(self) -> None:
        def take(event: GenericEventArguments) -> None:
            self._take(self._call, event.args)

        with ui.row().classes("strata-call-answer"):
            field = text_field("Result of the call").classes("strata-field")
            send = f"strata.sendField('{field.html_id}', emit)"
            field.on("keydown", take, js_handler=f"(e) => strata.sends(e) && {send}")
            button = ui.button("Send result", color=None).props("outline no-caps")
            button.on("click", take, js_handler=f"() => {send}")
