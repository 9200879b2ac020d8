"""The page Chat when its server ends, and when a person goes back."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.api_server import ApiServer
from helpers.web_page import WebPage
from playwright.sync_api import expect

OpenPage = Callable[..., WebPage]
COUNTING = [item for i in range(3000) for item in (f"{i} ", {"sleep": 0.02})]


@pytest.mark.slow
def test_what_is_written_when_the_server_stops_is_kept(open_page: OpenPage, tmp_path: Path) -> None:
    with ApiServer([COUNTING], tmp_path) as server:
        page = open_page(url=server.url)
        page.say("Count")
        expect(page.answers).to_contain_text(" 20 ")
        seen = page.answers.locator(".strata-text").last.inner_text()
    with ApiServer([COUNTING], tmp_path, "--port", str(server.port)):
        expect(page.answers).to_contain_text("broken off: the server was stopped")  # it comes back by itself
        assert page.answers.locator(".strata-text").last.inner_text().startswith(seen.strip())
        page.page.goto("about:blank")
    page.complaints.clear()  # the console says that the server was gone


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_a_picture_is_refused_in_words_and_does_not_replace_the_page(open_page: OpenPage, kind: str) -> None:
    page = open_page().ready()
    taken = page.page.evaluate(
        """kind => {
            const data = new DataTransfer();
            data.items.add(new File(["x"], "cat.png", { type: "image/png" }));
            const fields = { bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data };
            const event = kind === "paste" ? new ClipboardEvent(kind, fields) : new DragEvent(kind, fields);
            return strata.composer().dispatchEvent(event);
        }""",
        kind,
    )
    assert not taken
    expect(page.page.get_by_text("Pictures and files cannot be sent")).to_be_visible()


def test_back_leads_to_the_conversation_before(open_page: OpenPage) -> None:
    page = open_page(line="hello")
    page.ask("First")
    page.page.wait_for_url(re.compile("c="))  # which the page changes by itself; Playwright hears of it later
    first = page.page.url
    page.button("New conversation").click()
    expect(page.answers).to_have_count(0)
    page.ask("Second")
    page.page.wait_for_url(lambda url: "c=" in url and url != first)
    second = page.page.url
    page.page.go_back()
    expect(page.said).to_have_text(re.compile("First"))
    expect(page.page).to_have_url(first)
    page.page.go_forward()
    expect(page.said).to_have_text(re.compile("Second"))
    expect(page.page).to_have_url(second)
    page.page.get_by_role("link", name="About").click()
    expect(page.region("For clients")).to_be_visible()
    page.page.go_back()
    expect(page.said).to_have_text(re.compile("Second"))
