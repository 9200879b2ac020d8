"""What the endpoints answer, as JSON schemas: the fields that clients build on; there may be others."""

from typing import Any

Schema = dict[str, Any]


def _object(**properties: Schema) -> Schema:
    """An object that has at least these fields."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one(*values: str) -> Schema:
    return {"enum": list(values)}


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _or_stream(schema: Schema) -> dict[str, Any]:
    """An answer that comes as a stream of events if the request says so."""
    return _json(schema) | {"text/event-stream": {}}


TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
COUNT: Schema = {"type": "integer", "minimum": 0}
OBJECT: Schema = {"type": "object"}

ERROR = _object(error=_object(message=TEXT, type=TEXT, param=TEXT_OR_NULL, code=TEXT_OR_NULL))
ANTHROPIC_ERROR = _object(type=_one("error"), error=_object(type=TEXT, message=TEXT))

_USAGE = _object(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT)
_TOKENS = _object(input_tokens=COUNT, output_tokens=COUNT)
_REASON = _one("stop", "length", "tool_calls")
_CALL = _object(id=TEXT, type=_one("function"), function=_object(name=TEXT, arguments=TEXT))
_MESSAGE = _object(role=_one("assistant"), content=TEXT_OR_NULL)
_MESSAGE["properties"] |= {"reasoning_content": TEXT_OR_NULL, "tool_calls": _list(_CALL)}
_CHAT = _object(
    id=TEXT,
    object=_one("chat.completion"),
    created=COUNT,
    model=TEXT,
    choices=_list(_object(index=COUNT, message=_MESSAGE, finish_reason=_REASON)),
    usage=_USAGE,
)
_COMPLETION = _object(
    id=TEXT,
    object=_one("text_completion"),
    created=COUNT,
    model=TEXT,
    choices=_list(_object(index=COUNT, text=TEXT, finish_reason=_REASON)),
    usage=_USAGE,
)
_RESPONSE = _object(
    id=TEXT,
    object=_one("response"),
    created_at=COUNT,
    status=_one("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
    model=TEXT,
    output=_list(_object(id=TEXT, type=TEXT)),
)
_ANTHROPIC = _object(
    id=TEXT,
    type=_one("message"),
    role=_one("assistant"),
    model=TEXT,
    content=_list(_object(type=_one("text", "thinking", "tool_use"))),
    stop_reason=_one("end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"),
    stop_sequence=TEXT_OR_NULL,
    usage=_TOKENS,
)
_MODEL = _object(id=TEXT, object=_one("model"), created=COUNT, owned_by=TEXT, aliases=_list(TEXT))
_PROPS = _object(default_generation_settings=OBJECT, total_slots=COUNT, model_alias=TEXT)
_SLOT = _object(id=COUNT, n_ctx=COUNT, is_processing={"type": "boolean"})

ANSWERS: dict[tuple[str, str], dict[str, Any]] = {
    ("get", "/"): _json(_object(name=TEXT, version=TEXT, endpoints=OBJECT)),
    ("get", "/health"): _json(_object(status=_one("ok"))),
    ("get", "/v1/models"): _json(_object(object=_one("list"), data=_list(_MODEL))),
    ("get", "/v1/models/{name}"): _json(_MODEL),
    ("post", "/v1/chat/completions"): _or_stream(_CHAT),
    ("post", "/v1/completions"): _or_stream(_COMPLETION),
    ("post", "/v1/responses"): _or_stream(_RESPONSE),
    ("get", "/v1/responses/{response_id}"): _json(_RESPONSE),
    ("delete", "/v1/responses/{response_id}"): _json(_object(id=TEXT, deleted={"const": True})),
    ("post", "/v1/responses/{response_id}/cancel"): _json(_RESPONSE),
    ("post", "/v1/messages"): _or_stream(_ANTHROPIC),
    ("post", "/v1/messages/count_tokens"): _json(_object(input_tokens=COUNT)),
    ("get", "/metrics"): {"text/plain": {"schema": TEXT}},
    ("get", "/props"): _json(
        _object(default_generation_settings=OBJECT, total_slots=COUNT, model_alias=TEXT)
    ),
    ("get", "/slots"): _json(_list(_SLOT)),
    ("post", "/tokenize"): _json(_object(tokens={"type": "array"})),
    ("post", "/detokenize"): _json(_object(content=TEXT)),
    ("post", "/apply-template"): _json(_object(prompt=TEXT)),
}
