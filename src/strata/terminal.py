"""What `chat` and `demo` show: a model's text in a terminal, safely, and messages typed by a person."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

from strata.client import Delta, whole_characters

# A model's text must not move the cursor, rename the window or write to the clipboard (CWE-150).
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_STYLES = {"thinking": "dim", "content": "", "call": "cyan"}
_LABELS = {"thinking": "thinking\n", "content": "", "call": "call "}


def harmless(text: str) -> str:
    """`text` without control characters other than newline and tab, and without lone surrogates."""
    return _CONTROL.sub("", text)


def show_answer(console: Console, deltas: Iterable[Delta], asides: Console | None = None) -> None:
    """Print pieces as they come: exactly the model's characters, so that they can be copied.

    Args:
        console: where the answer goes.
        deltas: its pieces.
        asides: where thinking and calls go; to `console` when not given. They begin with a line or word that
            says what they are, as not every terminal has styles.
    """
    last: tuple[Console, str, int] | None = None
    for delta in with_silences(deltas, asides or console):
        place = console if delta.kind == "content" else asides or console
        part, text = (place, delta.kind, delta.index), harmless(delta.text)
        if part != last:
            if last is not None:
                _write(last[0], "\n\n" if place is last[0] else "\n")
            _write(place, _LABELS[delta.kind], "dim")
            text += " " if delta.kind == "call" else ""
        last = part
        _write(place, text, _STYLES[delta.kind])
    _write(last[0] if last else console, "\n")


def with_silences(deltas: Iterable[Delta], console: Console) -> Iterator[Delta]:
    """The pieces of an answer; until the first one comes, a terminal shows how far a silent server is."""
    waiting, begun = console.status(""), False  # not after it: the line that the cursor is in would be lost
    try:
        for delta in deltas:
            if delta.kind != "silence":
                if not begun:
                    waiting.stop()
                begun = True
                yield delta
            elif not begun and console.is_terminal:
                text = harmless(delta.text).replace("\n", " ")
                waiting.update(Text(text or "waiting for the answer"))
                waiting.start()
    finally:
        waiting.stop()


def _write(console: Console, text: str, style: str = "") -> None:
    # As segments: of a text, `print` and `out` would make spaces of tabs.
    console.print(Segments([Segment(text, console.get_style(style))]), end="", soft_wrap=True)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: brackets in it are no markup, numbers get no colours."""
    console.print(
        whole_characters(text), style=style, markup=False, highlight=False, emoji=False, soft_wrap=True
    )


def read_message(read_line: Callable[[str], str], prompt: str = "> ") -> str:
    """One message: a line, lines that end in a backslash and the next, or a block between triple quotes.

    Args:
        read_line: shows a prompt and returns a line without its newline, like `input`.
        prompt: shown before the first line.

    Raises:
        EOFError: the input ended before the message began.
    """
    line = read_line(prompt)
    lines: list[str] = []
    if line.lstrip().startswith('"""'):
        line = line.lstrip()[3:]
        while not line.rstrip().endswith('"""'):
            lines.append(line)
            try:
                line = read_line(". ")
            except EOFError:
                return "\n".join(lines).strip("\n")
        lines.append(line.rstrip()[:-3])
        return "\n".join(lines).strip("\n")
    while line.endswith("\\"):
        lines.append(line[:-1])
        try:
            line = read_line(". ")
        except EOFError:
            return "\n".join(lines)
    return "\n".join([*lines, line])


def line_reader() -> Callable[[str], str]:
    """A prompt with history, editing and pasting of several lines; Alt+Enter begins a new one.

    Where the answers go into a file, a plain reader without a prompt, which would go there too.
    """
    if not sys.stdout.isatty():
        sys.stdin.reconfigure(errors="replace")
        return lambda prompt: _plain_line()
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    return PromptSession(key_bindings=keys).prompt


def _plain_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")
