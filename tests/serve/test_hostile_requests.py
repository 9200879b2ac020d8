"""Requests with anything anywhere: each is taken or refused by name, and none breaks the server."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from strata.errors import RequestError
from strata.serve.anthropic_schemas import MessagesRequest
from strata.serve.errors import from_validation
from strata.serve.llamacpp import TemplateRequest
from strata.serve.responses_schemas import ResponseRequest
from strata.serve.templates import CHATML, ChatTemplate

DATA = Path(__file__).parents[1] / "data" / "requests"
CLAUDE, CODEX = (json.loads((DATA / f"{name}.json").read_text("utf-8")) for name in ("claude_code", "codex"))
TEMPLATE = ChatTemplate(CHATML)
WORDS = st.sampled_from(["type", "text", "name", "function", "custom", "namespace", "web_search", "message"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)


def paths(value: Any, path: tuple = ()) -> list[tuple]:
    """The places in a request."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in paths(item, (*path, key)))]


def changed(body: dict, path: tuple, value: Any) -> dict:
    """The request with another value in one place."""
    body = copy.deepcopy(body)
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return body


def take(model: type[BaseModel], body: dict) -> None:
    """All that is done with a request before the model is asked."""
    try:
        request = model.model_validate(body)
        if isinstance(request, ResponseRequest):
            turn = request.turn(request.input, request.known_tools(request.input))
        else:
            turn = request.turn()
        TEMPLATE.render(turn.messages, turn.tools)
        json.dumps(turn.tools)
    except RequestError as error:
        assert str(error)
    except ValidationError as error:
        assert str(from_validation(error))


CHAT = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "tools": [{"type": "function", "function": {"name": "now", "parameters": {}}}],
    "tool_choice": {"type": "function", "function": {"name": "now"}},
}


@pytest.mark.parametrize(
    ("model", "body"), [(MessagesRequest, CLAUDE), (ResponseRequest, CODEX), (TemplateRequest, CHAT)]
)
def test_nothing_breaks_the_server(model: type[BaseModel], body: dict) -> None:
    take(model, body)
    places = paths(body)[1:]

    @settings(max_examples=200)
    @given(st.sampled_from(places), VALUES)
    def check(path: tuple, value: Any) -> None:
        take(model, changed(body, path, value))

    check()
