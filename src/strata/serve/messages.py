"""Chat messages as clients send them, brought into the one form that chat templates expect."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strata.errors import RequestError

Message = dict[str, Any]

_TEXT_PARTS = {"text", "input_text", "output_text"}
_SYSTEM_ROLES = ("system", "developer")
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Copy messages into the form that chat templates expect.

    Fields that are null are dropped; content is a string, of parts the texts joined; tool arguments given as
    a JSON string are parsed, and kept as they are if that fails; reasoning is found under each name that a
    template may read (transformers does the same). System messages are joined into one, which comes first;
    a single first one keeps its role.

    Raises:
        RequestError: there is no message, or one is malformed or has content that is not text.
    """
    if not messages:
        raise RequestError("messages is empty; a conversation needs at least one", "messages")
    normal = [_normalise(message, f"messages[{i}]") for i, message in enumerate(messages)]
    return _lead_with_system(normal)


def _normalise(message: Mapping[str, Any], field: str) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{field} is {type(message).__name__}; a message is an object", field)
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{field}.role is missing; it names who speaks, e.g. 'user'", f"{field}.role")
    normal: Message = {key: value for key, value in message.items() if value is not None}
    normal["content"] = content_text(normal.get("content"), f"{field}.content")
    if "tool_calls" in normal:
        if not isinstance(normal["tool_calls"], list):
            raise RequestError(f"{field}.tool_calls is not a list", f"{field}.tool_calls")
        normal["tool_calls"] = [_parse_arguments(call) for call in normal["tool_calls"]]
    reasoning = next((normal[name] for name in _REASONING_FIELDS if name in normal), None)
    if reasoning is not None:
        normal = {"thinking": reasoning, **normal, "reasoning_content": reasoning}
    return normal


def content_text(content: Any, field: str) -> str:
    """The text of a message's content: a string, a list of text parts, or nothing.

    Raises:
        RequestError: a part is not text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{field} is {type(content).__name__}; it is a string or a list of parts", field)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part if isinstance(part, str) else part.get("text") if kind in _TEXT_PARTS else None
        if not isinstance(text, str):
            raise RequestError(
                f"{field}[{i}] is of type {kind!r}; this server reads text only", f"{field}[{i}]"
            )
        texts.append(text)
    return "".join(texts)


def _parse_arguments(call: Any) -> Any:
    """A tool call with its arguments as an object, where they are the JSON of one."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _lead_with_system(messages: list[Message]) -> list[Message]:
    systems = [i for i, message in enumerate(messages) if message["role"] in _SYSTEM_ROLES]
    if systems in ([], [0]):
        return messages
    texts = [messages[i]["content"] for i in systems]
    leading: Message = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [leading, *(m for m in messages if m["role"] not in _SYSTEM_ROLES)]
