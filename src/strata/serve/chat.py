"""A turn of a conversation, as every chat protocol asks for it, and what a model's format makes of it."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from strata.errors import RequestError, StrataError
from strata.formats.tokenizer import Tokenizer
from strata.options import Options
from strata.serve.answer import Answer
from strata.serve.arguments import Tools
from strata.serve.callgrammar import CallGrammar
from strata.serve.dialects import ARGS, CALL_ID, Dialect, dialect_of
from strata.serve.job import Steering
from strata.serve.loops import LoopGuard
from strata.serve.router import Calls, Router, ThinkTags
from strata.serve.structured import Structure
from strata.serve.templates import ChatTemplate, Rendered

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# What an effort means where the template does not ask for one: most tokens of thinking.
EFFORT_BUDGETS: dict[Effort, int] = {"minimal": 512, "low": 2048, "medium": 8192}

THINK_TAGS = (ThinkTags(), ThinkTags("[THINK]", "[/THINK]"), ThinkTags("<seed:think>", "</seed:think>"))
WRAP_UP = "\n\nThat is as long as I may think. I will answer now, with what I have.\n"
_PRESERVE = "preserve_thinking"  # Qwen's variable
_NO_PRESERVE = "this model's template leaves the thinking of earlier turns out and has no choice about it"
_NO_ARGUMENTS = {"type": "object", "additionalProperties": False}
_TAIL = 16  # tokens of a prompt, in which an open think block would show


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How a model is to think. What is None is left to the model's template.

    Args:
        enabled: whether.
        effort: how hard; "none" is not at all.
        budget: most tokens.
        preserve: whether the thinking of earlier turns stays in the prompt.
    """

    enabled: bool | None = None
    effort: Effort | None = None
    budget: int | None = None
    preserve: bool | None = None

    @property
    def wanted(self) -> bool | None:
        """Whether to think, all told; None to leave it to the template."""
        if self.enabled is not None:
            return self.enabled
        if self.budget == 0 or self.effort == "none":
            return False
        return None if self.budget is None and self.effort is None else True


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a client asks for, apart from sampling.

    Args:
        messages: in OpenAI's form, see `normalise_messages`.
        tools: in OpenAI's form; none where the model may not call any.
        forced: the answer must be a call of one of these functions.
        parallel: it may hold several calls.
        thinking: see `Thinking`.
        variables: further variables of the template, which win over those that other fields set.
        stops: stop strings.
        structure: what the answer must look like.
        strict: the functions whose arguments must follow their schemas.
        loop_guard: True ends an answer that loops, by exact or by near repetition, and False lets it. None:
            thinking that repeats itself exactly is ended, and the model goes on to answer.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    forced: Sequence[str] = ()
    parallel: bool = True
    thinking: Thinking = Thinking()
    variables: Mapping[str, Any] = field(default_factory=dict)
    stops: Sequence[str] = ()
    loop_guard: bool | None = None
    structure: Structure | None = None
    strict: Sequence[str] = ()


class ChatFormat:
    """How a model is talked to: its tokens, its template, its think tags and its way to call tools.

    Args:
        tokenizer: the model's.
        template: its chat template.
        preserves_thinking: of earlier turns, unless a request says otherwise.
        effort_is_budget: also where the template asks for an effort it is not told, so that another effort
            leaves the prompt, and with it what is cached, as it is.

    Raises:
        StrataError: the template does not let thinking be preserved.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        preserves_thinking: bool = False,
        effort_is_budget: bool = False,
    ):
        self.tokenizer, self.template = tokenizer, template
        if preserves_thinking and _PRESERVE not in template.source:
            raise StrataError(f"--preserve-thinking: {_NO_PRESERVE}")
        self._preserves_thinking, self._effort_is_budget = preserves_thinking, effort_is_budget
        self.dialect: Dialect = dialect_of(template.source)
        special = tokenizer.special_tokens
        self.tags = next(
            (t for t in THINK_TAGS if t.close in template.source or t.close in special), ThinkTags()
        )
        self.may_think = self.tags.close in template.source
        self.open_id: int | None = special.get(self.tags.open)
        self.close_id: int | None = special.get(self.tags.close)
        # What is text to the router, also where the tokenizer has control tokens for it.
        tags = (self.tags.open, self.tags.close)
        self._texts = {special[tag]: tag.encode() for tag in tags if tag in special}
        markup = (*self.dialect.markers, *self.dialect.closers, ARGS, CALL_ID)
        self._call_texts = self._texts | {special[text]: text.encode() for text in markup if text in special}

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer, options: Options) -> "ChatFormat":
        """The format of a model that is served with these options; raises as `ChatTemplate` does, too."""
        return cls(
            tokenizer,
            ChatTemplate.for_tokenizer(tokenizer),
            preserves_thinking=options.preserve_thinking,
            effort_is_budget=options.effort_as == "budget",
        )

    def render(self, turn: Turn) -> Rendered:
        """The turn's prompt as text; raises RequestError where the template refuses it."""
        return self.template.render(
            turn.messages, turn.tools, **{**self._thinking_variables(turn.thinking), **turn.variables}
        )

    def answer(self, turn: Turn, prompt: Sequence[int]) -> Answer:
        """Collects the answer to a prompt that was made of the turn."""
        calls = None
        if turn.tools:
            tools = Tools(tool["function"] for tool in turn.tools)
            calls = Calls(self.dialect, tools, None if turn.parallel else 1)
        tail = self.tokenizer.decode_bytes(prompt[-_TAIL:], special=True)
        router = Router(
            self.tags,
            opened=tail.rstrip().endswith(self.tags.open.encode()),
            by_token=self.close_id is not None,
            calls=calls,
            stops=turn.stops,
        )
        guard = None if turn.loop_guard is False else LoopGuard(passages=turn.loop_guard is True)
        return Answer(
            self.token_bytes(calls is not None),
            router,
            (self.open_id, self.close_id),
            guard,
            everywhere=turn.loop_guard is True,
        )

    def token_bytes(self, with_calls: bool = False) -> Callable[[int], bytes]:
        """The bytes of a token in an answer: think tags, and the markup of calls, are text."""
        texts = self._call_texts if with_calls else self._texts
        return lambda token_id: texts.get(token_id) or self.tokenizer.token_bytes(token_id)

    def steering(self, turn: Turn) -> Steering:
        """What the server writes into the answer."""
        closing = f"{self.tags.close}\n\n"
        opening = self.dialect.forced_opening(turn.forced) if turn.forced else ""
        return Steering(
            budget=self._budget(turn.thinking),
            wrap_up=self._ids(WRAP_UP + closing),
            close=self._ids(closing),
            close_id=self.close_id,
            opening=self._ids(opening) if opening else (),
        )

    def structure(self, turn: Turn, prompt: Sequence[int]) -> Structure | None:
        """What the answer must look like; a call that is forced, or of a strict function, is a structure.

        Raises:
            RequestError: what is asked for cannot be had at once.
        """
        structure = turn.structure
        if turn.tools and (structure or turn.forced or turn.strict):
            structure = self._call_structure(turn)
        if structure is None or self._opening_id(turn, prompt) is None:
            return structure
        escaped = msgspec.structs.replace(structure.grammar, escape_id=self._opening_id(turn, prompt))
        return dataclasses.replace(structure, grammar=escaped)

    def _call_structure(self, turn: Turn) -> Structure:
        asked = None if turn.forced else turn.structure
        if asked is not None and asked.grammar.kind not in ("json_schema", "choice"):
            raise RequestError(f"{asked.field}: only JSON schemas and choices go with tools", asked.field)
        functions = {tool["function"]["name"]: tool["function"] for tool in turn.tools}
        schemas = {
            name: function.get("parameters", _NO_ARGUMENTS) if name in turn.strict else None
            for name, function in functions.items()
        }
        calls = CallGrammar(self.dialect, schemas, self.tokenizer.special_tokens)
        if turn.forced:
            grammar = calls.forced(turn.forced, turn.parallel)
        else:
            grammar = calls.free(asked.grammar if asked else None, turn.parallel)
        # One option among others may come to nothing without a word, so each is looked at alone as well.
        parts = {
            f"tools[{i}].function.parameters": json.dumps(schema)
            for i, schema in enumerate(schemas.values())
            if schema is not None
        }
        if asked is not None and asked.grammar.kind == "json_schema":
            parts[asked.field] = asked.grammar.text
        grammar = msgspec.structs.replace(grammar, schemas=list(parts.values()))
        return Structure(grammar, asked.field if asked else "tools", tuple(parts))

    def _opening_id(self, turn: Turn, prompt: Sequence[int]) -> int | None:
        """The token with which the model may begin to think, if it does so itself and may."""
        tail = self.tokenizer.decode_bytes(prompt[-_TAIL:], special=True).rstrip()
        begun = tail.endswith((self.tags.open.encode(), self.tags.close.encode()))
        if begun or not self.may_think or turn.thinking.wanted is False or self.close_id is None:
            return None
        return self.open_id

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode_rendered([text])

    def _asks_for_effort(self) -> bool:
        return "reasoning_effort" in self.template.source and not self._effort_is_budget

    def _budget(self, thinking: Thinking) -> int | None:
        """Most tokens of thinking, where there may be any."""
        if not self.may_think or (thinking.wanted is False and thinking.budget != 0):
            return None
        if thinking.budget is not None or thinking.effort is None or self._asks_for_effort():
            return thinking.budget
        return EFFORT_BUDGETS.get(thinking.effort)

    def _thinking_variables(self, thinking: Thinking) -> dict[str, Any]:
        """The variables by which templates know of thinking; each reads those of its own family."""
        wanted = thinking.wanted
        variables: dict[str, Any] = {} if wanted is None else {"enable_thinking": wanted, "thinking": wanted}
        if thinking.preserve and _PRESERVE not in self.template.source:
            raise RequestError(f"{_PRESERVE}: {_NO_PRESERVE}", _PRESERVE)
        if thinking.preserve is not None or self._preserves_thinking:
            variables[_PRESERVE] = thinking.preserve is not False
        if thinking.effort not in (None, "none") and not self._effort_is_budget:
            effort = {"minimal": "low", "xhigh": "high", "max": "high"}.get(thinking.effort, thinking.effort)
            known = thinking.effort in self.template.source
            variables["reasoning_effort"] = thinking.effort if known else effort
        return variables
