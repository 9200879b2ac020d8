"""The requests of `/v1/messages` and `/v1/messages/count_tokens`.

Facts from Anthropic's API reference (messages/create, messages/count_tokens) and its documents on extended
and adaptive thinking, tool use and context editing. A field that would change the answer and is not served
is refused by name.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from strata.errors import RequestError
from strata.serve.anthropic_blocks import (
    CacheControl,
    InputMessage,
    SystemContent,
    openai_messages,
    system_text,
)
from strata.serve.chat import Effort, Thinking, Turn
from strata.serve.chat_schemas import MAX_TOOLS
from strata.serve.fields import Body, Sampled, Strict, others
from strata.serve.messages import Message
from strata.serve.structured import Structure, named_format


class CustomTool(Strict):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    input_schema: dict[str, Any]
    input_examples: list[dict[str, Any]] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None  # arguments always stream as they are written
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None

    def plain(self) -> dict[str, Any]:
        """The tool in OpenAI's form."""
        texts = [self.description or ""]
        texts += [f"Example: {json.dumps(e, ensure_ascii=False)}" for e in self.input_examples or ()]
        description = "\n".join(text for text in texts if text)
        function: dict[str, Any] = {"name": self.name} | ({"description": description} if description else {})
        return {"type": "function", "function": function | {"parameters": self.input_schema}}


def _tools(value: Any) -> Any:
    for i, kind in others(value, ("custom",)):
        raise ValueError(f"tool {i} is of type {kind!r}; this server takes tools with an input_schema")
    return value


class ToolChoice(Strict):
    """Whether the model may, must or must not call tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingConfig(Strict):
    """Whether and how long the model thinks. `omitted` thinking is done and not shown."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int | None, Field(ge=1, lt=2**63)] = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            needs = "needs" if self.type == "enabled" else "has no"
            raise RequestError(
                f"thinking.budget_tokens: thinking of type {self.type!r} {needs} budget",
                "thinking.budget_tokens",
            )
        return self


class OutputConfig(Strict):
    """How hard the model tries, and the form of what it writes."""

    effort: Effort | None = None
    format: dict[str, Any] | None = None


class ThinkingTurns(Strict):
    """The last turns of the assistant whose thinking is kept."""

    type: Literal["thinking_turns"]
    value: Annotated[int, Field(ge=1)]


class ClearThinking(Strict):
    """Thinking of earlier turns is taken out of the prompt."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | ThinkingTurns = ThinkingTurns(type="thinking_turns", value=1)


class ContextManagement(Strict):
    """What is taken out of the prompt."""

    edits: Annotated[list[ClearThinking], Field(max_length=1, default_factory=list)]


class CountRequest(Body):
    """`POST /v1/messages/count_tokens`: what makes the prompt."""

    HARMLESS = frozenset(
        {"metadata", "service_tier", "inference_geo", "diagnostics", "user_profile_id", "workspace_id"}
    )
    NOT_SERVED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "container": (),
        "mcp_servers": ([],),
        "fallbacks": ([],),
        "compaction": (),
        "thread": (),
        "speed": ("standard",),
        "billing_policy": (),
        "fallback_credit_token": (),
    }

    messages: Annotated[list[InputMessage], Field(min_length=1)]
    system: SystemContent = ""
    tools: Annotated[
        list[CustomTool], BeforeValidator(_tools), Field(max_length=MAX_TOOLS, default_factory=list)
    ]
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: ThinkingConfig = ThinkingConfig(type="disabled")
    output_config: OutputConfig = OutputConfig()
    context_management: ContextManagement = ContextManagement()
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def _agree_on_tools(self) -> Self:
        names = [tool.name for tool in self.tools]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise RequestError(f"tools: two tools are named {twice!r}", "tools")
        choice = self.tool_choice
        if choice.type in ("any", "tool") and not names:
            raise RequestError("tool_choice: asks for a call, and no tools are given", "tool_choice")
        if choice.type == "tool" and choice.name not in names:
            raise RequestError(f"tool_choice.name: no tool is named {choice.name!r}", "tool_choice.name")
        if self.messages[-1].role == "assistant":
            raise RequestError(
                "messages: the last one is the assistant's; this server does not go on from one", "messages"
            )
        self.structure()  # refuses what is wrong
        return self

    def structure(self) -> Structure | None:
        """What the text must look like, if the request says so; raises RequestError where that is wrong."""
        return named_format(self.output_config.format, "output_config.format")

    def turn(self, stops: list[str] | None = None) -> Turn:
        """What the client asks for, in the words of every protocol."""
        choice = self.tool_choice
        forced = {"any": [tool.name for tool in self.tools], "tool": [choice.name]}.get(choice.type, ())
        return Turn(
            messages=self._messages(),
            tools=[] if choice.type == "none" else [tool.plain() for tool in self.tools],
            forced=forced,
            parallel=not choice.disable_parallel_tool_use,
            thinking=self._thinking(),
            stops=stops or (),
            structure=self.structure(),
            strict=[] if choice.type == "none" else [tool.name for tool in self.tools if tool.strict],
        )

    def _messages(self) -> list[Message]:
        system = system_text(self.system)
        messages = openai_messages(self.messages)
        for edit in self.context_management.edits:
            if edit.keep != "all":
                turns = [m for m in messages if "reasoning_content" in m]
                for message in turns[: -edit.keep.value]:
                    del message["reasoning_content"]
        return [{"role": "system", "content": system}, *messages] if system else messages

    def _thinking(self) -> Thinking:
        if self.thinking.type == "disabled":
            return Thinking(enabled=False)
        return Thinking(enabled=True, budget=self.thinking.budget_tokens, effort=self.output_config.effort)


class MessagesRequest(Sampled, CountRequest):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**63)]
    stop_sequences: Annotated[list[str], Field(default_factory=list)]

    def own_sampling(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens}
