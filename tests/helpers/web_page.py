"""A page of the web app in a browser that notes what must not happen."""

import copy
import json
import re
from typing import Self
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator, Page, expect

TIMEOUT_MS = 30_000  # a busy machine is no failure
expect.set_options(timeout=TIMEOUT_MS)


def containing(text: str) -> re.Pattern[str]:
    """What matches a text with this in it."""
    return re.compile(re.escape(text))


class WebPage:
    """A page in a fresh browser profile.

    Args:
        browser: Playwright's.
        url: of the server.
        path: of the page.
        settings: of new conversations, as `static/store.js` keeps them.
        width, height: of the window.
        **context: further arguments of Playwright's `new_context`.

    Attributes:
        page: Playwright's.
        complaints: of the console, uncaught errors and dialogs.
        others: addresses of other hosts that were asked for.
    """

    def __init__(
        self,
        browser: Browser,
        url: str,
        path: str = "/",
        settings: dict | None = None,
        width: int = 1200,
        height: int = 800,
        **context: object,
    ):
        self.url, self.complaints, self.others = url, [], []
        self.context = browser.new_context(viewport={"width": width, "height": height}, **context)
        self.context.set_default_timeout(TIMEOUT_MS)
        kept = json.dumps(json.dumps(settings or {}))
        self.context.add_init_script(
            f"if (!localStorage.getItem('strata.settings')) localStorage.setItem('strata.settings', {kept})"
        )
        self._open(path)

    def _open(self, path: str) -> None:
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("dialog", lambda dialog: (self._note("error", dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self._see(request.url))
        self.page.on("websocket", lambda socket: self._see(socket.url))
        self.page.goto(self.url + path)

    def window(self, path: str) -> Self:
        """Another window of the same browser profile."""
        other = copy.copy(self)
        other._open(path)
        return other

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _see(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.url).netloc:
            self.others.append(address)

    def close(self) -> None:
        """Close the browser profile."""
        self.context.close()

    def check(self) -> None:
        """Fail if the page complained or looked beyond its server."""
        assert self.complaints + self.others == []

    # --- Chat ---------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Path and query of the page."""
        return self.page.url.removeprefix(self.url)

    @property
    def field(self) -> Locator:
        """Where messages are written."""
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def answers(self) -> Locator:
        """The model's messages."""
        return self.page.get_by_label("The model answered")

    @property
    def said(self) -> Locator:
        """The person's messages."""
        return self.page.get_by_label("You said")

    def button(self, name: str) -> Locator:
        """A button by its name."""
        return self.page.get_by_role("button", name=name, exact=True)

    def ready(self) -> "WebPage":
        """Wait until the conversation is shown."""
        expect(self.page.get_by_role("log")).not_to_be_empty()
        return self

    def say(self, text: str) -> None:
        """Send a message with the keyboard."""
        self.ready()
        self.field.fill(text)
        self.field.press("Enter")

    def ask(self, text: str) -> Locator:
        """Send a message and wait for the end of the answer."""
        self.say(text)
        expect(self.page.get_by_role("status").filter(has_text="The answer is complete.")).to_be_attached()
        return self.answers.last

    def region(self, name: str) -> Locator:
        """A named part of the page."""
        return self.page.get_by_role("region", name=name, exact=True)

    def fits(self) -> bool:
        """Whether nothing is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
