"""A conversation becomes the text, and the token ids, that the model was trained to continue."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jinja2.exceptions import TemplateError

from strata.errors import RequestError
from strata.formats.tokenizer import Tokenizer
from strata.serve.jinja import Refusal, compile_template, render_bounded
from strata.serve.messages import (
    Message,
    normalise_messages,
    spell_out_tools,
    with_joined_turns,
    with_object_arguments,
    with_short_ids,
    with_single_calls,
    with_text_arguments,
)

# Noncharacters, then private ones: no white space and no letters, so strip and case leave them alone.
_MARKS = (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))

# A conversation that shows what a template makes of a call's arguments.
_PROBE = "probed_argument"
_PROBE_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {_PROBE: 1}}}
_PROBE_MESSAGES: list[Message] = [
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": "", "tool_calls": [_PROBE_CALL]},
    {"role": "tool", "content": "1", "tool_call_id": "abcdefghi", "name": "f"},
]

# The format of models whose file names no template but whose vocabulary has its markers.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation.

    Args:
        pieces: the text, cut inside each control token that a user wrote, so that none of them lies within
            one piece; this is what `Tokenizer.encode_rendered` takes.
    """

    pieces: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


class ChatTemplate:
    """A model's chat template.

    Args:
        source: jinja2 source.
        bos_token, eos_token: text of the special tokens, for templates that write them.
        control_tokens: the markup that must not be made out of what a user wrote.

    Raises:
        RequestError: the source is not jinja2 or is too long.
    """

    def __init__(
        self,
        source: str,
        bos_token: str | None = None,
        eos_token: str | None = None,
        control_tokens: Collection[str] = (),
    ):
        self.source = source
        named = {"bos_token": bos_token, "eos_token": eos_token}
        self._special = {name: token for name, token in named.items() if token is not None}
        self._control_tokens = tuple(control_tokens)
        self._breaker = _breaker(self._control_tokens)
        try:
            self._template = compile_template(source)
        except TemplateError as error:
            raise _refused(error) from error

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer, source: str | None = None) -> "ChatTemplate":
        """The template of a model: `source`, or the file's own, or ChatML if the vocabulary has its markers.

        Raises:
            RequestError: there is none, or it is not jinja2.
        """
        source = source or tokenizer.chat_template
        if source is None:
            if "<|im_start|>" not in tokenizer.special_tokens:
                raise RequestError(
                    "this model has no chat template, so it cannot be talked to in messages; "
                    "the completions endpoint (/v1/completions) works"
                )
            source = CHATML
        texts = {token_id: text for text, token_id in tokenizer.special_tokens.items()}
        return cls(
            source,
            texts.get(tokenizer.bos_id) if tokenizer.bos_id is not None else None,
            texts.get(tokenizer.eos_id) if tokenizer.eos_id is not None else None,
            tokenizer.control_tokens,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> Rendered:
        """Render a conversation, to the text that transformers' `apply_chat_template` gives for it.

        Args:
            messages: OpenAI's messages; see `normalise_messages` for what is made of them.
            tools: OpenAI's tools; an empty list is none.
            add_generation_prompt: end with the opening of the assistant's turn.
            kwargs: further variables of the template, e.g. `enable_thinking`.

        Raises:
            RequestError: a message is malformed, or the template refuses the conversation.
        """
        normal = normalise_messages(messages)
        if not self.knows_tools:
            normal, tools = spell_out_tools(normal, tools), None
        elif self._wants_text_arguments:
            normal = with_text_arguments(normal)
        variables = {"tools": list(tools) if tools else None, "documents": None, **kwargs}
        variables |= {"messages": normal}
        fixed = self._special | {"add_generation_prompt": add_generation_prompt}
        text = self._render(variables, fixed)
        if self._breaker is None or not (mark := self._breaker.mark_for(variables, text)):
            return Rendered((text,))
        # A mark within each control token that the user wrote shows where those tokens come out.
        broken = self._render_broken(variables, fixed, mark, text)
        return Rendered(tuple(piece for piece in broken.split(mark) if piece))

    @property
    def knows_tools(self) -> bool:
        """The template shows tools to the model, in its own way."""
        return "tools" in self.source

    @cached_property
    def _wants_text_arguments(self) -> bool:
        """Whether the template needs a call's arguments as JSON text: it fails on an object, or writes
        Python's form of it."""
        variables = {"tools": None, "documents": None, "messages": _PROBE_MESSAGES}
        fixed = self._special | {"add_generation_prompt": True}
        with suppress(RequestError):
            return "{'" + _PROBE in self._render(variables, fixed)
        with suppress(RequestError):
            messages = with_text_arguments(_PROBE_MESSAGES)
            return _PROBE in self._render(variables | {"messages": messages}, fixed)
        return False

    def _render_broken(self, variables: Message, fixed: Message, mark: str, text: str) -> str:
        """Render with `mark` inside the user's control tokens, so that without the marks it is `text`."""
        assert self._breaker is not None
        everywhere = self._breaker.mark(variables, mark)
        result = self._render(everywhere, fixed).replace(_escaped(mark), mark)
        if result.replace(mark, "") == text:
            return result
        # The template looks for a control token in the messages, as for `</think>` in an earlier answer. The
        # model's own turns may be read that way; whatever the user wrote may not.
        own = [m if m["role"] == "assistant" else self._breaker.mark(m, mark) for m in variables["messages"]]
        attempt = self._render(everywhere | {"messages": own}, fixed).replace(_escaped(mark), mark)
        return attempt if attempt.replace(mark, "") == text else result

    def _render(self, variables: Message, fixed: Message) -> str:
        """Render, helping over what templates are known to refuse for no good reason."""
        values = variables | fixed
        try:
            return render_bounded(self._template, values)
        except TemplateError as error:
            for helped in _helps(values, error):
                with suppress(TemplateError):
                    return render_bounded(self._template, helped)
            raise _refused(error) from error


def render_ids(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    template: ChatTemplate | None = None,
    **kwargs: Any,
) -> list[int]:
    """The prompt's token ids of a conversation, with one BOS if the model wants one.

    Args:
        messages, kwargs: as for `ChatTemplate.render`.
        tokenizer: the model's.
        template: the model's; keep one, as making it takes some milliseconds.

    Raises:
        RequestError: as `ChatTemplate` and its `render` do.
    """
    template = template or ChatTemplate.for_tokenizer(tokenizer)
    return rendered_ids(template.render(messages, **kwargs), tokenizer)


def rendered_ids(rendered: Rendered, tokenizer: Tokenizer) -> list[int]:
    """The prompt's token ids of a rendered conversation, with one BOS if the model wants one."""
    ids = tokenizer.encode_rendered(rendered.pieces)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        return [tokenizer.bos_id, *ids]
    return ids


def _helps(values: Message, error: TemplateError) -> Iterator[Message]:
    """The same values in forms that a template may take after it refused them."""
    messages = values["messages"]
    if messages[0]["role"] == "developer":
        messages = [messages[0] | {"role": "system"}, *messages[1:]]
        yield values | {"messages": messages}
    if isinstance(error, Refusal) and all(message["role"] != "user" for message in messages):
        # An agent's history may hold no plain user message. Qwen's templates raise on that, and render it
        # well when the raise is passed over.
        yield values | {"messages": messages, "raise_exception": lambda message: ""}
    if len(joined := with_joined_turns(messages)) < len(messages):
        messages = joined
        yield values | {"messages": messages}
    if any("tool_calls" in message for message in messages):
        # What a model broke off is no JSON, and comes back from the client all the same.
        for help_ in (with_short_ids, with_single_calls, with_object_arguments):
            messages = help_(messages)
            yield values | {"messages": messages}


class _Breaker:
    """Puts a mark inside the control tokens in data, so that no marked one can be read as markup.

    An end that a control token could go on from is marked too: a name that ends in `<|im_` and a text that
    begins with `end|>` may stand side by side in a template.
    """

    def __init__(self, tokens: Collection[str]):
        whole = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))
        starts = {token[:size] for token in tokens for size in range(1, len(token))}
        partial = "|".join(re.escape(start) for start in sorted(starts, key=len, reverse=True))
        self._pattern = re.compile(rf"(?:{whole})|(?:{partial})\Z" if partial else whole)

    def mark_for(self, data: Any, text: str) -> str | None:
        """A character that occurs in neither, to mark with; None where data holds nothing to mark."""
        strings = [text]

        def collect(string: str) -> str:
            strings.append(string)
            return string

        _map_strings(data, collect)
        if not any(self._pattern.search(string) for string in strings[1:]):
            return None
        for mark in map(chr, _MARKS):
            if not any(mark in string or _escaped(mark) in string for string in strings):
                return mark
        raise RequestError("messages use all of Unicode's noncharacters and private characters", "messages")

    def mark(self, data: Any, mark: str) -> Any:
        """Data with a mark behind the first character of each control token in its strings."""

        def put(string: str) -> str:
            return self._pattern.sub(lambda match: match[0][0] + mark + match[0][1:], string)

        return _map_strings(data, put)


def _breaker(tokens: Collection[str]) -> _Breaker | None:
    return _Breaker(tokens) if tokens else None


def _map_strings(data: Any, change: Callable[[str], str]) -> Any:
    """A copy of JSON-like data with each string, keys included, changed."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, Mapping):
        return {_map_strings(key, change): _map_strings(value, change) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_map_strings(item, change) for item in data]
    return data


def _escaped(mark: str) -> str:
    """What `tojson(ensure_ascii=True)` makes of a mark."""
    return json.dumps(mark)[1:-1]


def _refused(error: TemplateError) -> RequestError:
    return RequestError(f"the model's chat template refuses this: {error.message or error}", "messages")
