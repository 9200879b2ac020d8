"""The page *Monitor* in a browser, beside requests that other clients send."""

import json
import threading
import time
from collections.abc import Callable

import httpx
import psutil
from helpers.api_server import ApiServer
from helpers.web_page import WebPage, containing
from playwright.sync_api import expect
from web.conftest import SEEDS

CHAT = {"messages": [{"role": "user", "content": "My secret."}], "stream": True}


class Answer:
    """A request that another client sends, in a thread; `events` are those it got, or its one error."""

    def __init__(self, url: str, **fields: object):
        self.events: list[str] = []
        name = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"]
        self._body = CHAT | {"model": name} | fields
        self._url = f"{url}/v1/chat/completions"
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=120, trust_env=False) as stream:
            lines = (line.removeprefix("data: ") for line in stream.iter_lines())
            self.events.extend(line for line in lines if line.startswith("{"))

    def ended(self) -> dict:
        """The last event, once there is one."""
        self.thread.join(120)  # for an engine to start again, on a busy machine
        assert not self.thread.is_alive()
        return json.loads(self.events[-1])


def test_monitor_moves_while_a_request_runs_and_cancels_it(
    open_page: Callable[..., WebPage], server: ApiServer
) -> None:
    page = open_page("/monitor")
    rows = page.region("Requests under way").get_by_role("row")
    writing = page.region("Writing").locator(".strata-tile-number")
    expect(writing).to_have_text("0")
    expect(rows).to_have_count(0)
    answer = Answer(server.url, seed=SEEDS["slow"])
    expect(rows.nth(1)).to_contain_text("writing")
    expect(rows.nth(1)).to_contain_text("chat completions")
    expect(writing).not_to_have_text("0")
    expect(page.region("Requests").locator(".strata-tile-number")).to_have_text("1")
    expect(page.region("Requests")).to_contain_text("1 of 2 lanes at work")
    before = rows.nth(1).inner_text()
    expect(rows.nth(1)).not_to_have_text(before)  # goes on
    assert "secret" not in page.page.content()
    page.page.get_by_role("button", name="Cancel chat completions request").click()
    assert answer.ended()["error"]["code"] == "request_cancelled"
    expect(rows).to_have_count(0)
    expect(page.page.get_by_text("None.")).to_be_visible()
    # Charts draw on canvases, one in each tile.
    expect(page.page.locator(".strata-tile canvas")).to_have_count(6)
    # A model without experts has no map of them.
    expect(page.region("Use of experts")).to_be_hidden()


def test_a_dead_engine_is_told_of(open_page: Callable[..., WebPage], server: ApiServer) -> None:
    page = open_page("/monitor")
    state = page.page.get_by_role("status")
    expect(state).to_contain_text("parrot · scripted")
    Answer(server.url, seed=SEEDS["crash"]).ended()
    expect(state).to_contain_text("SIGABRT")
    Answer(server.url, seed=SEEDS["hello"]).ended()
    expect(state).to_contain_text("parrot · scripted")


def test_the_map_of_experts_is_drawn(open_page: Callable[..., WebPage], embedded: ApiServer) -> None:
    page = open_page("/monitor", url=embedded.url)
    canvas = page.page.get_by_role("img", name="Map of layers and experts")
    expect(canvas).to_have_attribute("aria-label", containing("None was used yet"))
    Answer(embedded.url, max_tokens=8).ended()
    expect(canvas).to_have_attribute("aria-label", containing("take 80 %"))
    expect(canvas).to_have_attribute("aria-label", containing("256 experts in 8 layers, all in RAM"))
    pixels = "(c) => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, 32, 8).data.buffer)).size"
    assert canvas.evaluate(pixels) >= 5  # colours
    canvas.hover(position={"x": 3, "y": 3})
    expect(page.page.get_by_text("layer 0, expert 0:")).to_be_visible()
    expect(page.region("Memory by purpose")).to_contain_text("n-gram table")


def test_no_page_no_work(open_page: Callable[..., WebPage], server: ApiServer) -> None:
    """An engine without requests sleeps until it is asked something, which an open monitor does."""
    pid = httpx.get(f"{server.url}/v1/status", trust_env=False).json()["processes"]["engine"]["pid"]

    def wakes(seconds: float) -> int:
        process = psutil.Process(pid)
        before = process.num_ctx_switches().voluntary
        time.sleep(seconds)
        return process.num_ctx_switches().voluntary - before

    page = open_page("/monitor")
    expect(page.region("Writing").locator(".strata-tile-number")).to_have_text("0")
    assert wakes(2) > 0
    page.close()
    deadline = time.monotonic() + 60  # for what was under way
    while wakes(2):
        assert time.monotonic() < deadline


def test_nothing_is_wider_than_a_phone(open_page: Callable[..., WebPage], embedded: ApiServer) -> None:
    page = open_page("/monitor", url=embedded.url, width=360, height=700)
    expect(page.region("Use of experts")).to_be_visible()
    assert page.fits()


def test_it_is_reached_by_keyboard(open_page: Callable[..., WebPage]) -> None:
    page = open_page("/")
    link = page.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Monitor")
    link.focus()
    page.page.keyboard.press("Enter")
    expect(page.region("Writing")).to_be_visible()
