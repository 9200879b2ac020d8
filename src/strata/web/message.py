"""The elements that show one message of a conversation."""

from collections.abc import Callable
from dataclasses import dataclass

from nicegui import ui

from strata.web.conversation import ENDINGS, Call, Entry, Speed
from strata.web.markdown import GrowingMarkdown, render
from strata.web.runs import Run
from strata.web.shell import icon_button


@dataclass(frozen=True, slots=True)
class Actions:
    """What can be done with messages.

    Args:
        copy: put a message's text into the clipboard.
        edit: change what the person said; the model answers anew.
        again: let the model answer anew.
        take_result: note what a call gave; with the last result the model goes on.
    """

    copy: Callable[[Entry], object]
    edit: Callable[[Entry, str], object]
    again: Callable[[Entry], object]
    take_result: Callable[[Entry, Call, str], object]


class GrowingText:
    """Markdown that is shown while it grows."""

    def __init__(self) -> None:
        self._markdown = GrowingMarkdown()
        self._num_shown = 0
        with ui.element("div").classes("strata-text") as self._box:
            self._last = ui.html("")

    @property
    def cost_s(self) -> float:
        """Seconds that the last change took to render."""
        return self._markdown.cost_s

    def grow(self, text: str) -> None:
        """Show the text as it is now."""
        if not self._markdown.grow(text):
            return
        if ready := self._markdown.blocks[self._num_shown :]:
            self._last.set_content("".join(ready))
            self._num_shown = len(self._markdown.blocks)
            with self._box:
                self._last = ui.html("")
        self._last.set_content(self._markdown.last)

    def finish(self, text: str) -> None:
        """Show the text as it stays."""
        if self._num_shown and not self._markdown.has_references:
            self._last.set_content(render(text[self._markdown.start :]))
            return
        self._box.clear()
        with self._box:
            self._last = ui.html(render(text))


class UserMessage:
    """What the person said, with a way to change it."""

    def __init__(self, entry: Entry, actions: Actions):
        self._entry, self._actions = entry, actions
        with ui.element("article").classes("strata-user").props('aria-label="You said"') as self.article:
            self._show()

    def _show(self) -> None:
        with ui.element("div").classes("strata-said"):
            ui.label(self._entry.content)
        with ui.row().classes("strata-actions"):
            icon_button("edit", "Edit this message", self._edit)
            icon_button("content_copy", "Copy this message", lambda: self._actions.copy(self._entry))

    def _edit(self) -> None:
        self.article.clear()
        with self.article, ui.element("div").classes("strata-editing"):
            field = ui.textarea(value=self._entry.content)
            field.props('autogrow outlined autofocus aria-label="Your message"')
            with ui.row().classes("strata-editing-buttons"):
                ui.button("Cancel", on_click=self._cancel, color=None).props("flat no-caps")
                send = ui.button("Send", on_click=lambda: self._actions.edit(self._entry, field.value))
                send.props("unelevated no-caps")

    def _cancel(self) -> None:
        self.article.clear()
        with self.article:
            self._show()


class ModelMessage:
    """An answer: thinking, text, calls, how it ended, how fast it was.

    Args:
        entry: the answer.
        actions: see there.
        is_last: nothing follows it, so calls of it may still get their results.
        run: that makes it; None for one that is over.
    """

    def __init__(self, entry: Entry, actions: Actions, is_last: bool, run: Run | None = None):
        self._entry, self._actions, self._is_last = entry, actions, is_last
        self._arguments: list[ui.label] = []
        with (
            ui.element("article").classes("strata-answer").props('aria-label="The model answered"') as article
        ):
            self.article = article
            with ui.element("details").classes("strata-thinking") as self._details:
                with ui.element("summary"):
                    self._summary = ui.label()
                self._thinking = GrowingText()
            self._content = GrowingText()
            self._calls = ui.element("div").classes("strata-calls")
            self._foot = ui.element("footer").classes("strata-foot")
        if run is None:
            self.finish()
        else:
            with self._foot, ui.row().classes("strata-progress"):
                ui.spinner(size="16px", color=None)
                self._progress = ui.label()
            self.follow(run)

    def follow(self, run: Run) -> None:
        """Show the answer as it is now."""
        entry = self._entry
        self._details.set_visibility(bool(entry.thinking))
        self._summary.text = thinking_text(entry, run)
        self._thinking.grow(entry.thinking)
        self._content.grow(entry.content)
        self._progress.text = progress_text(run)
        with self._calls:
            while len(self._arguments) < len(entry.calls):
                self._arguments.append(_call(entry.calls[len(self._arguments)], None))
        for label, call in zip(self._arguments, entry.calls, strict=True):
            label.text = call.arguments

    @property
    def cost_s(self) -> float:
        """Seconds that the last change took to render."""
        return self._content.cost_s + self._thinking.cost_s

    def finish(self) -> None:
        """Show the answer as it stays."""
        entry = self._entry
        self._details.set_visibility(bool(entry.thinking))
        self._summary.text = f"Thought for {entry.thinking_s:.0f} s"
        self._thinking.finish(entry.thinking)
        self._content.finish(entry.content)
        self.show_calls()
        self._foot.clear()
        with self._foot:
            self._show_foot()

    def show_calls(self) -> None:
        """Show the calls with their results, or with fields for them."""

        def take(call: Call, result: str) -> None:
            self._actions.take_result(self._entry, call, result)

        self._calls.clear()
        with self._calls:
            for call in self._entry.calls:
                _call(call, take if self._is_last else None)

    def _show_foot(self) -> None:
        entry = self._entry
        if entry.error:
            with ui.row().classes("strata-error").props("role=alert"):
                ui.label(entry.error)
                retry = ui.button("Retry", on_click=lambda: self._actions.again(entry), color=None)
                retry.props("outline no-caps dense")
        if entry.ending:
            ui.label(ENDINGS.get(entry.ending, entry.ending)).classes("strata-note")
        with ui.row().classes("strata-actions"):
            icon_button("content_copy", "Copy this answer", lambda: self._actions.copy(entry))
            icon_button("refresh", "Answer again", lambda: self._actions.again(entry))
            if entry.speed is not None:
                ui.label(speed_text(entry.speed)).classes("strata-speed")


def speed_text(speed: Speed) -> str:
    """The line under an answer."""
    reused = f" ({speed.cached_tokens:,} reused)" if speed.cached_tokens else ""
    rate = f" at {speed.per_second:.1f}/s" if speed.per_second else ""
    return (
        f"prompt {speed.prompt_tokens:,} tokens{reused} · answer {speed.answer_tokens:,} tokens{rate} · "
        f"first after {speed.first_s:.2f} s"
    )


def thinking_text(entry: Entry, run: Run) -> str:
    """The line that folds the thinking."""
    if run.is_thinking:
        return f"Thinking for {run.thinking_s:.0f} s…"
    return f"Thought for {entry.thinking_s:.0f} s"


def progress_text(run: Run) -> str:
    """What the server is at."""
    report, waited = run.report, f"{run.waited_s:.0f} s"
    if report is None:
        loading = run.backend.engine.progress
        return f"loading the model: {loading.text}" if loading else waited
    match report.state:
        case "queued":
            return f"waiting for other requests, {waited}"
        case "reading":
            return f"reading the prompt: {report.prompt_tokens_read:,} of {report.prompt_tokens:,} tokens"
    rate = f" at {report.tokens_per_s:.1f}/s" if report.tokens_per_s else ""
    return f"{report.completion_tokens:,} tokens{rate}, {waited}"


def _call(call: Call, take: Callable[[Call, str], object] | None) -> ui.label:
    """A call of a function, and its result, or the field for it; returns the label of its arguments."""
    with ui.element("section").classes("strata-call").props('aria-label="Tool call"'):
        with ui.row().classes("strata-call-head"):
            ui.icon("build").props("aria-hidden=true")
            ui.label(call.name)
        with ui.element("pre").props("tabindex=0"):
            arguments = ui.label(call.arguments)
        if call.result is not None:
            with ui.element("pre").classes("strata-result").props("tabindex=0"):
                ui.label(call.result)
        elif take is not None:
            with ui.row().classes("strata-call-answer"):
                field = ui.input("Result of the call").props("dense outlined").classes("strata-field")
                field.on("keydown.enter", lambda: take(call, field.value or ""))
                ui.button("Send result", on_click=lambda: take(call, field.value or ""), color=None).props(
                    "outline no-caps"
                )
    return arguments
