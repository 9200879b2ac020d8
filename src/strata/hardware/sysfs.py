"""Small files of /proc and /sys: one value each, and any of them may be missing."""

from pathlib import Path


def read_text(path: Path) -> str:
    """The file's text, stripped; "" where there is none, or where this user may not read it."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def read_number(path: Path) -> int | None:
    """The whole number in a file; None where there is none."""
    text = read_text(path)
    return int(text) if text.removeprefix("-").isdecimal() else None


def read_fields(path: Path) -> dict[str, int]:
    """The numbers in a file of lines `name number`."""
    lines = (line.split() for line in read_text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}
