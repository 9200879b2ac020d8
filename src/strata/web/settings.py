"""The drawer with the settings of a conversation: what every chat request may say, and the system prompt."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from annotated_types import Ge, Gt, Le, Lt
from nicegui import ui
from nicegui.elements.mixins.validation_element import ValidationElement
from nicegui.events import ValueChangeEventArguments
from pydantic import TypeAdapter, ValidationError

from strata.errors import RequestError
from strata.serve.chat import Effort
from strata.serve.chat_schemas import ChatRequest
from strata.serve.schemas import UNLIMITED
from strata.web.runs import checked
from strata.web.shell import icon_button

# A request that is sound, to see what a setting makes of it.
_REQUEST = {"model": "", "messages": [{"role": "user", "content": ""}]}
_LONGEST = 2**31  # bounds beyond this only say that the number must fit


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a chat request that a person may set, or the system prompt.

    Args:
        name: of the field, or "system".
        label: for people.
        help: what it does.
        kind: "number", "choice", "text", "lines" (a list, one item a line) or "json".
    """

    name: str
    label: str
    help: str
    kind: str = "number"


SETTINGS = (
    Setting("system", "System prompt", "what the model is told before everything else", "text"),
    Setting("reasoning_effort", "Thinking", "how hard the model thinks, where it can", "choice"),
    Setting("thinking_budget", "Thinking budget", "most tokens of thinking; -1 for any number"),
    Setting("temperature", "Temperature", "0 always takes the likeliest token; above 1 answers get wilder"),
    Setting("top_p", "Top p", "only the likeliest tokens that make up this share"),
    Setting("top_k", "Top k", "only so many of the likeliest tokens; 0 for all"),
    Setting("min_p", "Min p", "only tokens at least this likely, relative to the likeliest"),
    Setting("repetition_penalty", "Repetition penalty", "over the whole conversation; 1 for none"),
    Setting("presence_penalty", "Presence penalty", "for tokens that the answer has already"),
    Setting("frequency_penalty", "Frequency penalty", "for each time that the answer has them"),
    Setting("max_tokens", "Longest answer", "in tokens; -1 for as long as the context allows"),
    Setting("seed", "Seed", "the same seed gives the same answer; random when empty"),
    Setting("stop", "Stop strings", "end the answer; one a line", "lines"),
    Setting("logit_bias", "Logit bias", 'JSON, token id to bias, e.g. {"42": -100}', "json"),
    Setting("ignore_eos", "Ignore the end of turn", "go on until the longest answer", "choice"),
    Setting("loop_guard", "Loop guard", "end an answer that repeats itself", "choice"),
    Setting("tools", "Tools", "JSON list of functions that the model may call, as in OpenAI's API", "json"),
)


def describe(setting: Setting) -> str:
    """Help with the range and default that the API's schema says."""
    if setting.kind != "number":
        return setting.help
    notes, low, high = [], None, None
    field = ChatRequest.model_fields[setting.name]
    for rule in field.metadata:
        match rule:
            case Ge(bound) | Gt(bound):
                low = bound
            case Le(bound) | Lt(bound):
                high = bound
    if low not in (None, UNLIMITED) and low > -_LONGEST:
        notes.append(f"from {low}" if high is None or high >= _LONGEST else f"{low} to {high}")
    if field.default is not None:
        notes.append(f"default {'no limit' if field.default == UNLIMITED else field.default}")
    return f"{setting.help} ({'; '.join(notes)})" if notes else setting.help


def parse(setting: Setting, text: str) -> Any:
    """The value that a person means; None for the default.

    Raises:
        ValueError: it is none; says why.
    """
    if not text.strip():
        return None
    if setting.kind == "text":
        return text.strip()
    if setting.kind == "lines":
        return [line for line in text.splitlines() if line]
    if setting.kind == "json":
        value = _json(text)
    else:
        value = _number(text, ChatRequest.model_fields[setting.name].annotation)
    try:
        checked(_REQUEST | {setting.name: value})
    except RequestError as error:
        raise ValueError(str(error).removeprefix(f"{setting.name}: ")) from error
    return value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def _number(text: str, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(text.strip())
    except ValidationError as error:
        raise ValueError(error.errors(include_url=False)[0]["msg"]) from error


def shown(setting: Setting, value: Any) -> str:
    """A value as a person would write it."""
    if value is None:
        return ""
    if setting.kind == "lines":
        return "\n".join(value)
    return json.dumps(value, ensure_ascii=False, indent=1) if setting.kind == "json" else str(value)


_CHOICES: dict[str, dict[Any, str]] = {
    "reasoning_effort": {None: "the model's default"} | {effort: effort for effort in get_args(Effort)},
    "ignore_eos": {None: "no (default)", True: "yes"},
    "loop_guard": {None: "thinking only (default)", True: "thinking and answer", False: "no"},
}


class SettingsDrawer:
    """The drawer; it edits one dictionary at a time.

    Args:
        on_change: called when a value has changed.
    """

    def __init__(self, on_change: Callable[[], None]):
        self._values: dict[str, Any] = {}
        self._on_change = on_change
        self._loading = False
        self._inputs: dict[str, ValidationElement] = {}
        with ui.right_drawer(value=False, bordered=True).classes("strata-settings") as self.drawer:
            self.drawer.props('overlay behavior=mobile width=340 aria-label="Settings"')
            self.drawer.on("show", js_handler="() => strata.enterDrawer('.strata-settings')")
            self.drawer.on("hide", js_handler="() => strata.leaveDrawer('.strata-settings')")
            with ui.row().classes("strata-drawer-head"):
                ui.label("Settings").classes("strata-drawer-title")
                icon_button("restart_alt", "All settings to their defaults", self._reset)
                icon_button("close", "Close settings", self.drawer.hide)
            for setting in SETTINGS:
                field = self._choice(setting) if setting.kind == "choice" else self._text(setting)
                field.props["hint"] = describe(setting)
                self._inputs[setting.name] = field.classes("strata-field")

    def edit(self, values: dict[str, Any]) -> None:
        """Show these values and change them from now on."""
        self._values, self._loading = values, True
        try:
            for setting in SETTINGS:
                value = values.get(setting.name)
                field = self._inputs[setting.name]
                field.value = value if setting.kind == "choice" else shown(setting, value)
        finally:
            self._loading = False

    @property
    def wrong(self) -> str | None:
        """The label of a setting that cannot be used as it stands."""
        labels = {setting.name: setting.label for setting in SETTINGS}
        return next((labels[name] for name, field in self._inputs.items() if field.error), None)

    def _choice(self, setting: Setting) -> ValidationElement:
        field = ui.select(_CHOICES[setting.name], label=setting.label, value=None)
        field.on_value_change(lambda event: self._set(setting.name, event.value))
        return field.props("dense outlined options-dense")

    def _text(self, setting: Setting) -> ValidationElement:
        def check(text: str | None) -> str | None:
            try:
                parse(setting, text or "")
            except ValueError as error:
                return str(error)
            return None

        def changed(event: ValueChangeEventArguments) -> None:
            if check(event.value) is None:
                self._set(setting.name, parse(setting, event.value or ""))

        make = ui.input if setting.kind == "number" else ui.textarea
        field = make(setting.label, validation=check).props("dense outlined debounce=300")
        if setting.kind != "number":
            field.props("rows=3 autogrow")
        return field.on_value_change(changed)

    def _set(self, name: str, value: Any) -> None:
        if self._loading:
            return
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value
        self._on_change()

    def _reset(self) -> None:
        self._values.clear()
        self.edit(self._values)
        self._on_change()
