"""What screen readers, keyboards and weak eyes need of the pages, by the rules of axe-core."""

from collections.abc import Callable, Iterator

import pytest
from helpers.api_server import ApiServer
from helpers.axe import complaints
from helpers.npm_file import NpmError
from helpers.web_page import WebPage
from playwright.sync_api import expect
from web.conftest import SEEDS

OpenPage = Callable[..., WebPage]
TOOLS = [{"type": "function", "function": {"name": "weather"}}]


def check(page: WebPage) -> None:
    try:
        found = complaints(page.page)
    except NpmError as error:
        pytest.skip(str(error))
    assert found == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chat(open_page: OpenPage, scheme: str) -> None:
    page = open_page(settings={"seed": SEEDS["code"], "tools": TOOLS}, color_scheme=scheme)
    page.ask("Show me some code")
    page.said.hover()
    page.said.get_by_role("button", name="Edit this message").click()
    expect(page.page.get_by_label("Your message")).to_have_value("Show me some code")
    check(page)
    page.button("Settings").click()
    page.page.get_by_label("Seed").fill(str(SEEDS["two calls"]))
    page.page.get_by_label("Temperature").fill("hot")
    expect(page.page.get_by_text("valid number")).to_be_visible()
    page.page.wait_for_timeout(400)  # until the drawer has come in
    check(page)
    page.page.get_by_label("Temperature").fill("")
    page.button("Close settings").click()
    page.ask("How is the weather?")
    page.page.get_by_role("button", name="Rename or delete").click()
    page.page.get_by_text("Delete", exact=True).click()
    expect(page.page.get_by_role("dialog")).to_be_visible()
    page.page.wait_for_timeout(400)
    check(page)


def test_requests_show_no_bar_that_screen_readers_cannot_name(open_page: OpenPage) -> None:
    page = open_page().page
    shown = page.evaluate(
        """async () => {
            let shown = false
            const bar = '.q-loading-bar[role=progressbar]'
            const look = () => { shown = shown || document.querySelector(bar) !== null }
            const watch = new MutationObserver(look)
            watch.observe(document.body, {attributes: true, childList: true, subtree: true})
            for (let i = 0; i < 5; i++) await new Promise(done => {
                const request = new XMLHttpRequest()
                request.open('GET', '/health')
                request.onloadend = () => setTimeout(done, 50)
                request.send()
            })
            watch.disconnect()
            return shown
        }"""
    )
    assert not shown


def test_drawers_are_entered_and_left_with_the_keyboard(open_page: OpenPage) -> None:
    page = open_page(line="slow", width=390)
    page.say("Go on for ever")
    expect(page.answers).to_contain_text("go on on")
    page.button("Settings").focus()
    page.page.keyboard.press("Enter")
    expect(page.button("All settings to their defaults")).to_be_focused()
    page.page.get_by_label("Temperature").focus()
    page.page.evaluate("strata.enterDrawer('.strata-settings')")  # late, on a busy machine
    expect(page.page.get_by_label("Temperature")).to_be_focused()
    page.page.keyboard.press("Escape")
    expect(page.page.get_by_label("System prompt")).to_be_hidden()
    expect(page.field).to_be_focused()
    page.button("Conversations").click()
    expect(page.button("New conversation")).to_be_in_viewport()
    page.page.keyboard.press("Escape")
    expect(page.button("New conversation")).to_be_hidden()
    expect(page.button("Stop")).to_be_visible()  # none of them ended the answer; the next one does
    page.page.keyboard.press("Escape")
    expect(page.answers).to_contain_text("stopped by you")


@pytest.mark.parametrize("path", ["/monitor", "/plan", "/about"])
def test_other_pages(open_page: OpenPage, path: str) -> None:
    page = open_page(path, color_scheme="dark" if path == "/plan" else "light")
    expect(page.page.get_by_role("table").first).to_be_attached()
    check(page)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer([["x"]], tmp_path_factory.mktemp("keyed"), "--api-key", "open sesame") as server:
        yield server


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_signing_in_with_the_keyboard(open_page: OpenPage, keyed: ApiServer, scheme: str) -> None:
    page = open_page(url=keyed.url, width=320, height=480, color_scheme=scheme)
    check(page)
    page.page.keyboard.type("guess")  # the field has the focus
    page.page.keyboard.press("Enter")
    expect(page.page.get_by_role("alert")).to_contain_text("not a key of this server")
    assert page.fits()
    check(page)
    page.complaints.clear()  # the console says that the key was answered 401
    page.page.keyboard.type("open sesame")
    page.page.keyboard.press("Enter")
    expect(page.field).to_be_visible()
    page.page.get_by_role("link", name="About").click(trial=True)  # the model's name does not cover it
