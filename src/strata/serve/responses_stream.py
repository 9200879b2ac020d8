"""What OpenAI's Responses make of deltas: output items, one after the other, and the events of each."""

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strata.serve.anthropic_stream import arguments_object
from strata.serve.deltas import (
    ContentDelta,
    Delta,
    End,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from strata.serve.responses_items import sealed
from strata.serve.responses_tools import CustomTool, Known

Event = dict[str, Any]
_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# Whole characters of a JSON string: a pair of surrogates is one.
_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)


@dataclass(frozen=True, slots=True)
class TextKind:
    """A kind of text in an item: names of its list, of the parts in it, and of its events."""

    place: str
    part: str
    part_event: str
    text_event: str

    def new_part(self) -> dict[str, Any]:
        """An empty part."""
        extra = {"annotations": [], "logprobs": []} if self.part == "output_text" else {}
        return {"type": self.part, "text": ""} | extra


CONTENT = TextKind("content", "output_text", "response.content_part", "response.output_text")
THINKING = TextKind("content", "reasoning_text", "response.content_part", "response.reasoning_text")
SUMMARY = TextKind(
    "summary", "summary_text", "response.reasoning_summary_part", "response.reasoning_summary_text"
)


class InputText:
    """The input of a custom tool, read out of the JSON text `{"input": "..."}` as that arrives."""

    def __init__(self) -> None:
        self._text = ""
        self._at: int | None = None  # how far it has been read; None before the input begins
        self._given = ""

    def push(self, text: str) -> str:
        """More of the JSON; returns more of the input."""
        self._text += text
        if self._at is None:
            if (opening := _OPENING.match(self._text)) is None:
                return ""
            self._at = opening.end()
        end = _CHARACTERS.match(self._text, self._at).end()
        try:
            new = json.loads(f'"{self._text[self._at : end]}"', strict=False)
        except ValueError:  # an escape that is none; `finish` tells what it is
            return ""
        self._at = end
        self._given += new
        return new

    def finish(self) -> tuple[str, str]:
        """The rest of the input, and all of it."""
        value = arguments_object(self._text).get("input")
        whole = value if isinstance(value, str) else self._text
        if not whole.startswith(self._given):
            whole = self._given
        return whole[len(self._given) :], whole


class Output:
    """The items of one answer, as they grow.

    Args:
        known: the tools that the model was told of.
        summarised: thinking is given as its own summary, not as content.
        seals: thinking is also given as `encrypted_content`.

    Attributes:
        items: the items so far.
    """

    def __init__(self, known: Mapping[str, Known], summarised: bool = False, seals: bool = False):
        self.items: list[dict[str, Any]] = []
        self._known, self._seals = known, seals
        self._thinking = SUMMARY if summarised else THINKING
        self._text: TextKind | None = None  # of the item that is open, if it is text
        self._input: InputText | None = None  # of the custom tool's call that is open

    def add(self, delta: Delta) -> Iterator[Event]:
        """The events of a delta, without their sequence numbers."""
        match delta:
            case ReasoningDelta(text):
                yield from self._more(self._thinking, text)
            case ContentDelta(text):
                yield from self._more(CONTENT, text)
            case ToolCallStart(_, id, name):
                yield from self._end_text("completed")
                yield from self._begin_call(id, name)
            case ToolArgumentsDelta(_, text):
                yield from self._more_arguments(text)
            case ToolCallEnd(_, complete):
                yield from self._end_call("completed" if complete else "incomplete")
            case End(reason):
                broken_off = reason in ("length", "repetition")
                yield from self._end_text("incomplete" if broken_off else "completed")

    # --- text ---------------------------------------------------------------------------------------

    def _more(self, kind: TextKind, text: str) -> Iterator[Event]:
        if self._text is not kind:
            yield from self._end_text("completed")
            yield from self._begin_text(kind)
        self.items[-1][kind.place][0]["text"] += text
        extra = {"logprobs": []} if kind is CONTENT else {}
        yield self._of_part(kind, f"{kind.text_event}.delta", delta=text, **extra)

    def _begin_text(self, kind: TextKind) -> Iterator[Event]:
        self._text = kind
        if kind is CONTENT:
            item = {"id": _new_id("msg"), "type": "message", "role": "assistant", "content": []}
        else:
            content = {"content": []} if kind is THINKING else {}
            item = {"id": _new_id("rs"), "type": "reasoning", "summary": []} | content
        yield self._begin(item | {"status": "in_progress"})
        part = kind.new_part()
        yield self._of_part(kind, f"{kind.part_event}.added", part=part)
        self.items[-1][kind.place] = [part]

    def _end_text(self, status: str) -> Iterator[Event]:
        if (kind := self._text) is None:
            return
        self._text = None
        item = self.items[-1]
        (part,) = item[kind.place]
        extra = {"logprobs": []} if kind is CONTENT else {}
        yield self._of_part(kind, f"{kind.text_event}.done", text=part["text"], **extra)
        yield self._of_part(kind, f"{kind.part_event}.done", part=part)
        if kind is not CONTENT and self._seals:
            item["encrypted_content"] = sealed(part["text"])
        yield self._end(status)

    def _of_part(self, kind: TextKind, event: str, **fields: Any) -> Event:
        return self._of_item(event, **{f"{kind.place}_index": 0}, **fields)

    # --- calls --------------------------------------------------------------------------------------

    def _begin_call(self, call_id: str, name: str) -> Iterator[Event]:
        known = self._known.get(name)
        custom = known is not None and isinstance(known.tool, CustomTool)
        self._input = InputText() if custom else None
        kind, prefix, field = (
            ("custom_tool_call", "ctc", "input") if custom else ("function_call", "fc", "arguments")
        )
        item = {"id": _new_id(prefix), "type": kind, "call_id": call_id, field: ""}
        item["name"] = known.tool.name if known else name
        if known and known.namespace:
            item["namespace"] = known.namespace.name
        yield self._begin(item | {"status": "in_progress"})

    def _more_arguments(self, text: str) -> Iterator[Event]:
        if self._input is None:
            self.items[-1]["arguments"] += text
            yield self._of_item("response.function_call_arguments.delta", delta=text)
        elif more := self._input.push(text):
            yield self._of_item("response.custom_tool_call_input.delta", delta=more)

    def _end_call(self, status: str) -> Iterator[Event]:
        item = self.items[-1]
        if self._input is None:
            arguments = {"name": item["name"], "arguments": item["arguments"]}
            yield self._of_item("response.function_call_arguments.done", **arguments)
        else:
            rest, item["input"] = self._input.finish()
            if rest:
                yield self._of_item("response.custom_tool_call_input.delta", delta=rest)
            yield self._of_item("response.custom_tool_call_input.done", input=item["input"])
        yield self._end(status)

    # --- items --------------------------------------------------------------------------------------

    def _begin(self, item: dict[str, Any]) -> Event:
        self.items.append(item)
        index = len(self.items) - 1
        return {"type": "response.output_item.added", "output_index": index, "item": dict(item)}

    def _end(self, status: str) -> Event:
        item = self.items[-1]
        item["status"] = status
        return {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _of_item(self, event: str, /, **fields: Any) -> Event:
        head = {"type": event, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return head | fields


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
