"""The server's OpenAPI 3.1 document, `GET /openapi.json`: what each endpoint takes and answers.

FastAPI makes the frame. It does not see bodies, which are read and refused in each protocol's own way (see
`body_as`), nor answers that are streams.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from strata.serve.anthropic_errors import is_anthropic
from strata.serve.anthropic_schemas import CountRequest, MessagesRequest
from strata.serve.chat_schemas import ChatRequest
from strata.serve.llamacpp import DetokenizeRequest, TemplateRequest, TokenizeRequest
from strata.serve.openapi_answers import ANSWERS, ANTHROPIC_ERROR, ERROR
from strata.serve.responses_schemas import ResponseRequest
from strata.serve.schemas import CompletionRequest

BODIES = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponseRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/apply-template": TemplateRequest,
}
_FOREIGN_ERRORS = ("HTTPValidationError", "ValidationError")  # FastAPI's, which never leave this server
_REFS = "#/components/schemas/{model}"
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}


def document(app: FastAPI) -> dict[str, Any]:
    """The document of an application; made once."""
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    spec = get_openapi(title=app.title, version=app.version, routes=app.routes)
    refs, defined = models_json_schema([(m, "validation") for m in BODIES.values()], ref_template=_REFS)
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            if method == "post" and path in BODIES:
                content = {"application/json": {"schema": refs[BODIES[path], "validation"]}}
                operation["requestBody"] = {"required": True, "content": content}
            operation["responses"] = _responses(method, path, operation["responses"])
    schemas = spec["components"]["schemas"]
    for name in _FOREIGN_ERRORS:
        schemas.pop(name, None)
    schemas |= defined["$defs"] | {"Error": ERROR, "AnthropicError": ANTHROPIC_ERROR}
    spec["components"]["securitySchemes"] = _KEYS
    spec["security"] = [{}, *({name: []} for name in _KEYS)]
    return spec


def _responses(method: str, path: str, known: dict[str, Any]) -> dict[str, Any]:
    """The answers of an operation: its own, `known` to FastAPI or not, and errors in its protocol's form."""
    error = "AnthropicError" if is_anthropic(path) else "Error"
    content = {"application/json": {"schema": {"$ref": _REFS.format(model=error)}}}
    responses: dict[str, Any] = {"default": {"description": "An error.", "content": content}}
    answer = ANSWERS.get((method, path))
    responses["200"] = {"description": "The answer.", "content": answer} if answer else known["200"]
    return responses
