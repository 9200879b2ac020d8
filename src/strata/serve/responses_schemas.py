"""The request of `/v1/responses`. Facts from OpenAI's API reference (responses/create)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from strata.errors import RequestError
from strata.serve.chat import Effort, Thinking, Turn
from strata.serve.fields import Sampled, StreamOptions, Strict
from strata.serve.responses_items import AdditionalTools, Item, Items, openai_messages
from strata.serve.responses_tools import Known, ToolChoice, Tools, choice_of, known_tools
from strata.serve.structured import Structure, named_format

# What may be asked for in addition; of most there is never any here.
Includable = Literal[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ReasoningChoice(Strict):
    """How the model thinks. A summary, where one is asked for, is the thinking itself."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # its former name
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class TextChoice(Strict):
    """The form of the text."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class ResponseRequest(Sampled):
    """`POST /v1/responses`."""

    HARMLESS = frozenset(
        {
            "user",
            "safety_identifier",
            "service_tier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "prompt_cache_options",
            "max_tool_calls",
            "client_metadata",
        }
    )
    NOT_SERVED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "conversation": (),
        "prompt": (),
        "context_management": ([],),
        "moderation": (),
        "access_programs": (),
        "image": (),
        "background_options": (),
        "truncation": ("disabled",),
        "top_logprobs": (0,),
    }

    input: Annotated[Items, Field(default_factory=list)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    background: bool = False
    stream_options: StreamOptions = StreamOptions()
    include: Annotated[list[Includable], Field(default_factory=list)]
    metadata: Annotated[dict[str, str], Field(default_factory=dict)]
    reasoning: ReasoningChoice = ReasoningChoice()
    text: TextChoice = TextChoice()
    tools: Tools
    tool_choice: Annotated[ToolChoice, BeforeValidator(choice_of)] = ToolChoice(mode="auto")
    parallel_tool_calls: bool = True
    max_output_tokens: Annotated[int | None, Field(ge=1, lt=2**63)] = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not self.input and self.previous_response_id is None:
            raise RequestError("input: is missing", "input")
        if self.background and (self.stream or not self.store):
            raise RequestError("background: only served with store, and without stream", "background")
        if not self.stream and "stream_options" in self.model_fields_set:
            raise RequestError("stream_options: only allowed when stream is true", "stream_options")
        for tools in (self.tools, *(item.tools for item in self.input if isinstance(item, AdditionalTools))):
            known_tools(tools)  # refuses two of one name
        self.structure()  # refuses what is wrong
        return self

    def structure(self) -> Structure | None:
        """What the text must look like, if the request says so; raises RequestError where that is wrong."""
        return named_format(self.text.format, "text.format")

    @property
    def summarised(self) -> bool:
        """A summary of the thinking is asked for."""
        return (self.reasoning.summary or self.reasoning.generate_summary) is not None

    def known_tools(self, history: Sequence[Item]) -> dict[str, Known]:
        """The tools of which the model may be told: the request's, and those that `history` added.

        One that came again later is as it came last.
        """
        known = known_tools(self.tools)
        for item in history:
            if isinstance(item, AdditionalTools):
                known |= known_tools(item.tools)
        choice = self.tool_choice
        if choice.mode == "required" and (not known or choice.names == []):
            raise RequestError("tool_choice: asks for a call, and no tools are given", "tool_choice")
        if unknown := next((name for name in choice.names or () if name not in known), None):
            raise RequestError(f"tool_choice: no tool is named {unknown!r}", "tool_choice")
        return known

    def turn(self, history: Sequence[Item], known: Mapping[str, Known]) -> Turn:
        """What the client asks for, in the words of every protocol.

        Args:
            history: all items, those of earlier responses included.
            known: of `known_tools`.
        """
        messages = openai_messages(history)
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        choice = self.tool_choice
        names = list(known) if choice.names is None else choice.names
        shown = [one for name, one in known.items() if not choice.only_these or name in names]
        return Turn(
            messages=messages,
            tools=[] if choice.mode == "none" else [one.plain() for one in shown],
            forced=names if choice.mode == "required" else (),
            parallel=self.parallel_tool_calls,
            thinking=Thinking(effort=self.reasoning.effort),
            structure=self.structure(),
            strict=[] if choice.mode == "none" else [one.name for one in shown if one.tool.strict],
        )

    def own_sampling(self) -> dict[str, Any]:
        return {"max_tokens": self.max_output_tokens}
