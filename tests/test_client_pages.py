"""The pages of docs/clients: what they tell people to paste is well formed and leads to this server."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from strata.options import Options
from strata.serve.app import create_app

PAGES = sorted((Path(__file__).parents[1] / "docs" / "clients").glob("*.md"))
ADDRESS = "http://127.0.0.1:8080"


def snippets(page: Path) -> list[tuple[str, str]]:
    """Language and text of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


def parsed(language: str, text: str) -> Any:
    """A block as a client would read it; raises on a language that this test does not know."""
    readers = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load, "sh": exports}
    return readers[language](text)


def exports(text: str) -> dict[str, str]:
    """The variables that a shell snippet sets; every other line is a command with plain words."""
    words = [shlex.split(line) for line in text.splitlines()]
    return dict(word[1].split("=", 1) for word in words if word[0] == "export")


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


@pytest.fixture(scope="module")
def endpoints() -> set[str]:
    """`POST /v1/messages` and so on, as the server's own document has them."""
    paths = create_app(Options(model="scripted:m.jsonl")).openapi()["paths"]
    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page: Path, endpoints: set[str]) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:GET|POST) /[\w/]+", text))
    assert named and named <= endpoints
    urls = [u for block in snippets(page) for u in strings(parsed(*block)) if u.startswith("http://127")]
    assert urls or page.stem == "README"
    # What the client adds to the address, as `/messages` to `/v1`, must make a path of the page's protocol.
    for base in (url.removeprefix(ADDRESS) for url in urls):
        assert any(name.partition(" ")[2].startswith(f"{base}/") for name in named)
        assert base == ("" if page.stem == "claude-code" else "/v1")


def test_the_index_lists_every_page() -> None:
    index = next(page for page in PAGES if page.stem == "README").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", index))
    assert listed == {page.name for page in PAGES} - {"README.md"}
