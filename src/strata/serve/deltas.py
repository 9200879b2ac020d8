"""What an answer is made of as it arrives, in words that every protocol can be told in.

The deltas of one answer come in this order: reasoning, then content and tool calls in any order, then `End`.
A call is its `ToolCallStart`, any number of `ToolArgumentsDelta`, and its `ToolCallEnd`; no other delta comes
between them, and the next call begins after that end.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Reason = Literal["stop", "length", "tool_calls", "repetition"]


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins; calls are numbered from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArgumentsDelta:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call ends. One that is not complete was broken off: its arguments are no whole JSON."""

    index: int
    complete: bool


@dataclass(frozen=True, slots=True)
class End:
    """The last delta.

    Args:
        reason: "tool_calls" if the model stopped of itself and calls wait for their results, "length" at a
            limit of tokens, "repetition" if the loop guard ended it, else "stop".
        stop_string: the stop string that ended it.
        unfinished: what it was in the middle of.
    """

    reason: Reason
    stop_string: str | None = None
    unfinished: Literal["reasoning", "tool_call"] | None = None


Delta = ReasoningDelta | ContentDelta | ToolCallStart | ToolArgumentsDelta | ToolCallEnd | End


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The same deltas, where neighbours that go on from each other are one."""
    out: list[Delta] = []
    for delta in deltas:
        last = out[-1] if out else None
        match last, delta:
            case (ReasoningDelta(a), ReasoningDelta(b)):
                out[-1] = ReasoningDelta(a + b)
            case (ContentDelta(a), ContentDelta(b)):
                out[-1] = ContentDelta(a + b)
            case (ToolArgumentsDelta(i, a), ToolArgumentsDelta(_, b)):
                out[-1] = ToolArgumentsDelta(i, a + b)
            case _:
                out.append(delta)
    return out


@dataclass(slots=True)
class ToolCall:
    """A whole call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass(slots=True)
class Message:
    """A whole answer, collected from its deltas."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    end: End | None = None

    def add(self, deltas: Iterable[Delta]) -> None:
        """Take the next deltas."""
        for delta in deltas:
            match delta:
                case ReasoningDelta(text):
                    self.reasoning += text
                case ContentDelta(text):
                    self.content += text
                case ToolCallStart(_, id, name):
                    self.tool_calls.append(ToolCall(id, name))
                case ToolArgumentsDelta(index, text):
                    self.tool_calls[index].arguments += text
                case ToolCallEnd(index, complete):
                    self.tool_calls[index].complete = complete
                case End():
                    self.end = delta
