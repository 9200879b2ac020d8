"""Styles, scripts and pictures of our own, which are served from the package."""

from pathlib import Path

URL = "/_strata"  # where they are served
FOLDER = Path(__file__).parent / "static"


def read_static(name: str) -> str:
    """The text of a file among them."""
    return (FOLDER / name).read_text("utf-8")
