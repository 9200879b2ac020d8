"""A small client of Strata's own HTTP endpoints, for `strata chat` and `strata demo`."""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from strata.errors import StrataError

# A server sends a keep-alive comment every few seconds, so silence this long means that it is gone.
SILENCE_S = 120.0
KEEP_ALIVE = ": keep-alive"  # what that comment begins with
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class ServerError(StrataError):
    """The server refused a request, failed while answering it, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer as it arrives.

    Args:
        text: of the piece; of a call, its function's name, and then its arguments as they are written; while
            the server is silent, how far it is, which may be empty.
        kind: thinking, the answer's own text, or a call of a function.
        index: of the call among the answer's.
    """

    text: str
    kind: Literal["thinking", "content", "call", "silence"] = "content"
    index: int = 0


@dataclass(slots=True)
class Reply:
    """An answer as far as it has come."""

    content: str = ""
    thinking: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)  # llama.cpp's, from servers that have them

    def message(self) -> dict[str, Any]:
        """The message for the history; calls are in it when they are whole."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        if self.calls and self.finish_reason == "tool_calls":
            message["tool_calls"] = self.calls
        return message


class ChatClient:
    """Speaks to one server; a context manager.

    Args:
        url: where it listens, with or without `/v1`.
        api_key: sent as a bearer token when given.

    Attributes:
        reply: the last answer.
    """

    def __init__(self, url: str, api_key: str | None = None):
        self.url = re.sub(r"(/v1)?/*$", "", url)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy for the outside world has no business between a person and a local server.
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(SILENCE_S, connect=10.0),
            trust_env=False,
        )
        self.reply = Reply()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._http.close()

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`.

        Raises:
            ServerError: the server cannot be reached or answers with an error.
        """
        try:
            response = self._http.get(path)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise ServerError(_message(response.status_code, response.text))
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ServerError(f"{self.url} answers, but not as an OpenAI server does")
        return answer

    def model(self) -> dict[str, Any]:
        """The first model that the server lists; its name is the `id`."""
        models = self.get("/v1/models").get("data") or []
        if not models:
            raise ServerError(f"{self.url} serves no model")
        if not isinstance(models, list) or not isinstance(models[0], dict) or "id" not in models[0]:
            raise ServerError(f"{self.url} answers, but not as an OpenAI server does")
        return models[0]

    def stream(self, model: str, messages: list[dict[str, Any]], **fields: Any) -> Iterator[Delta]:
        """Ask for a chat completion and yield its pieces; closing the iterator cancels the request.

        Raises:
            ServerError: refused, failed on the way, or cut off before its end.
        """
        body = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= fields
        self.reply = Reply()
        ended = False
        try:
            content = whole_characters(json.dumps(body, ensure_ascii=False)).encode()
            kind = {"Content-Type": "application/json"}
            with self._http.stream("POST", "/v1/chat/completions", content=content, headers=kind) as response:
                if response.is_error:
                    response.read()
                    raise ServerError(_message(response.status_code, response.text))
                for line in lines(response.iter_bytes()):
                    if line == "data: [DONE]":
                        ended = True
                    elif line.startswith("data:"):
                        yield from self._deltas(_event(line[5:]))
                    elif line.startswith(KEEP_ALIVE):
                        yield Delta(line.removeprefix(KEEP_ALIVE).strip(), "silence")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not ended:
            raise ServerError("the server broke the answer off before its end")

    def _deltas(self, event: dict[str, Any]) -> Iterator[Delta]:
        if "error" in event:
            raise ServerError(event["error"].get("message") or "the server failed")
        reply = self.reply
        reply.usage = event.get("usage") or reply.usage
        reply.timings = event.get("timings") or reply.timings
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            if text := whole_characters(delta.get("reasoning_content")):
                reply.thinking += text
                yield Delta(text, "thinking")
            if text := whole_characters(delta.get("content")):
                reply.content += text
                yield Delta(text)
            for call in delta.get("tool_calls") or ():
                yield from self._call(call)
            reply.finish_reason = choice.get("finish_reason") or reply.finish_reason

    def _call(self, delta: dict[str, Any]) -> Iterator[Delta]:
        calls, function = self.reply.calls, delta.get("function") or {}
        if delta["index"] == len(calls):
            named = {"name": function.get("name") or "", "arguments": ""}
            calls.append({"id": delta.get("id"), "type": "function", "function": named})
            yield Delta(whole_characters(named["name"]), "call", delta["index"])
        if text := whole_characters(function.get("arguments")):
            calls[delta["index"]]["function"]["arguments"] += text
            yield Delta(text, "call", delta["index"])

    def _unreachable(self, error: httpx.HTTPError) -> ServerError:
        if isinstance(error, httpx.ConnectError):
            return ServerError(f"no server answers at {self.url}; `strata serve` starts one")
        return ServerError(f"the connection to {self.url} broke: {error or type(error).__name__}")


def lines(parts: Iterable[bytes]) -> Iterator[str]:
    """The lines of an event stream, however its bytes were cut.

    Not `iter_lines` of httpx, which also ends a line at characters that may stand in JSON, as U+2028.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for part in parts:
        *whole, rest = (rest + decoder.decode(part)).split("\n")
        yield from (line.removesuffix("\r") for line in whole)


def whole_characters(text: str | None) -> str:
    """`text` without halves of characters, which JSON can hold and no request may."""
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text or "")


def _event(text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ServerError(f"the server sent an event that is not JSON: {text[:80]!r}") from error


def _message(status: int, text: str) -> str:
    """The message of an OpenAI error envelope, or what came instead of one."""
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the server answered {status}: {text[:200]}"
