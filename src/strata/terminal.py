"""What `chat` and `demo` show: a model's text in a terminal, safely, and messages typed by a person."""

import re
from collections.abc import Callable, Iterable

from rich.console import Console

from strata.client import Delta

# A model's text must not move the cursor, rename the window or write to the clipboard (CWE-150).
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def harmless(text: str) -> str:
    """`text` without control characters other than newline and tab, and without lone surrogates."""
    return _CONTROL.sub("", text)


def show_answer(console: Console, deltas: Iterable[Delta], collected: list[str]) -> None:
    """Print pieces as they come, thinking dimmed; the answer's own text also goes to `collected`.

    `collected` is an argument and not a result, so that it holds what came when Ctrl+C ends the stream.
    """
    thinking = False
    for delta in deltas:
        if thinking and not delta.thinking:
            console.print("\n")
        thinking = delta.thinking
        if not thinking:
            collected.append(delta.text)
        console.print(
            harmless(delta.text),
            end="",
            style="dim" if thinking else None,
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=True,
        )
    console.print()


def read_message(read_line: Callable[[str], str]) -> str:
    """One message: a line, lines that end in a backslash and the next, or a block between triple quotes.

    Args:
        read_line: shows a prompt and returns a line without its newline, like `input`.

    Raises:
        EOFError: the input ended before the message began.
    """
    line = read_line("> ")
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
    """`input` for a pipe; in a terminal, a prompt with history, editing and pasting of several lines."""
    import sys

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return lambda prompt: _plain_line(sys.stdin)
    from prompt_toolkit import PromptSession

    return PromptSession().prompt


def _plain_line(stream) -> str:
    line = stream.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")
