"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Mapping, Sequence

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from strata.engine.client import EngineDied, EngineError, RequestCancelled
from strata.errors import RequestError
from strata.serve.anthropic_errors import anthropic_body, is_anthropic

_STATUS = {
    "model_not_found": 404,
    "response_not_found": 404,
    "request_not_found": 404,
    "no_experts": 404,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "not_implemented": 501,  # sound, and waits for a part of Strata that is still to come
}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    500: "server_error",
    501: "not_supported_error",  # llama.cpp's name for it
    503: "server_error",
    # What agents look for to shorten their history (llama.cpp's name for it).
    "context_length_exceeded": "exceed_context_size_error",
}
# The request that broke the engine would break the next one too; OpenAI's clients heed this.
_NO_RETRY = {"x-should-retry": "false"}
MAX_CHARS = 2000  # of a message
CLIENT_GONE = 499  # nginx's status for the log; nobody receives it
CANCELLED = 499  # what gRPC's CANCELLED is in HTTP; no client sends such a request again by itself


def envelope(
    status: int, message: str, field: str | None = None, code: str | None = None, kind: str | None = None
) -> dict:
    """The JSON object of an error.

    Args:
        status: of HTTP, from which `type` follows unless `code` or `kind` gives it.
        message, field, code: as in `RequestError`.
        kind: the value of `type`.
    """
    kind = kind or _TYPES.get(code or status) or _TYPES.get(status, "invalid_request_error")
    message, field = _cut(message), field and _cut(field)
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def _cut(text: str) -> str:
    """A text that may repeat what the client sent, not at any length."""
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"


def describe(error: Exception) -> tuple[int, dict]:
    """HTTP status and JSON object of an exception; what is not ours tells only its type."""
    match error:
        case RequestError():
            status = _STATUS.get(error.code or "", 400)
            return status, envelope(status, str(error), error.field, error.code)
        case RequestCancelled():
            return CANCELLED, envelope(CANCELLED, str(error), code="request_cancelled")
        case EngineDied():
            message = f"{error.ending}; the server's log says more, and the next request starts a new one"
            return 500, envelope(500, message, code="engine_error")
        case EngineError():
            return 500, envelope(500, str(error), code="engine_error")
        case HTTPException():
            return error.status_code, envelope(error.status_code, str(error.detail))
    message = f"the server failed on this request: {type(error).__name__}"
    return 500, envelope(500, message, code="internal_error")


def error_response(error: Exception, path: str) -> JSONResponse:
    """The HTTP response of an exception."""
    status, body = describe(error)
    return as_response(status, body, path, _NO_RETRY if status in (500, 501) else None)


def as_response(status: int, body: dict, path: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The HTTP response of an error, see `envelope`, in the form of the endpoint at `path`."""
    return JSONResponse(anthropic_body(status, body) if is_anthropic(path) else body, status, headers)


def from_validation(error: ValidationError) -> RequestError:
    """The first complaint of pydantic, with the field written as a client would: `messages[2].content`."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = field_path(first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        reason = "unknown field; this server would not heed it"
    elif first["type"] == "missing":
        reason = "is missing"
    return RequestError(f"{field}: {reason[0].lower()}{reason[1:]}" if field else reason, field or None)


def field_path(location: Sequence[str | int]) -> str:
    """`("messages", 2, "content")` -> `messages[2].content`; names of union members are left out."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<") and "[" not in step and step not in ("str", "int"):
            path += f".{step}" if path else step
    return path


def install(app: FastAPI) -> None:
    """Let every error of the application leave in the envelope."""

    def ours(request: Request, error: Exception) -> JSONResponse:
        return error_response(error, request.url.path)

    def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        status, path = error.status_code, request.url.path
        message = {
            404: f"there is no {path}; GET / lists what there is",
            405: f"{path} does not take {request.method}",
        }.get(status, str(error.detail))
        return as_response(status, envelope(status, message), path, error.headers)

    def parameter(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        field = str(first["loc"][-1])
        return error_response(RequestError(f"{field}: {first['msg']}", field), request.url.path)

    def unexpected(request: Request, error: Exception) -> JSONResponse:
        return error_response(error, request.url.path)  # the server logs what it was

    def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)  # it left before its request had arrived in full

    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(RequestError, ours)
    app.add_exception_handler(EngineError, ours)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, parameter)  # of the path or the query
    app.add_exception_handler(Exception, unexpected)
