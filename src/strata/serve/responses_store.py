"""Responses that are kept, in memory, for `previous_response_id`, retrieval and background work."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.errors import RequestError
from strata.serve.responses_items import Item

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20


@dataclass(slots=True)
class Entry:
    """A response that is kept.

    Args:
        response: as it is sent; of background work, as it is now.
        history: all items up to its answer, those of earlier responses included.
        size: bytes that it adds to those of earlier responses.
        task: its background work.
    """

    response: dict[str, Any]
    history: Sequence[Item] = ()
    size: int = 0
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class ResponseStore:
    """The last responses; the oldest make room for new ones, and their background work is ended.

    Args:
        max_responses, max_bytes: what it holds at most; the last response it holds whatever its size.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES):
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._entries

    def put(self, entry: Entry, own: Sequence[Item] = ()) -> None:
        """Keep a response, or what has become of it.

        Args:
            entry: the response.
            own: the items of its history that no earlier response has.
        """
        id_ = entry.response["id"]
        self._forget(id_)
        entry.size = len(json.dumps(entry.response)) + sum(len(item.model_dump_json()) for item in own)
        self._entries[id_] = entry
        self._size += entry.size
        while len(self._entries) > self._max_responses or (
            self._size > self._max_bytes and len(self._entries) > 1
        ):
            self.delete(next(iter(self._entries)))

    def get(self, id_: str) -> Entry:
        """A response; raises RequestError `response_not_found`."""
        if id_ not in self._entries:
            raise RequestError(f"there is no response {id_!r}", "response_id", "response_not_found")
        return self._entries[id_]

    def previous(self, id_: str) -> Entry:
        """The response that another goes on from; raises RequestError if there is none, or no answer yet."""
        if id_ not in self._entries:
            raise RequestError(
                f"previous_response_id: there is no response {id_!r}; it was not stored, or is too old",
                "previous_response_id",
                "previous_response_not_found",
            )
        entry = self._entries[id_]
        if (status := entry.response["status"]) not in ("completed", "incomplete"):
            raise RequestError(
                f"previous_response_id: response {id_!r} is {status}; only an answer can be gone on from",
                "previous_response_id",
            )
        self._entries.move_to_end(id_)
        return entry

    def delete(self, id_: str) -> None:
        """Forget a response and end its work; raises RequestError `response_not_found`."""
        entry = self.get(id_)
        self._forget(id_)
        if entry.task is not None:
            entry.task.cancel()

    def _forget(self, id_: str) -> None:
        if (entry := self._entries.pop(id_, None)) is not None:
            self._size -= entry.size
