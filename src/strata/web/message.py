"""The elements that show one message of a conversation."""

import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from nicegui import ui

from strata.serve.requests import RequestReport
from strata.web.calls import CallView
from strata.web.conversation import ENDINGS, Call, Entry, Speed
from strata.web.markdown import GrowingMarkdown, render
from strata.web.runs import Run
from strata.web.shell import icon_button, text_field


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
    """What the person said, with a way to change it.

    Attributes:
        entry: the message.
        article: its element.
    """

    def __init__(self, entry: Entry, actions: Actions):
        self.entry, self._actions = entry, actions
        with ui.element("article").classes("strata-user").props('aria-label="You said"') as self.article:
            self._show()

    def _show(self) -> None:
        with ui.element("div").classes("strata-said"):
            ui.label(self.entry.content).props("dir=auto")
        with ui.row().classes("strata-actions"):
            icon_button("edit", "Edit this message", self._edit)
            icon_button("content_copy", "Copy this message", lambda: self._actions.copy(self.entry))

    def _edit(self) -> None:
        self.article.clear()
        with self.article, ui.element("div").classes("strata-editing"):
            field = text_field("Your message")
            with ui.row().classes("strata-editing-buttons"):
                ui.button("Cancel", on_click=self._cancel, color=None).props("flat no-caps")
                send = ui.button("Send").props("unelevated no-caps")
                send.on(
                    "click",
                    lambda event: self._actions.edit(self.entry, event.args),
                    js_handler=f"() => strata.sendField('{field.html_id}', emit)",
                )
        with self.article:  # the button that was pressed is gone
            ui.run_javascript(f"strata.edit('{field.html_id}', {json.dumps(self.entry.content)})")

    def _cancel(self) -> None:
        self.article.clear()
        with self.article:
            self._show()
            ui.run_javascript("strata.focusComposer()")


class ModelMessage:
    """An answer: thinking, text, calls, how it ended, how fast it was.

    Args:
        entry: the answer.
        actions: see there.
        run: that makes it; None for one that is over.

    Attributes:
        entry: the answer.
        article: its element.
    """

    def __init__(self, entry: Entry, actions: Actions, run: Run | None = None):
        self.entry, self._actions = entry, actions
        self._call_views: list[CallView] = []
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
        entry = self.entry
        self._details.set_visibility(bool(entry.thinking))
        self._summary.text = thinking_text(entry, run)
        self._thinking.grow(entry.thinking)
        self._content.grow(entry.content)
        self._progress.text = progress_text(run)
        self.show_calls(take_results=False)

    @property
    def cost_s(self) -> float:
        """Seconds that the last change took to render."""
        return self._content.cost_s + self._thinking.cost_s

    def finish(self) -> None:
        """Show the answer as it stays."""
        entry = self.entry
        self._details.set_visibility(bool(entry.thinking))
        self._summary.text = f"Thought for {entry.thinking_s:.0f} s"
        self._thinking.finish(entry.thinking)
        self._content.finish(entry.content)
        self._foot.clear()
        with self._foot:
            self._show_foot()

    def show_calls(self, take_results: bool) -> None:
        """Show the calls as they are now.

        Args:
            take_results: nothing follows the answer, so it may still get them, unless it was broken off.
        """
        take_results = take_results and not self.entry.is_broken_off
        with self._calls:
            while len(self._call_views) < len(self.entry.calls):
                self._call_views.append(CallView(self._take))
        for view, call in zip(self._call_views, self.entry.calls, strict=True):
            view.show(call, take_results)

    def _take(self, call: Call, result: str) -> None:
        self._actions.take_result(self.entry, call, result)

    def _show_foot(self) -> None:
        entry = self.entry
        if entry.error:
            self._show_error()
        if entry.ending:
            ui.label(ENDINGS.get(entry.ending, entry.ending)).classes("strata-note")
        with ui.row().classes("strata-actions"):
            icon_button("content_copy", "Copy this answer", lambda: self._actions.copy(entry))
            icon_button("refresh", "Answer again", lambda: self._actions.again(entry))
            if entry.speed is not None:
                ui.label(speed_text(entry.speed)).classes("strata-speed")

    def _show_error(self) -> None:
        """One line for people; what follows it, such as an engine's last words, is folded."""
        line, _, details = self.entry.error.partition("\n")
        with ui.element("div").classes("strata-error").props("role=alert"):
            with ui.row().classes("strata-error-head"):
                ui.label(line)
                retry = ui.button("Retry", on_click=lambda: self._actions.again(self.entry), color=None)
                retry.props("outline no-caps dense")
            if details:
                with ui.element("details"):
                    with ui.element("summary"):
                        ui.label("Details")
                    with ui.element("pre").props('tabindex=0 role=group aria-label="Details of the error"'):
                        ui.label(textwrap.dedent(details))


def speed_text(speed: Speed) -> str:
    """The line under an answer."""
    reused = f" ({speed.cached_tokens:,} reused)" if speed.cached_tokens else ""
    rate = f" at {speed.per_second:.1f}/s" if speed.per_second else ""
    return (
        f"prompt {_tokens(speed.prompt_tokens)}{reused} · answer {_tokens(speed.answer_tokens)}{rate} · "
        f"first after {speed.first_s:.2f} s"
    )


def thinking_text(entry: Entry, run: Run) -> str:
    """The line that folds the thinking."""
    if run.is_thinking:
        return f"Thinking for {run.thinking_s:.0f} s…"
    return f"Thought for {entry.thinking_s:.0f} s"


def progress_text(run: Run) -> str:
    """What the server is at."""
    report, waited, engine = run.report, f"{run.waited_s:.0f} s", run.backend.engine
    if engine.state == "loading" or not run.backend.is_loaded:  # the first time, or again after a crash
        step = f": {engine.progress.text}" if engine.progress else ""
        return f"loading the model{step}, {waited}"
    if report is None:
        return f"making the prompt, {waited}"
    match report.state:
        case "queued":
            return f"{_queue_text(report, engine.num_running > run.backend.options.lanes)}, {waited}"
        case "reading":
            return f"reading the prompt: {report.prompt_tokens_read:,} of {report.prompt_tokens:,} tokens"
    rate = f" at {report.tokens_per_s:.1f}/s" if report.tokens_per_s else ""
    return f"{_tokens(report.completion_tokens)}{rate}, {waited}"


def _queue_text(report: RequestReport, others: bool) -> str:
    """Where a request stands that waits; `others` have the lanes, or else the engine is at a long step."""
    if not others:
        return "waiting for the engine"
    before = report.queued_before
    return f"waiting for other requests, {f'{before} before it' if before else 'next in line'}"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"
