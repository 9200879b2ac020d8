"""A conversation as the browser keeps it, and as the model is asked to go on with it."""

import time
import uuid
from typing import Any, Literal

import msgspec

from strata.errors import StrataError

TITLE_LENGTH = 60  # characters


class Call(msgspec.Struct):
    """A function that the model called; `arguments` is JSON text, `result` what the person says it gave."""

    id: str
    name: str
    arguments: str = ""
    result: str | None = None


class Speed(msgspec.Struct, frozen=True):
    """How an answer came about: tokens, and seconds of the server's clock."""

    prompt_tokens: int
    cached_tokens: int  # those of the prompt that needed no reading
    answer_tokens: int
    first_s: float  # from the request to its first token
    per_second: float  # tokens of the answer; 0 where there is nothing to measure


class Entry(msgspec.Struct):
    """One message. What follows `content` belongs to the model's alone."""

    role: Literal["user", "assistant"]
    content: str = ""
    thinking: str = ""
    thinking_s: float = 0.0
    calls: list[Call] = []
    ending: str = ""  # how it ended, where that is not by itself: see `ENDINGS`
    error: str = ""
    speed: Speed | None = None

    def messages(self) -> list[dict[str, Any]]:
        """The entry in the words of `/v1/chat/completions`, with the results of its calls; none if empty."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        # Of an answer that was broken off, the last call may be half of one.
        calls = [call for call in self.calls if call.result is not None or not self.is_broken_off]
        if not calls:
            return [message] if self.content or self.thinking else []
        message["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
        results = [{"role": "tool", "tool_call_id": call.id, "content": call.result or ""} for call in calls]
        return [message, *results]

    @property
    def is_broken_off(self) -> bool:
        """Whether it is not whole, so that its last call may be half of one."""
        return bool(self.ending or self.error)

    @property
    def is_unfinished(self) -> bool:
        """Whether it is an answer that has not ended in any way."""
        return self.role == "assistant" and not (self.speed or self.is_broken_off)


ENDINGS = {
    "stopped": "stopped by you",
    "length": "ended at the limit of tokens",
    "repetition": "ended because it repeated itself",
    "reasoning": "ended while it was thinking",
    "tool_call": "ended in the middle of a call",
    "empty": "the model said nothing",
    "gone": "stopped because no page showed it",
    "broken": "broken off: the server was stopped",
}


def new_id() -> str:
    """An id that nobody can guess: who knows it can watch the answer."""
    return uuid.uuid4().hex


class Conversation(msgspec.Struct):
    """Messages in turn, and how the model is asked: fields of `/v1/chat/completions`, and `system`.

    `revision` counts how often it was saved: of two windows that save it, one may be late.
    """

    id: str = msgspec.field(default_factory=new_id)
    title: str = ""
    changed: float = msgspec.field(default_factory=time.time)
    settings: dict[str, Any] = {}
    entries: list[Entry] = []
    revision: int = 0

    def say(self, text: str) -> None:
        """Add what the person says; the first words name the conversation."""
        if not self.title:
            line = " ".join(text.split())
            self.title = line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"
        self.entries.append(Entry("user", text))
        self.changed = time.time()

    def request(self, model: str) -> dict[str, Any]:
        """The body of a chat request for the next answer."""
        system = self.settings.get("system")
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        for entry in self.entries:
            if entry.role == "user" and messages and messages[-1]["role"] == "user":
                # The answer between them failed. Many templates want people and model to take turns.
                messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n\n{entry.content}"}
            else:
                messages += entry.messages()
        fields = {name: value for name, value in self.settings.items() if name != "system"}
        return {"model": model, "messages": messages} | fields


def load(text: str) -> Conversation:
    """A conversation that the browser kept.

    Raises:
        StrataError: it is not one, or is of another version.
    """
    try:
        return msgspec.json.decode(text, type=Conversation)
    except msgspec.DecodeError as error:
        raise StrataError(f"this conversation cannot be read: {error}") from error


def dump(conversation: Conversation) -> str:
    """A conversation as JSON text."""
    return msgspec.json.encode(conversation).decode()
