"""`/v1/responses`, as OpenAI's API reference describes it."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import TypeAdapter

from strata.errors import RequestError, StrataError
from strata.serve.backend import Backend
from strata.serve.body import body_as, respond
from strata.serve.deltas import End
from strata.serve.errors import describe
from strata.serve.job import Job
from strata.serve.openai import backend_of
from strata.serve.responses_items import Item, Items
from strata.serve.responses_schemas import ResponseRequest
from strata.serve.responses_store import Entry, ResponseStore
from strata.serve.responses_stream import Event, Output
from strata.serve.responses_tools import HostedTool, Known
from strata.serve.sse import Wire, keep_alive, named_event

_ITEMS = TypeAdapter(Items)
_log = logging.getLogger("strata.serve")
router = APIRouter(prefix="/v1/responses")


def _failure(error: Exception) -> bytes:
    told = describe(error)[1]["error"]
    fields = {name: told[name] for name in ("code", "message", "param")}
    return named_event("error", {"type": "error", "sequence_number": 0} | fields)


WIRE = Wire(silence=keep_alive, failure=_failure)


@dataclass(slots=True)
class Reply:
    """A request on its way.

    Args:
        body: the client's request.
        backend, store: answer it, and keep the answer.
        job: its one choice.
        id: of the response.
        history: all items, those of earlier responses included.
        known: the tools that the model was told of.
    """

    body: ResponseRequest
    backend: Backend
    store: ResponseStore
    job: Job
    id: str
    history: Sequence[Item]
    known: Mapping[str, Known]
    created: int = field(default_factory=lambda: int(time.time()))
    output: Output = field(init=False)

    def __post_init__(self) -> None:
        seals = "reasoning.encrypted_content" in self.body.include
        self.output = Output(self.known, self.body.summarised, seals)

    def response(self, status: str, **fields: Any) -> dict[str, Any]:
        """The response as it is now."""
        body = self.body
        tools = [tool for tool in body.tools if not isinstance(tool, HostedTool)]
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "background": body.background,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": self.backend.name,
            "output": list(self.output.items),
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort, "summary": body.reasoning.summary},
            "store": body.store,
            "temperature": body.temperature,
            "text": {"format": body.text.format or {"type": "text"}},
            "tool_choice": body.tool_choice.sent,
            "tools": [tool.model_dump(exclude_none=True) for tool in tools],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        } | fields

    def _usage(self) -> dict[str, Any]:
        answer, num_prompt = self.job.answer, len(self.job.prompt)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": self.job.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": answer.num_tokens,
            "output_tokens_details": {"reasoning_tokens": answer.num_thinking},
            "total_tokens": num_prompt + answer.num_tokens,
        }

    def _ended(self, end: End) -> dict[str, Any]:
        """The whole response, which is kept if it was to be."""
        if end.reason in ("length", "repetition"):
            response = self.response("incomplete", incomplete_details={"reason": "max_output_tokens"})
        else:
            response = self.response("completed", completed_at=int(time.time()))
        response["usage"] = self._usage()
        if self.body.store:
            answer = _ITEMS.validate_python(response["output"])
            entry = Entry(response, [*self.history, *answer])
            self.store.put(entry, [*self.body.input, *answer])
        return response

    def _failed(self, error: Exception) -> dict[str, Any]:
        told = describe(error)[1]["error"]
        code = "invalid_prompt" if isinstance(error, RequestError) else "server_error"
        return self.response("failed", error={"code": code, "message": told["message"]})

    async def whole(self) -> dict[str, Any]:
        """The response to a request that does not stream; of work in the background, as it begins."""
        if not self.body.background:
            return await self._answer()
        response = self.response("queued")
        self.store.put(Entry(response, task=asyncio.create_task(self._in_background())))
        return dict(response)  # as it is now: what is kept changes with the work

    async def _answer(self) -> dict[str, Any]:
        async with aclosing(self.backend.run(self.job)) as pieces:
            async for piece in pieces:
                if self.body.background and self.id in self.store:
                    self.store.get(self.id).response["status"] = "in_progress"
                for delta in piece.deltas:
                    for _ in self.output.add(delta):
                        pass
        assert self.job.end is not None
        return self._ended(self.job.end)

    async def _in_background(self) -> None:
        """Answer, and keep what became of it."""
        try:
            await self._answer()
        except Exception as error:
            if not isinstance(error, StrataError):
                _log.error("a response in the background failed", exc_info=error)
            self.store.put(Entry(self._failed(error)))
        except asyncio.CancelledError:
            if self.id in self.store:  # else it was deleted
                self.store.put(Entry(self.response("cancelled")))
            raise

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events of a stream; the first comes when the engine has taken up the request."""
        number = 0
        async with aclosing(self._events()) as events:
            async for event in events:
                yield named_event(event["type"], event | {"sequence_number": number})
                number += 1

    async def _events(self) -> AsyncGenerator[Event, None]:
        begun = False
        try:
            async with aclosing(self.backend.run(self.job)) as pieces:
                async for piece in pieces:
                    if not begun:
                        yield {"type": "response.created", "response": self.response("in_progress")}
                        yield {"type": "response.in_progress", "response": self.response("in_progress")}
                    begun = True
                    for delta in piece.deltas:
                        for event in self.output.add(delta):
                            yield event
        except StrataError as error:
            if not begun:
                raise  # a status can still say it
            yield {"type": "response.failed", "response": self._failed(error)}
            return
        assert self.job.end is not None
        response = self._ended(self.job.end)
        yield {"type": f"response.{response['status']}", "response": response}


def _store_of(request: Request) -> ResponseStore:
    return request.app.state.responses


@router.post("")
async def create(
    request: Request, body: Annotated[ResponseRequest, Depends(body_as(ResponseRequest))]
) -> Response:
    """Continue a conversation."""
    backend, store = backend_of(request), _store_of(request)

    async def prepare() -> Reply:
        await backend.ready(body.model)
        earlier = store.previous(body.previous_response_id).history if body.previous_response_id else ()
        history = [*earlier, *body.input]
        known = body.known_tools(history)
        id_ = f"resp_{uuid.uuid4().hex}"
        (job,) = await backend.chat_jobs(body.turn(history, known), id_, body.sampling(backend.stop_ids))
        return Reply(body, backend, store, job, id_, history, known)

    return await respond(request, prepare, body.stream, backend, WIRE)


@router.get("/{response_id}")
async def retrieve(request: Request, response_id: str, stream: bool = False) -> dict[str, Any]:
    """A response that is kept."""
    if stream:
        raise RequestError(
            "stream: a response that is kept is given whole", "stream", "unsupported_parameter"
        )
    return _store_of(request).get(response_id).response


@router.delete("/{response_id}")
async def delete(request: Request, response_id: str) -> dict[str, Any]:
    """Forget a response."""
    _store_of(request).delete(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/{response_id}/cancel")
async def cancel(request: Request, response_id: str) -> dict[str, Any]:
    """End a response's background work; what has ended stays as it is."""
    store = _store_of(request)
    entry = store.get(response_id)
    if not entry.response["background"]:
        raise RequestError(
            f"response {response_id!r} is not made in the background, so it ends with its connection",
            "response_id",
        )
    if entry.task is not None:
        entry.task.cancel()
        await asyncio.wait({entry.task})
    return store.get(response_id).response
