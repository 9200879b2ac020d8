"""What OpenAI's two completion endpoints make of deltas."""

from typing import Protocol

from strata.serve.deltas import (
    ContentDelta,
    Delta,
    End,
    Message,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)

# The loop guard breaks an answer off, as a limit does; OpenAI's clients know no other word for it.
_FINISH_REASONS = {"repetition": "length"}


class Shape(Protocol):
    """The form of a choice."""

    kind: str  # `object` of a response, and of a chunk
    chunk_kind: str

    def whole(self, message: Message) -> dict:
        """The fields of a whole choice."""

    def begin(self) -> list[dict]:
        """The fields of a stream's first chunk, if there is one before all text."""

    def chunk(self, delta: Delta) -> dict | None:
        """The fields of a chunk for a delta, if there is one."""

    def of_content(self, text: str) -> dict:
        """The fields of a chunk with content."""


class ChatShape:
    """`/v1/chat/completions`."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def whole(self, message: Message) -> dict:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        content = None if calls and not message.content else message.content
        fields: dict = {"role": "assistant", "content": content, "refusal": None}
        if message.reasoning:
            fields |= _thought(message.reasoning)
        return {"message": fields | ({"tool_calls": calls} if calls else {})}

    def begin(self) -> list[dict]:
        return [{"delta": {"role": "assistant", "content": ""}}]

    def chunk(self, delta: Delta) -> dict | None:
        match delta:
            case ReasoningDelta(text):
                return {"delta": _thought(text)}
            case ContentDelta(text):
                return self.of_content(text)
            case ToolCallStart(index, id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": id, "type": "function", "function": function}
                return {"delta": {"tool_calls": [call]}}
            case ToolArgumentsDelta(index, text):
                return {"delta": {"tool_calls": [{"index": index, "function": {"arguments": text}}]}}
            case End():
                return {"delta": {}}
        return None

    def of_content(self, text: str) -> dict:
        return {"delta": {"content": text}}


class TextShape:
    """`/v1/completions`."""

    kind = chunk_kind = "text_completion"

    def whole(self, message: Message) -> dict:
        return self.of_content(message.content)

    def begin(self) -> list[dict]:
        return []

    def chunk(self, delta: Delta) -> dict | None:
        match delta:
            case ContentDelta(text):
                return self.of_content(text)
            case End():
                return self.of_content("")
        return None

    def of_content(self, text: str) -> dict:
        return {"text": text}


def ending(end: End | None) -> dict:
    """Why a choice ended: OpenAI's word, vLLM's `stop_reason`, and what was left unfinished."""
    if end is None:
        return {"finish_reason": None}
    fields: dict = {"finish_reason": _FINISH_REASONS.get(end.reason, end.reason)}
    stop_reason = end.stop_string or ("repetition" if end.reason == "repetition" else None)
    if stop_reason is not None:
        fields["stop_reason"] = stop_reason
    return fields | ({"unfinished": end.unfinished} if end.unfinished else {})


def _thought(text: str) -> dict:
    """Thinking under the name that DeepSeek gave it, and the one that others read."""
    return {"reasoning_content": text, "reasoning": text}
