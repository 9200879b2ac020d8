"""Errors as Anthropic's clients expect them: `{"type": "error", "error": {"type", "message"}}`."""

from typing import Any

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}


def is_anthropic(path: str) -> bool:
    """Whether a path is one of Anthropic's endpoints."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def anthropic_body(status: int, body: dict[str, Any]) -> dict[str, Any]:
    """Anthropic's form of an error in OpenAI's, see `errors.envelope`."""
    error = body["error"]
    message = error["message"]
    if error["code"] == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # the words by which Claude Code knows to shorten it
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
