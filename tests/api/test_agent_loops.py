"""An agent's session through the official packages: turns with tools, all streamed; one is left in the middle
and one loses its engine, and both are asked for again.
"""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from api.conftest import SEEDS
from api.test_connections import idle
from helpers.api_server import ApiServer

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
NOTHING = {"type": "object", "properties": {}}
QUESTION = "How is the weather in Köln?"
# Each turn's line of the script, and the calls in its answer; before it comes what is asked in vain.
TURNS = [
    ("slow", "call", [("weather", {"city": "Köln", "days": 3})]),
    ("withheld call", "two calls", [("now", {}), ("now", {})]),
    ("crash", "call", [("weather", {"city": "Köln", "days": 3})]),
    ("call", "hello", []),
]
Call = tuple[str, str, dict[str, Any]]  # id, name, arguments


class ChatAgent:
    """By chat completions; the package collects the answer."""

    def __init__(self, server: ApiServer):
        self.client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60)
        self.failures = (openai.APIError,)
        self.messages: list[Any] = [{"role": "user", "content": QUESTION}]
        tools = {"weather": CITY, "now": NOTHING}
        self.tools = [
            {"type": "function", "function": {"name": name, "strict": True, "parameters": schema}}
            for name, schema in tools.items()
        ]

    def stream(self, line: str) -> Any:
        return self.client.chat.completions.stream(
            model="parrot",
            messages=self.messages,
            tools=self.tools,
            seed=SEEDS[line],
            stream_options={"include_usage": True},
        )

    def take(self, stream: Any) -> tuple[str, list[Call], int]:
        completion = stream.get_final_completion()
        message = completion.choices[0].message
        self.messages.append(message)
        calls = [
            (call.id, call.function.name, call.function.parsed_arguments) for call in message.tool_calls or ()
        ]
        return message.content, calls, completion.usage.prompt_tokens_details.cached_tokens

    def answer(self, results: dict[str, str]) -> None:
        self.messages += [{"role": "tool", "tool_call_id": i, "content": text} for i, text in results.items()]


class MessagesAgent:
    """By Anthropic's messages."""

    def __init__(self, server: ApiServer):
        self.client = anthropic.Anthropic(base_url=server.url, api_key="none", timeout=60)
        self.failures = (anthropic.APIError,)
        self.messages: list[Any] = [{"role": "user", "content": QUESTION}]
        tools = {"weather": CITY, "now": NOTHING}
        self.tools = [{"name": name, "input_schema": schema} for name, schema in tools.items()]

    def stream(self, line: str) -> Any:
        return self.client.messages.stream(
            model="parrot",
            max_tokens=4000,
            messages=self.messages,
            tools=self.tools,
            extra_body={"seed": SEEDS[line]},
        )

    def take(self, stream: Any) -> tuple[str, list[Call], int]:
        message = stream.get_final_message()
        self.messages.append(
            {"role": "assistant", "content": [block.model_dump() for block in message.content]}
        )
        calls = [(block.id, block.name, block.input) for block in message.content if block.type == "tool_use"]
        text = "".join(block.text for block in message.content if block.type == "text")
        return text, calls, message.usage.cache_read_input_tokens

    def answer(self, results: dict[str, str]) -> None:
        content = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, text in results.items()]
        self.messages.append({"role": "user", "content": content})


class ResponsesAgent:
    """By responses that the server keeps, or that the client sends back."""

    def __init__(self, server: ApiServer, stored: bool):
        self.client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60)
        self.failures = (openai.APIError,)
        self.stored = stored
        self.input: list[Any] = [{"role": "user", "content": QUESTION}]
        self.previous: str | None = None
        tools = {"weather": CITY, "now": NOTHING}
        self.tools = [
            {"type": "function", "name": name, "parameters": schema} for name, schema in tools.items()
        ]

    def stream(self, line: str) -> Any:
        return self.client.responses.stream(
            model="parrot",
            input=self.input,
            tools=self.tools,
            store=self.stored,
            previous_response_id=self.previous,
            include=["reasoning.encrypted_content"],
            extra_body={"seed": SEEDS[line]},
        )

    def take(self, stream: Any) -> tuple[str, list[Call], int]:
        for event in stream:
            if event.type == "response.failed":
                raise openai.APIError(event.response.error.message, None, body=None)
        response = stream.get_final_response()
        calls = [item for item in response.output if item.type == "function_call"]
        if self.stored:
            self.input, self.previous = [], response.id
        else:
            self.input += response.output
        told = [(call.call_id, call.name, json.loads(call.arguments)) for call in calls]
        return response.output_text, told, response.usage.input_tokens_details.cached_tokens

    def answer(self, results: dict[str, str]) -> None:
        self.input += [
            {"type": "function_call_output", "call_id": i, "output": text} for i, text in results.items()
        ]


AGENTS = {
    "chat completions": ChatAgent,
    "messages": MessagesAgent,
    "responses": lambda server: ResponsesAgent(server, stored=False),
    "stored responses": lambda server: ResponsesAgent(server, stored=True),
}


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, server: ApiServer) -> Iterator[Any]:
    agent = AGENTS[request.param](server)
    with agent.client:
        yield agent


def test_a_session_of_an_agent(agent: Any, server: ApiServer) -> None:
    """CASES 20, 52, 57, 58, 142: it gets every answer, and no lane stays taken."""
    cached = []
    for vain, line, expected in TURNS:
        with agent.stream(vain) as stream:
            if vain == "crash":
                with pytest.raises(agent.failures, match="the engine process was ended by SIGABRT; "):
                    agent.take(stream)
            else:
                next(iter(stream))
        with agent.stream(line) as stream:
            text, calls, num_cached = agent.take(stream)
        assert [call[1:] for call in calls] == expected
        agent.answer({id_: f"result {i} of {name}" for i, (id_, name, _) in enumerate(calls)})
        cached.append(num_cached)
    assert text == "Hello, world!"
    assert cached[1] > 100
    assert cached[3] > cached[1]  # the history of the third turn, that the engine read after its crash
    server.wait_for(idle)
