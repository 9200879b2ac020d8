"""What Anthropic's messages make of deltas: content blocks, one after the other, and the events of each."""

import base64
from typing import Any

from pydantic_core import from_json

from strata.serve.deltas import (
    ContentDelta,
    Delta,
    End,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from strata.serve.sse import named_event

PING = named_event("ping", {"type": "ping"})
SIGNATURE = "strata"  # Anthropic's proves that its model thought it; here there is nothing to prove
_OMITTED = "strata:"  # before thinking that is not shown, which the client is to send back all the same


def omitted_thinking(signature: str) -> str | None:
    """The thinking that stands in the signature of a block whose thinking was not shown."""
    if not signature.startswith(_OMITTED):
        return None
    try:
        return base64.b64decode(signature.removeprefix(_OMITTED), validate=True).decode()
    except ValueError:
        return None


class Blocks:
    """The content of one answer, as it grows.

    Args:
        shows_thinking: else blocks of thinking have their text in the signature only.

    Attributes:
        content: the blocks so far; the arguments of a call are in `input` when it has ended.
    """

    def __init__(self, shows_thinking: bool = True):
        self.content: list[dict[str, Any]] = []
        self._shows_thinking = shows_thinking
        self._open = False
        self._hidden = (
            ""  # the thinking of a block, or the arguments of a call, that is not in its fields yet
        )

    def add(self, delta: Delta) -> list[bytes]:
        """The events of a delta."""
        match delta:
            case ReasoningDelta(text):
                return self._thinking(text)
            case ContentDelta(text):
                events = self._begin({"type": "text", "text": ""})
                self.content[-1]["text"] += text
                return [*events, self._delta({"type": "text_delta", "text": text})]
            case ToolCallStart(_, id, name):
                return self._begin({"type": "tool_use", "id": id, "name": name, "input": {}}, again=True)
            case ToolArgumentsDelta(_, text):
                self._hidden += text
                return [self._delta({"type": "input_json_delta", "partial_json": text})]
            case ToolCallEnd() | End():
                return self._end()
        return []

    def _thinking(self, text: str) -> list[bytes]:
        events = self._begin({"type": "thinking", "thinking": "", "signature": ""})
        if not self._shows_thinking:
            self._hidden += text
            return events
        self.content[-1]["thinking"] += text
        return [*events, self._delta({"type": "thinking_delta", "thinking": text})]

    def _begin(self, block: dict[str, Any], again: bool = False) -> list[bytes]:
        """Begin a block, unless one of its kind is open already; `again` begins one all the same."""
        if self._open and self.content[-1]["type"] == block["type"] and not again:
            return []
        events = self._end()
        self.content.append(block)
        self._open = True
        start = {"type": "content_block_start", "index": len(self.content) - 1, "content_block": block}
        return [*events, named_event("content_block_start", start)]

    def _end(self) -> list[bytes]:
        if not self._open:
            return []
        block, hidden = self.content[-1], self._hidden
        self._open, self._hidden = False, ""
        events = []
        if block["type"] == "thinking":
            hint = _OMITTED + base64.b64encode(hidden.encode()).decode() if hidden else SIGNATURE
            block["signature"] = hint
            events.append(self._delta({"type": "signature_delta", "signature": hint}))
        elif block["type"] == "tool_use":
            block["input"] = arguments_object(hidden)
        stop = {"type": "content_block_stop", "index": len(self.content) - 1}
        return [*events, named_event("content_block_stop", stop)]

    def _delta(self, delta: dict[str, str]) -> bytes:
        data = {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}
        return named_event("content_block_delta", data)


def arguments_object(text: str) -> dict[str, Any]:
    """A call's arguments as the object that `input` must be; of those broken off, what is there."""
    try:
        value = from_json(text or "{}", allow_inf_nan=False, allow_partial="trailing-strings")
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"arguments": value}
