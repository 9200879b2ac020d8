"""The tools of OpenAI's Responses: functions, custom tools, and namespaces of both.

To the model all of them are functions. One in a namespace is called `namespace__name`, and a custom tool has
one argument, its input.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from strata.errors import RequestError
from strata.serve.fields import Strict, others

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
# Tools that OpenAI runs, or that are built into its models. A client that lists one offers it; nobody here
# could run it, so the model is not told of it.
HOSTED = {
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
}
_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input, as it is"}},
    "required": ["input"],
}


class FunctionTool(Strict):
    """A function that the client runs."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None

    @property
    def about(self) -> str:
        """What the model is told of it."""
        returns = f"Returns: {self.output_schema}" if self.output_schema else ""
        return "\n".join(text for text in (self.description, returns) if text)


class CustomFormat(Strict):
    """What a custom tool's input looks like. A grammar is shown to the model, which is trusted to keep it."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(Strict):
    """A tool that takes text."""

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: CustomFormat | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    strict: None = None

    @property
    def about(self) -> str:
        """What the model is told of it."""
        texts = [self.description or ""]
        if self.format and self.format.definition:
            texts.append(f"The input follows this grammar ({self.format.syntax}):\n{self.format.definition}")
        return "\n\n".join(text for text in texts if text)


class HostedTool(Strict, extra="allow"):
    """A tool that is passed over."""

    type: str


def check_tools(value: Any) -> Any:
    """The tools as they are; raises on a kind that nobody knows, by name."""
    known = {"function", "custom", "namespace"} | HOSTED
    for i, kind in others(value, known):
        raise ValueError(f"tool {i} is of type {kind!r}; this server takes function, custom and namespace")
    return value


def _tag(tool: Any) -> str:
    return "<hosted>" if _is_hosted(tool) else f"<{_kind(tool)}>"


def _kind(tool: Any) -> Any:
    return tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)


def _is_hosted(tool: Any) -> bool:
    kind = _kind(tool)
    return isinstance(kind, str) and kind in HOSTED


Callable_ = Annotated[FunctionTool, Tag("<function>")] | Annotated[CustomTool, Tag("<custom>")]


class NamespaceTool(Strict):
    """Tools under a common name."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    tools: list[Annotated[Callable_, Discriminator(_tag)]]


AnyTool = Annotated[
    Callable_ | Annotated[NamespaceTool, Tag("<namespace>")] | Annotated[HostedTool, Tag("<hosted>")],
    Discriminator(_tag),
]
Tools = Annotated[list[AnyTool], BeforeValidator(check_tools), Field(default_factory=list)]


def qualified(namespace: str | None, name: str) -> str:
    """The name by which the model knows a tool."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


@dataclass(frozen=True, slots=True)
class Known:
    """A tool of which the model is told.

    Args:
        tool: as the client sent it.
        namespace: the one in which it is.
    """

    tool: FunctionTool | CustomTool
    namespace: NamespaceTool | None = None

    @property
    def name(self) -> str:
        """Its name to the model."""
        return qualified(self.namespace and self.namespace.name, self.tool.name)

    def plain(self) -> dict[str, Any]:
        """The tool in the form of chat completions."""
        parameters = _INPUT if isinstance(self.tool, CustomTool) else self.tool.parameters
        texts = (self.namespace and self.namespace.description, self.tool.about)
        about = "\n".join(text for text in texts if text)
        function = {"name": self.name, "description": about, "parameters": parameters}
        return {"type": "function", "function": {k: v for k, v in function.items() if v not in (None, "")}}


def known_tools(tools: Sequence[Any]) -> dict[str, Known]:
    """The tools of which the model is told, by their names to it; raises RequestError where two are equal."""
    known: dict[str, Known] = {}
    for one in _flat(tools):
        if one.name in known:
            raise RequestError(f"tools: two tools are named {one.name!r}", "tools")
        known[one.name] = one
    return known


def _flat(tools: Sequence[Any]) -> Iterator[Known]:
    for tool in tools:
        match tool:
            case NamespaceTool():
                yield from (Known(inner, tool) for inner in tool.tools)
            case FunctionTool() | CustomTool():
                yield Known(tool)


class ToolChoice(Strict):
    """Whether the model may, must or must not call tools, and which; without names, any."""

    mode: Literal["none", "auto", "required"]
    names: list[str] | None = None
    only_these: bool = False  # the others are not even shown to the model
    sent: Any = "auto"  # as it was written, for the response


def choice_of(value: Any) -> ToolChoice:
    """The choice in a request; raises ValueError for one that is none, or that is a tool of OpenAI's."""
    match value:
        case "none" | "auto" | "required":
            return ToolChoice(mode=value, sent=value)
        case {"type": "function" | "custom", "name": str()}:
            return ToolChoice(mode="required", names=[_chosen(value)], sent=value)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [_, *_] as tools}:
            # Those of OpenAI's are passed over here as they are in `tools`.
            names = [_chosen(tool) for tool in tools if not _is_hosted(tool)]
            return ToolChoice(mode=mode, names=names, only_these=True, sent=value)
    raise ValueError("'none', 'auto', 'required', a function, a custom tool or allowed tools are expected")


def _chosen(tool: Any) -> str:
    match tool:
        case {"type": "function" | "custom", "namespace": str(namespace), "name": str(name)}:
            return qualified(namespace, name)
        case {"type": "function" | "custom", "name": str(name)}:
            return name
    raise ValueError("an allowed tool is of type 'function' or 'custom' and has a name")
