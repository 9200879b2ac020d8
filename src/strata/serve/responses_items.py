"""The items of OpenAI's Responses that clients send, and what they are in the form that templates expect."""

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from strata.serve.fields import Strict, others, with_notes
from strata.serve.messages import Message
from strata.serve.responses_tools import AnyTool, check_tools, qualified

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
_SEALED = "strata:"  # before thinking in `encrypted_content`, which clients that store nothing send back
Status = Literal["in_progress", "completed", "incomplete"]


def sealed(thinking: str) -> str:
    """Thinking as `encrypted_content`: not secret, but opaque to clients."""
    return _SEALED + base64.b64encode(thinking.encode()).decode()


def unsealed(content: str | None) -> str:
    """The thinking in `encrypted_content`; none in what others have encrypted."""
    if content is None or not content.startswith(_SEALED):
        return ""
    try:
        return base64.b64decode(content.removeprefix(_SEALED), validate=True).decode()
    except ValueError:
        return ""


class Item(Strict):
    """What all items may have."""

    id: str | None = None
    status: Status | None = None


class Part(Strict):
    """A part that is text. Other kinds are refused by name, see `_parts`."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"]
    text: str = ""
    refusal: str = ""
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: Any = None


def _parts(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise ValueError("a string or a list of parts is expected")
    for i, kind in others(value, _TEXTS):
        raise ValueError(f"part {i} is of type {kind!r}; this server reads text only")
    return value


Parts = Annotated[list[Part], BeforeValidator(_parts)]


def _text(parts: Iterable[Part], joint: str = "") -> str:
    return joint.join(part.text or part.refusal for part in parts)


class InputMessage(Item):
    """A message; the type may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    phase: Literal["commentary", "final_answer"] | None = None


class Reasoning(Item):
    """The model's earlier thinking."""

    type: Literal["reasoning"]
    summary: Annotated[list[Part], Field(default_factory=list)]
    content: Annotated[list[Part], Field(default_factory=list)]
    encrypted_content: str | None = None

    @property
    def text(self) -> str:
        """The thinking, as whole as the client has it."""
        return unsealed(self.encrypted_content) or _text(self.content) or _text(self.summary, "\n\n")


class Call(Item):
    """What calls and their results have in common."""

    call_id: str
    name: str | None = None
    namespace: str | None = None
    caller: Any = None  # always the model


class FunctionCall(Call):
    """An earlier call of a function."""

    type: Literal["function_call"]
    name: str
    arguments: str


class CustomCall(Call):
    """An earlier call of a custom tool."""

    type: Literal["custom_tool_call"]
    name: str
    input: str


class CallOutput(Call):
    """What a tool answered."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: Annotated[Parts, BeforeValidator(with_notes)]


class AdditionalTools(Item):
    """Tools that came to the request's own in the course of the conversation."""

    type: Literal["additional_tools"]
    role: Literal["developer"]
    tools: Annotated[list[AnyTool], BeforeValidator(check_tools)]


_KINDS: dict[str, type[Item]] = {
    "message": InputMessage,
    "reasoning": Reasoning,
    "function_call": FunctionCall,
    "function_call_output": CallOutput,
    "custom_tool_call": CustomCall,
    "custom_tool_call_output": CallOutput,
    "additional_tools": AdditionalTools,
}


def _kind(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else item.type
    return f"<{_KINDS[kind].__name__}>" if kind in _KINDS else ""


def _items(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise ValueError("a string or a list of items is expected")
    for i, item in enumerate(value):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ValueError(f"item {i} is of type {kind!r}; this server takes {', '.join(_KINDS)}")
    return value


AnyItem = Annotated[
    Annotated[InputMessage, Tag("<InputMessage>")]
    | Annotated[Reasoning, Tag("<Reasoning>")]
    | Annotated[FunctionCall, Tag("<FunctionCall>")]
    | Annotated[CustomCall, Tag("<CustomCall>")]
    | Annotated[CallOutput, Tag("<CallOutput>")]
    | Annotated[AdditionalTools, Tag("<AdditionalTools>")],
    Discriminator(_kind),
]
Items = Annotated[list[AnyItem], BeforeValidator(_items)]


def openai_messages(items: Sequence[Item]) -> list[Message]:
    """The items in the form of chat completions: thinking, text and calls of one turn are one message."""
    made: list[Message] = []
    for item in items:
        match item:
            case InputMessage(role="assistant"):
                _assistant(made)["content"] += _text(item.content)
            case InputMessage():
                made.append({"role": item.role, "content": _text(item.content, "\n")})
            case Reasoning() if text := item.text:
                message = _assistant(made)
                earlier = message.get("reasoning_content")
                message["reasoning_content"] = f"{earlier}\n\n{text}" if earlier else text
            case FunctionCall() | CustomCall():
                _assistant(made).setdefault("tool_calls", []).append(_call(item))
            case CallOutput():
                text = _text(item.output, "\n")
                made.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
    return made


def _assistant(made: list[Message]) -> Message:
    """The assistant's message that is being made, begun if there is none."""
    if not made or made[-1]["role"] != "assistant":
        made.append({"role": "assistant", "content": ""})
    return made[-1]


def _call(item: FunctionCall | CustomCall) -> dict[str, Any]:
    if isinstance(item, CustomCall):
        arguments = json.dumps({"input": item.input}, ensure_ascii=False)
    else:
        arguments = item.arguments
    function = {"name": qualified(item.namespace, item.name), "arguments": arguments}
    return {"id": item.call_id, "type": "function", "function": function}
