"""The request of `/v1/chat/completions`.

Facts from OpenAI's API reference (chat/create). Beside it, for thinking: `reasoning` is OpenRouter's,
`thinking` is DeepSeek's and GLM's, `thinking_budget_tokens` llama.cpp's, `thinking_token_budget` vLLM's,
`thinking_budget` and `preserve_thinking` Qwen's; `chat_template_kwargs` and `enable_thinking` are vLLM's and
llama.cpp's.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from strata.errors import RequestError
from strata.serve.chat import Effort, Thinking, Turn
from strata.serve.fields import Strict, others, with_notes
from strata.serve.schemas import MAX_CHAT_ALTERNATIVES, UNLIMITED, GenerationRequest

# What a template gets from elsewhere, and the names of the arguments that carry it.
_RESERVED = {"messages", "tools", "tokenizer", "template", "self"}
_BUDGETS = ("reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget", "thinking_budget")
MAX_TOOLS = 1024


# What the openai package has added to an answer that comes back; the answer itself says it already.
Unread = Annotated[Any, Field(exclude=True)]
_TEXT_PARTS = ("text", "input_text", "output_text")


class TextPart(Strict):
    """A part of a message's content. Other kinds are refused by name, see `_content`."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    cache_control: dict[str, Any] | None = None  # Anthropic's hint, which proxies pass on


def _content(value: Any) -> Any:
    """Content as it may be; raises on what is neither text nor parts, naming a part's kind."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("a string or a list of parts is expected")
    for i, kind in others(value, _TEXT_PARTS):
        raise ValueError(f"part {i} is of type {kind!r}; this server reads text only")
    return value


# The tags tell pydantic which of the two to complain about; `<` keeps them out of a field's path.
Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TextPart], Tag("<parts>")],
    Discriminator(lambda value: "<parts>" if isinstance(value, list) else "<text>"),
]


class Function(Strict):
    """The function of an earlier tool call; arguments are JSON text, or already an object."""

    name: str
    arguments: str | dict[str, Any] = ""
    parsed_arguments: Unread = None


class ToolCall(Strict):
    """An earlier tool call, in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function
    index: int | None = None


class Message(Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Content | None, BeforeValidator(_content)] = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    # What OpenAI's answers hold and clients send back unread.
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    parsed: Unread = None

    @model_validator(mode="before")
    @classmethod
    def _readable(cls, message: Any) -> Any:
        if isinstance(message, dict) and message.get("role") == "tool":
            return message | {"content": with_notes(message.get("content"))}
        return message


class FunctionDefinition(Strict):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"""^[^\s<>"'{}\[\]|\\=]{1,128}$""")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool. Other kinds are refused by name, see `_tools`."""

    type: Literal["function"]
    function: FunctionDefinition
    cache_control: dict[str, Any] | None = None  # as in `TextPart`

    def plain(self) -> dict[str, Any]:
        """The tool as templates show it."""
        return self.model_dump(exclude_none=True, exclude={"cache_control": True, "function": {"strict"}})


def _tools(value: Any) -> Any:
    for i, kind in others(value, ("function",)):
        raise ValueError(f"tool {i} is of type {kind!r}; this endpoint takes functions only")
    return value


class ToolChoice(Strict):
    """Whether the model may, must or must not call tools, and which; without names, any."""

    mode: Literal["none", "auto", "required"]
    names: list[str] | None = None
    only_these: bool = False  # the others are not even shown to the model


def _tool_choice(value: Any) -> ToolChoice:
    match value:
        case "none" | "auto" | "required":
            return ToolChoice(mode=value)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice(mode="required", names=[name])
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [_, *_] as tools},
        }:
            return ToolChoice(mode=mode, names=[_allowed_name(tool) for tool in tools], only_these=True)
    raise ValueError("'none', 'auto', 'required', a function or a list of allowed tools is expected")


def _allowed_name(tool: Any) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return name
    raise ValueError("an allowed tool is of type 'function' and has a name")


class Reasoning(Strict):
    """OpenRouter's way to ask for thinking."""

    enabled: bool | None = None
    effort: Effort | None = None
    max_tokens: Annotated[int | None, Field(ge=0, lt=2**63)] = None


class ThinkingChoice(Strict):
    """DeepSeek's, GLM's and Anthropic's way to ask for thinking."""

    type: Literal["enabled", "disabled"]
    budget_tokens: Annotated[int | None, Field(ge=0, lt=2**63)] = None


Budget = Annotated[int | None, Field(ge=UNLIMITED, lt=2**63)]


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: Annotated[list[Tool], BeforeValidator(_tools), Field(max_length=MAX_TOOLS, default_factory=list)]
    tool_choice: Annotated[ToolChoice, BeforeValidator(_tool_choice)] = ToolChoice(mode="auto")
    parallel_tool_calls: bool = True
    max_completion_tokens: Annotated[int | None, Field(ge=UNLIMITED, lt=2**63)] = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_CHAT_ALTERNATIVES)] = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(default_factory=dict)]
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    thinking: ThinkingChoice | None = None
    reasoning_budget_tokens: Budget = None
    thinking_budget_tokens: Budget = None
    thinking_token_budget: Budget = None
    thinking_budget: Budget = None
    loop_guard: bool | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _not_reserved(cls, variables: dict[str, Any]) -> dict[str, Any]:
        if reserved := _RESERVED & variables.keys():
            raise ValueError(f"{min(reserved)!r} is not a variable that may be set here")
        return variables

    @model_validator(mode="after")
    def _agree_on_chat(self) -> Self:
        both = {"max_tokens", "max_completion_tokens"} <= self.model_fields_set
        if both and self.max_tokens != self.max_completion_tokens:
            raise RequestError(
                f"max_tokens: is {self.max_tokens} and max_completion_tokens is "
                f"{self.max_completion_tokens}; they mean the same, send one",
                "max_tokens",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs: only allowed when logprobs is true", "top_logprobs")
        return self

    @model_validator(mode="after")
    def _agree_on_tools(self) -> Self:
        names = [tool.function.name for tool in self.tools]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise RequestError(f"tools: two functions are named {twice!r}", "tools")
        choice = self.tool_choice
        if choice.mode == "required" and not names:
            raise RequestError("tool_choice: asks for a call, and no tools are given", "tool_choice")
        if unknown := next((name for name in choice.names or () if name not in names), None):
            raise RequestError(f"tool_choice: no function is named {unknown!r}", "tool_choice")
        return self

    @property
    def token_limit(self) -> int:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def turn(self) -> Turn:
        """What the client asks for, in the words of every protocol."""
        choice = self.tool_choice
        names = choice.names or [tool.function.name for tool in self.tools]
        shown = [t for t in self.tools if not choice.only_these or t.function.name in names]
        return Turn(
            messages=[message.model_dump(exclude_none=True) for message in self.messages],
            tools=[] if choice.mode == "none" else [tool.plain() for tool in shown],
            forced=names if choice.mode == "required" else (),
            parallel=self.parallel_tool_calls,
            thinking=self._thinking(),
            variables=self.chat_template_kwargs,
            stops=self.stop,
            loop_guard=self.loop_guard,
            structure=self.structure(),
            strict=[] if choice.mode == "none" else [t.function.name for t in shown if t.function.strict],
        )

    def _thinking(self) -> Thinking:
        """The one answer to the many fields in which clients ask for it."""
        reasoning, thinking = self.reasoning or Reasoning(), self.thinking
        typed = None if thinking is None else thinking.type == "enabled"
        budgets = {name: getattr(self, name) for name in _BUDGETS}
        budgets |= {"reasoning": reasoning.max_tokens, "thinking": thinking and thinking.budget_tokens}
        budget = _one_of(budgets)
        return Thinking(
            enabled=_one_of(
                {"enable_thinking": self.enable_thinking, "thinking": typed, "reasoning": reasoning.enabled}
            ),
            effort=_one_of({"reasoning_effort": self.reasoning_effort, "reasoning": reasoning.effort}),
            budget=None if budget == UNLIMITED else budget,
            preserve=self.preserve_thinking,
        )


def _one_of(fields: dict[str, Any]) -> Any:
    """The value of fields that mean the same; raises RequestError where they differ."""
    given = {name: value for name, value in fields.items() if value is not None}
    first = next(iter(given), None)
    for name, value in given.items():
        if value != given[first]:
            raise RequestError(f"{name}: asks for {value!r} and {first} for {given[first]!r}; send one", name)
    return given[first] if first else None
