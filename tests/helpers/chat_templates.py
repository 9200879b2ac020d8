"""The chat templates in tests/data/templates, by name."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "templates"
TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.jinja")}
