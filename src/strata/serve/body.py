"""A request's body, read and checked; and the answer to it, streaming or not."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from strata.errors import RequestError
from strata.serve.backend import Backend
from strata.serve.errors import CLIENT_GONE, from_validation
from strata.serve.sse import COMPLETIONS, ClientGone, EventStream, Wire, until_gone, with_pauses
from strata.serve.surrogates import replace_halves

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
        if (encoding := request.headers.get("content-encoding", "identity").lower()) != "identity":
            raise RequestError(
                f"the body is sent with Content-Encoding: {encoding}; send it uncompressed",
                code="unsupported_media_type",
            )
        data = _json(await _body(request))
        if not isinstance(data, dict):
            raise RequestError("the body is not a JSON object", code="invalid_json")
        try:
            return model.model_validate(data)
        except ValidationError as error:
            raise from_validation(error) from error

    return parse


def _json(raw: bytes) -> Any:
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        # Only now, as it takes its time: a text may hold half a character, which the parser refuses.
        with contextlib.suppress(ValueError):
            return from_json(replace_halves(raw.decode()), allow_inf_nan=False)
        raise RequestError(f"the body is not JSON: {error}", code="invalid_json") from error


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


class Reply(Protocol):
    """An answer that is about to be made, in one of two ways.

    Attributes:
        id: of the request, with which those of its choices begin.
    """

    id: str

    async def whole(self) -> dict[str, Any]:
        """The response to a request that does not stream."""

    def events(self) -> AsyncGenerator[bytes, None]:
        """The events of a stream; the first comes when the engine has taken up the request."""


async def respond(
    request: Request,
    prepare: Callable[[], Awaitable[Reply]],
    stream: bool,
    backend: Backend,
    wire: Wire = COMPLETIONS,
) -> Response:
    """Answer the client; its leaving cancels the work.

    Args:
        request: the client's.
        prepare: makes the reply, as soon as the model is loaded.
        stream: whether the client asked for one.
        backend: answers.
        wire: what a stream of this protocol says beside the answer.
    """

    made: list[Reply] = []

    async def make() -> Reply:
        made.append(await prepare())
        return made[0]

    async def whole() -> dict[str, Any]:
        return await (await make()).whole()

    def progress() -> str:
        if made and backend.engine.state == "ready":
            return backend.requests.progress(made[0].id)
        return "the model is loading"  # for the first time, or again after a crash

    try:
        if not stream:
            return JSONResponse(await until_gone(request, whole))
        # What is wrong with the request shows before the first event, while a status can still say it. Only
        # while the model is loading the stream begins before that is known.
        events = (await until_gone(request, make)).events() if backend.is_loaded else _prepared(make)
        paused = with_pauses(events, backend.options.keep_alive_s)
        return EventStream(await until_gone(request, lambda: anext(paused)), paused, wire, progress)
    except ClientGone:
        return Response(status_code=CLIENT_GONE)


async def _prepared(prepare: Callable[[], Awaitable[Reply]]) -> AsyncGenerator[bytes, None]:
    """The events of a reply that is still to be made."""
    async with aclosing((await prepare()).events()) as events:
        async for event in events:
            yield event
