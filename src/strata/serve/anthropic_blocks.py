"""The content blocks of Anthropic's messages, and what they are in the one form that templates expect."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from strata.errors import RequestError
from strata.serve.anthropic_stream import omitted_thinking
from strata.serve.fields import Strict, with_notes
from strata.serve.messages import Message

# Claude Code's stamp of version and session: no prompt, and different each time, which no cache survives.
_BILLING = "x-anthropic-billing-header:"
_REFUSED = {
    "image": "this server reads text only",
    "document": "this server reads documents of plain text only",
}


class CacheControl(Strict):
    """A hint where the client would have the prompt cached; here every prompt is."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = None


class Block(Strict):
    """What all blocks may have."""

    cache_control: CacheControl | None = None


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any] | None, Field(max_length=0)] = None


class TextSource(Strict):
    """The text of a document."""

    type: Literal["text"]
    media_type: Literal["text/plain"] = "text/plain"
    data: str


class DocumentBlock(Block):
    """A document of plain text."""

    type: Literal["document"]
    source: TextSource
    title: str | None = None
    context: str | None = None

    @property
    def text(self) -> str:
        """The document as the model reads it."""
        return "\n".join(text for text in (self.title, self.context, self.source.data) if text)


class ThinkingBlock(Block):
    """The model's earlier thinking. A signature of Anthropic's proves nothing here."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Block):
    """Thinking that Anthropic alone can read; it is left out."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Block):
    """An earlier tool call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Annotated[dict[str, Any] | None, Field(description="who called: the model")] = None


def _union(*kinds: type[Block]) -> Any:
    """Content of these kinds of blocks: text, or a list of them; others are refused by name."""
    by_name = {kind.model_fields["type"].annotation.__args__[0]: kind for kind in kinds}

    def check(value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise ValueError("a string or a list of blocks is expected")
        for i, block in enumerate(value):
            kind = block.get("type") if isinstance(block, dict) else None
            source = block.get("source") if isinstance(block, dict) else None
            readable = not isinstance(source, dict) or source.get("type") == "text"
            if not isinstance(kind, str) or kind not in by_name or not readable:
                reason = _REFUSED.get(str(kind), "this server takes " + ", ".join(by_name) + " here")
                raise ValueError(f"block {i} is of type {kind!r}; {reason}")
        return value

    # The tags keep the names of kinds out of a field's path, see `field_path`.
    tagged = [Annotated[kind, Tag(f"<{name}>")] for name, kind in by_name.items()]
    union = tagged[0]
    for kind in tagged[1:]:
        union = union | kind
    block = Annotated[union, Discriminator(_tag)] if len(kinds) > 1 else kinds[0]
    either = Annotated[
        Annotated[str, Tag("<text>")] | Annotated[list[block], Tag("<blocks>")],
        Discriminator(lambda value: "<blocks>" if isinstance(value, list) else "<text>"),
    ]
    return Annotated[either, BeforeValidator(check)]


def _tag(block: Any) -> str:
    return f"<{block['type'] if isinstance(block, dict) else block.type}>"


class ToolResultBlock(Block):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[_union(TextBlock, DocumentBlock), BeforeValidator(with_notes)] = ""
    is_error: bool | None = None


SystemContent = _union(TextBlock)
Content = _union(
    TextBlock, DocumentBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock, ToolResultBlock
)
_USERS = (TextBlock, DocumentBlock, ToolResultBlock)
_ASSISTANTS = (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock)


class InputMessage(Strict):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Content


def system_text(content: str | Sequence[TextBlock]) -> str:
    """The system prompt."""
    texts = [content] if isinstance(content, str) else [block.text for block in content]
    return "\n\n".join(text for text in texts if not text.startswith(_BILLING))


def openai_messages(messages: Sequence[InputMessage]) -> list[Message]:
    """The messages in OpenAI's form; neighbours of one role become one, as in Anthropic's API.

    System messages behind the first message stay in their places, see `_add_system`.

    Raises:
        RequestError: a block stands in a message of a role that it cannot have.
    """
    made: list[Message] = []
    for i, message in enumerate(messages):
        field = f"messages[{i}].content"
        match message.role:
            case "user":
                _add(made, _of_user(_blocks(message, field, _USERS)), "\n")
            case "assistant":
                _add(made, [_of_assistant(_blocks(message, field, _ASSISTANTS))], "")
            case "system":
                _add_system(made, system_text(_blocks(message, field, (TextBlock,))))
    return made


def _blocks(message: InputMessage, field: str, kinds: tuple[type[Block], ...]) -> list[Any]:
    if isinstance(message.content, str):
        return [TextBlock(type="text", text=message.content)]
    for i, block in enumerate(message.content):
        if not isinstance(block, kinds):
            raise RequestError(
                f"{field}[{i}]: a block of type {block.type!r} cannot be part of a {message.role} message",
                f"{field}[{i}]",
            )
    return message.content


def _add(made: list[Message], new: Iterable[Message], joint: str) -> None:
    """Append messages; those that go on from the last one are joined to it."""
    for message in new:
        last = made[-1] if made else {"role": None}
        if message["role"] != last["role"] or message["role"] == "tool":
            made.append(message)
            continue
        for name, value in message.items():
            if name == "tool_calls":
                last[name] = [*last.get(name, []), *value]
            elif name != "role":
                last[name] = joint.join(text for text in (last.get(name), value) if text)


def _add_system(made: list[Message], text: str) -> None:
    """Append what the client tells the model in between, in Claude Code's words for such a thing.

    At the head, where templates want system messages, it would change the beginning of a prompt that is
    cached: Claude Code sends one after ten turns without its task tools. Nor may it be a user's message where
    it can be part of a result: behind such a one, templates leave out the thinking of the turns before.
    """
    reminder = f"<system-reminder>\n{text}\n</system-reminder>"
    if not made:
        made.append({"role": "system", "content": text})
    elif made[-1]["role"] == "tool":
        made[-1]["content"] += f"\n{reminder}"
    else:
        _add(made, [{"role": "user", "content": reminder}], "\n")


def _of_user(blocks: Iterable[TextBlock | DocumentBlock | ToolResultBlock]) -> list[Message]:
    """A user's blocks: results of tools are messages of their own."""
    made: list[Message] = []
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            made.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)})
        else:
            _add(made, [{"role": "user", "content": block.text}], "\n")
    return made


def _result(block: ToolResultBlock) -> str:
    content = block.content or ""
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    return f"Error: {text}" if block.is_error and not text.lower().startswith("error") else text


def _of_assistant(blocks: Iterable[Any]) -> Message:
    def texts(kind: type, read: Callable[[Any], str]) -> str:
        return "".join(read(block) for block in blocks if isinstance(block, kind))

    message: Message = {"role": "assistant", "content": texts(TextBlock, lambda block: block.text)}
    if thinking := texts(ThinkingBlock, thought):
        message["reasoning_content"] = thinking
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)},
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return message | ({"tool_calls": calls} if calls else {})


def thought(block: ThinkingBlock) -> str:
    """The text of a thinking block, also of one that was not shown to the client."""
    return block.thinking or omitted_thinking(block.signature) or ""
