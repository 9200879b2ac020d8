"""A server that says what a test wants, for the terminal chat and its client."""

import json

import httpx

from strata.client import ChatClient


def client_of(*events: object, status: int = 200, body: str | None = None) -> ChatClient:
    """A client whose server answers every chat request with these events."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        client.requests.append(json.loads(request.content))
        text = "".join(e if isinstance(e, str) else f"data: {json.dumps(e)}\n\n" for e in events)
        return httpx.Response(status, text=text if body is None else body)

    client = ChatClient("http://server/v1/")
    client.requests = []
    client._http = httpx.Client(base_url=client.url, transport=httpx.MockTransport(answer))
    return client


def piece(**delta: str) -> dict:
    return {"choices": [{"index": 0, "delta": delta}]}


DONE = "data: [DONE]\n\n"


def call(index: int, **function: str) -> dict:
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, "function": function}]}}]}


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
