"""A small client of Strata's own HTTP endpoints, for `strata chat` and `strata demo`."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from strata.errors import StrataError

# A server sends a keep-alive comment every few seconds, so silence this long means that it is gone.
SILENCE_S = 120.0


class ServerError(StrataError):
    """The server refused a request, failed while answering it, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer as it arrives."""

    text: str
    thinking: bool  # part of the model's reasoning, not of its answer


class ChatClient:
    """Speaks to one server; a context manager.

    Args:
        url: where it listens, with or without `/v1`.
        api_key: sent as a bearer token when given.
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
        self.usage: dict[str, Any] = {}  # of the last answer that ended

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
        return response.json()

    def model_name(self) -> str:
        """The first model that the server lists."""
        models = self.get("/v1/models").get("data") or []
        if not models:
            raise ServerError(f"{self.url} serves no model")
        return models[0]["id"]

    def stream(self, model: str, messages: list[dict[str, str]], **fields: Any) -> Iterator[Delta]:
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
        ended = False
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                    raise ServerError(_message(response.status_code, response.text))
                for line in response.iter_lines():
                    if line == "data: [DONE]":
                        ended = True
                    elif line.startswith("data:"):
                        yield from self._deltas(json.loads(line[5:]))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not ended:
            raise ServerError("the server broke the answer off before its end")

    def _deltas(self, event: dict[str, Any]) -> Iterator[Delta]:
        if "error" in event:
            raise ServerError(event["error"].get("message") or "the server failed")
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            if delta.get("reasoning_content"):
                yield Delta(delta["reasoning_content"], thinking=True)
            if delta.get("content"):
                yield Delta(delta["content"], thinking=False)

    def _unreachable(self, error: httpx.HTTPError) -> ServerError:
        if isinstance(error, httpx.ConnectError):
            return ServerError(f"no server answers at {self.url}; `strata serve` starts one")
        return ServerError(f"the connection to {self.url} broke: {error or type(error).__name__}")


def _message(status: int, text: str) -> str:
    """The message of an OpenAI error envelope, or what came instead of one."""
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the server answered {status}: {text[:200]}"
