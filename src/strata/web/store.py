"""Where conversations are kept: in the person's browser (IndexedDB), where no one else reads them."""

import json
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from strata.errors import StrataError
from strata.web.conversation import Conversation, dump, load

TIMEOUT_S = 20.0  # a phone may be slow


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation in the list."""

    id: str
    title: str


class Store:
    """The browser's store, as seen from a page of it. The functions behind it are in `static/store.js`."""

    async def list(self, query: str, most: int) -> list[Summary]:
        """Of the conversations in which the words of `query` occur, the `most` that were changed last, in
        that order."""
        found = await self._call("list", query, most)
        return [Summary(item["id"], item["title"]) for item in found]

    async def load(self, id_: str) -> Conversation | None:
        """A conversation, if there is one of this id; in parts, since what a page sends is bounded."""
        text, part = "", await self._call("part", id_, 0)
        while part:
            text += part
            part = await self._call("part", id_, len(text.encode("utf-16-le")) // 2)
        return load(text) if text else None

    async def save(self, conversation: Conversation) -> None:
        """Keep a conversation as it is now, unless the browser has a newer state of it already."""
        conversation.revision += 1
        head = (conversation.id, conversation.title, conversation.changed, conversation.revision)
        await self._call("put", *head, dump(conversation))

    async def remove(self, id_: str) -> None:
        """Forget a conversation."""
        await self._call("remove", id_)

    async def settings(self) -> dict[str, Any]:
        """What a new conversation begins with: the settings that were used last."""
        return await self._call("settings")

    def keep_settings(self, settings: dict[str, Any]) -> None:
        """Remember the settings for new conversations."""
        ui.run_javascript(f"strata.store.keepSettings({json.dumps(settings)})")

    async def _call(self, function: str, *arguments: Any) -> Any:
        written = ", ".join(map(json.dumps, arguments))
        try:
            answer = await ui.run_javascript(
                f"strata.store.call('{function}', {written or 'null'})", timeout=TIMEOUT_S
            )
        except TimeoutError as error:
            raise StrataError("the browser does not answer; reload the page") from error
        if answer is None:  # the page was closed meanwhile
            raise StrataError("the page was closed")
        if "error" in answer:
            raise StrataError(f"the browser keeps no conversations: {answer['error']}")
        return answer["value"]
