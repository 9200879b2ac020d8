"""A request's body, read and checked; and the answer to it, streaming or not."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from strata.errors import RequestError
from strata.serve.errors import CLIENT_GONE, from_validation
from strata.serve.sse import COMPLETIONS, ClientGone, EventStream, Wire, until_gone, with_pauses

BODY_LIMIT = 64 << 20  # bytes of a request

M = TypeVar("M", bound=BaseModel)


def body_as(model: type[M]) -> Callable[[Request], object]:
    """A dependency that reads and checks the request's body.

    Raises:
        RequestError: it is no JSON (400), not declared as JSON (415), too large (413), or a field is wrong.
    """

    async def parse(request: Request) -> M:
        # A web page may send a form or plain text to any address without asking; JSON it may not.
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RequestError(
                "the body must be sent with the header Content-Type: application/json",
                code="unsupported_media_type",
            )
        try:
            data = from_json(await _body(request), allow_inf_nan=False)
        except ValueError as error:
            raise RequestError(f"the body is not JSON: {error}", code="invalid_json") from error
        if not isinstance(data, dict):
            raise RequestError("the body is not a JSON object", code="invalid_json")
        try:
            return model.model_validate(data)
        except ValidationError as error:
            raise from_validation(error) from error

    return parse


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > BODY_LIMIT:
            raise RequestError(
                f"the body is larger than {BODY_LIMIT} bytes; shorten the request", code="request_too_large"
            )
    return b"".join(parts)


async def respond(
    request: Request,
    whole: Callable[[], Awaitable[dict]],
    events: AsyncGenerator[bytes, None] | None,
    keep_alive_s: float,
    wire: Wire = COMPLETIONS,
) -> Response:
    """Answer the client; its leaving cancels the work.

    Args:
        request: the client's.
        whole: makes the response, unless it streams.
        events: those of a stream; None if the client asked for none.
        keep_alive_s: a silent stream says so after so many seconds.
        wire: what a stream of this protocol says beside the answer.
    """
    try:
        if events is None:
            return JSONResponse(await until_gone(request, whole))
        paused = with_pauses(events, keep_alive_s)
        # What is wrong with the request shows before the first event, while a status can still say it.
        return EventStream(await until_gone(request, lambda: anext(paused)), paused, wire)
    except ClientGone:
        return Response(status_code=CLIENT_GONE)
