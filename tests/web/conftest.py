"""One browser and one server for all tests of pages; `LINES` says which seed gets which answer."""

from collections.abc import Callable, Iterator

import pytest
from helpers.api_server import ApiServer
from helpers.chromium import NoChromiumError, chromium
from helpers.hostile import HOSTILE
from helpers.web_page import WebPage
from playwright.sync_api import Browser, sync_playwright

CODE = "Look:\n\n```python\nprint('<b>')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nDone.\n"

LINES: dict[str, list] = {
    "hello": ["Hello", ", ", "wor", "ld", "!"],
    "other": ["Another ", "answer."],
    "thinking": ["<think>", "\nLet me", {"sleep": 0.6}, " see.\n", "</think>", "\n\n", "It is ", "**4**."],
    "slow": ["go ", *(["on ", {"sleep": 0.02}] * 6000)],  # two minutes; a busy machine may be late to stop it
    "nothing": [],
    "thoughts alone": ["<think>", "\nLet me", " see"],
    "code": [CODE[i : i + 3] for i in range(0, len(CODE), 3)],
    "crash": ["x", {"crash": True}],
    "hostile": ["<think>", "\n", HOSTILE, "\n", "</think>", "\n\n", *HOSTILE.splitlines(keepends=True)],
    "call": [
        "<tool_call>",
        "\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n</function>\n",
        "</tool_call>",
    ],
    "two calls": [
        "<tool_call>",
        "\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n</function>\n",
        "</tool_call>",
        "\n",
        "<tool_call>",
        "\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n",
        "</tool_call>",
    ],
    "half a call": ["<tool_call>", "\n<function=weather>\n<parameter=city>\nKö", {"sleep": 600}],
    "long": [f"Word{i % 97} " + "\n\n" * (i % 40 == 39) for i in range(4000)],
}
SEEDS = {name: i for i, name in enumerate(LINES)}


# Of a module: Playwright keeps an event loop running in this thread, in which others could start none.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        program = chromium()
    except NoChromiumError as error:
        pytest.skip(str(error))
    with sync_playwright() as playwright:
        # The package is a headless shell; in containers, where tests run as root, there is no sandbox.
        arguments = ["--headless=shell", "--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(list(LINES.values()), tmp_path_factory.mktemp("web"), "--lanes", "2") as server:
        yield server


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server with the embedded model."""
    with ApiServer([["unused"]], tmp_path_factory.mktemp("embedded"), "--model", "embedded") as server:
        yield server


@pytest.fixture
def open_page(browser: Browser, server: ApiServer) -> Iterator[Callable[..., WebPage]]:
    """`open_page("/", line="hello", width=390)`: a page in a browser of its own, see `WebPage`.

    At the test's end no page may have complained in its console or asked another host for anything.
    """
    opened: list[WebPage] = []

    def open(path: str = "/", line: str | None = None, url: str = server.url, **more: object) -> WebPage:
        settings = {} if line is None else {"seed": SEEDS[line]}
        opened.append(WebPage(browser, url, path, **{"settings": settings, **more}))
        return opened[-1]

    yield open
    for page in opened:
        page.close()
    for page in opened:
        page.check()
