"""What a model may be made to write in order to run in a page, or to tell another host of it."""

from pathlib import Path

HOSTILE = (Path(__file__).parents[1] / "data" / "hostile.md").read_text("utf-8")
