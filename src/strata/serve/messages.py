"""Chat messages as clients send them, brought into the one form that chat templates expect."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strata.errors import RequestError
from strata.serve.surrogates import replace_halves

Message = dict[str, Any]

_TEXT_PARTS = {"text", "input_text", "output_text"}
_SYSTEM_ROLES = ("system", "developer")
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")

# For models whose template knows no tools: how to call them, and how calls and results are shown.
_TOOLS_TEXT = """# Tools

You may call these functions:
<tools>
{tools}
</tools>

To call one, end your answer with this, once for each call:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>
Its result comes in <tool_response> tags."""


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Copy messages into the form that chat templates expect.

    Fields that are null are dropped; content is a string, of parts the texts joined; tool arguments given as
    a JSON string are parsed, and kept as they are if that fails; reasoning is found under each name that a
    template may read (transformers does the same). A tool's message gets the name of the function that was
    called. System messages are joined into one, which comes first; a single first one keeps its role. Turns
    that hold nothing are left out, the last one excepted: clients add them, and drop them again later.

    Raises:
        RequestError: there is no message, or one is malformed or has content that is not text.
    """
    if not messages:
        raise RequestError("messages is empty; a conversation needs at least one", "messages")
    normal = [_normalise(message, f"messages[{i}]") for i, message in enumerate(messages)]
    return _lead_with_system(_with_tool_names(_without_empty_turns(normal)))


def with_joined_turns(messages: Sequence[Message]) -> list[Message]:
    """The messages with those of a user that follow each other as one, for templates that insist on turns."""
    joined: list[Message] = []
    for message in messages:
        if joined and message["role"] == "user" == joined[-1]["role"]:
            text = f"{joined[-1]['content']}\n\n{message['content']}"
            joined[-1] = joined[-1] | {"content": text}
        else:
            joined.append(message)
    return joined


def with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """The messages with the arguments of tool calls as JSON text, for templates that write them as it is."""
    return _map_functions(messages, _text_arguments)


def with_object_arguments(messages: Sequence[Message]) -> list[Message]:
    """The messages with all arguments of tool calls as objects, also those that are no JSON."""
    return _map_functions(messages, _object_arguments)


def with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages with one call each, followed by its result, for templates that take no more at once."""
    results = {m["tool_call_id"]: m for m in messages if m["role"] == "tool" and "tool_call_id" in m}
    single: list[Message] = []
    placed: set[str] = set()
    for message in messages:
        calls = message.get("tool_calls") or ()
        if len(calls) < 2 and message.get("tool_call_id") not in placed:
            single.append(message)
        for i, call in enumerate(calls if len(calls) > 1 else ()):
            single.append(message | {"tool_calls": [call]} | ({"content": ""} if i else {}))
            if (id_ := call.get("id")) in results:
                single.append(results[id_])
                placed.add(id_)
    return single


def with_short_ids(messages: Sequence[Message]) -> list[Message]:
    """The messages with ids of tool calls of nine letters and digits, as Mistral's templates insist on."""

    def shorten(item: Message, name: str) -> Message:
        id_ = item.get(name)
        return item | {name: hashlib.sha256(id_.encode()).hexdigest()[:9]} if isinstance(id_, str) else item

    shortened = []
    for message in messages:
        calls = [shorten(call, "id") for call in message.get("tool_calls") or ()]
        message = message | {"tool_calls": calls} if calls else message
        shortened.append(shorten(message, "tool_call_id"))
    return shortened


def spell_out_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> list[Message]:
    """The messages with tools, calls and results as text, for templates that know none of them."""
    spelled: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if spelled and spelled[-1]["role"] == "tool":  # user and assistant must take turns in some
                spelled[-1]["content"] += "\n" + result
            else:
                spelled.append({"role": "tool", "content": result})
            continue
        calls = [_spelled_call(call) for call in message.get("tool_calls") or ()]
        content = "\n".join(text for text in (message["content"], *calls) if text)
        spelled.append({k: v for k, v in message.items() if k != "tool_calls"} | {"content": content})
    spelled = [m | {"role": "user"} if m["role"] == "tool" else m for m in spelled]
    if not tools:
        return spelled
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _lead_with_system(
        [*spelled[:1], {"role": "system", "content": _TOOLS_TEXT.format(tools=listed)}, *spelled[1:]]
    )


def _spelled_call(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    function = function if isinstance(function, Mapping) else {}
    shown = {"name": function.get("name"), "arguments": function.get("arguments") or {}}
    return f"<tool_call>\n{json.dumps(shown, ensure_ascii=False)}\n</tool_call>"


def _map_functions(messages: Sequence[Message], change: Callable[[Any], Any]) -> list[Message]:
    """The messages with the arguments of each tool call changed."""

    def changed(call: Any) -> Any:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or "arguments" not in function:
            return call
        return {**call, "function": {**function, "arguments": change(function["arguments"])}}

    return [
        message | {"tool_calls": [changed(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _text_arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _object_arguments(arguments: Any) -> Any:
    return {"arguments": arguments} if isinstance(arguments, str) else arguments


def _without_empty_turns(messages: list[Message]) -> list[Message]:
    """Only a turn that says nothing at all may go: calls, thinking and the results of tools say something."""

    def is_empty(message: Message) -> bool:
        said = message["content"].strip() or message.get("tool_calls") or message.get("reasoning_content")
        return message["role"] in ("user", "assistant") and not said

    return [*(message for message in messages[:-1] if not is_empty(message)), messages[-1]]


def _with_tool_names(messages: list[Message]) -> list[Message]:
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or ()
        if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
        if isinstance(call.get("id"), str) and "name" in call["function"]
    }
    return [
        message | {"name": names[message["tool_call_id"]]}
        if message["role"] == "tool" and "name" not in message and message.get("tool_call_id") in names
        else message
        for message in messages
    ]


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
        (normal,) = _map_functions([normal], _parsed_arguments)
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


def _parsed_arguments(arguments: Any) -> Any:
    """Arguments as an object, where they are the JSON of one."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(replace_halves(arguments) or "{}")
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _lead_with_system(messages: list[Message]) -> list[Message]:
    systems = [i for i, message in enumerate(messages) if message["role"] in _SYSTEM_ROLES]
    if systems in ([], [0]):
        return messages
    texts = [messages[i]["content"] for i in systems]
    leading: Message = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [leading, *(m for m in messages if m["role"] not in _SYSTEM_ROLES)]
