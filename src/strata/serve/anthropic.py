"""`/v1/messages` and `/v1/messages/count_tokens`, as Anthropic's API reference describes them."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from strata.serve.anthropic_errors import anthropic_body
from strata.serve.anthropic_schemas import CountRequest, MessagesRequest
from strata.serve.anthropic_stream import PING, Blocks
from strata.serve.backend import Backend
from strata.serve.body import body_as, respond
from strata.serve.deltas import End
from strata.serve.errors import describe
from strata.serve.job import Job
from strata.serve.openai import backend_of
from strata.serve.sse import Wire, named_event

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
router = APIRouter(prefix="/v1/messages")


def _failure(error: Exception) -> bytes:
    return named_event("error", anthropic_body(*describe(error)))


WIRE = Wire(silence=lambda progress: PING, failure=_failure)


@dataclass(slots=True)
class Reply:
    """A request on its way.

    Args:
        body: the client's request.
        backend: answers it.
        job: its one choice.
        id: of the message.
    """

    body: MessagesRequest
    backend: Backend
    job: Job
    id: str
    blocks: Blocks = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = Blocks(shows_thinking=self.body.thinking.display != "omitted")

    def usage(self) -> dict[str, Any]:
        """Tokens so far; how much of the prompt was cached is known at the end."""
        answer, cached = self.job.answer, self.job.cached_tokens
        return {
            "input_tokens": len(self.job.prompt) - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": answer.num_tokens,
            "output_tokens_details": {"thinking_tokens": answer.num_thinking},
        }

    def message(self, **fields: Any) -> dict[str, Any]:
        """The message, which `fields` complete."""
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self.backend.name}
        return head | {"content": self.blocks.content, "stop_reason": None, "stop_sequence": None} | fields

    async def whole(self) -> dict[str, Any]:
        """The response to a request that does not stream."""
        async with aclosing(self.backend.run(self.job)) as pieces:
            async for piece in pieces:
                for delta in piece.deltas:
                    self.blocks.add(delta)
        assert self.job.end is not None
        return self.message(**self._ending(self.job.end), usage=self.usage())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events of a stream; the first comes when the engine has taken up the request."""
        begun = False
        async with aclosing(self.backend.run(self.job)) as pieces:
            async for piece in pieces:
                if not begun:
                    message = self.message(usage=self.usage() | {"output_tokens": 0})
                    yield named_event("message_start", {"type": "message_start", "message": message}) + PING
                begun = True
                for delta in piece.deltas:
                    for event in self.blocks.add(delta):
                        yield event
        assert self.job.end is not None
        end = {"type": "message_delta", "delta": self._ending(self.job.end), "usage": self.usage()}
        yield named_event("message_delta", end)
        yield named_event("message_stop", {"type": "message_stop"})

    def _ending(self, end: End) -> dict[str, str | None]:
        """Why the message ends."""
        # The loop guard breaks an answer off, as a limit does; Anthropic has no other word for it.
        reason = "max_tokens" if end.reason == "repetition" else _STOP_REASONS[end.reason]
        if end.stop_string is not None:
            reason = "stop_sequence"
        elif end.reason == "length" and self.job.answer.num_tokens < self.body.max_tokens:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": end.stop_string}


@router.post("")
async def messages(
    request: Request, body: Annotated[MessagesRequest, Depends(body_as(MessagesRequest))]
) -> Response:
    """Continue a conversation."""
    backend = backend_of(request)

    async def prepare() -> Reply:
        await backend.ready(body.model)
        id_ = f"msg_{uuid.uuid4().hex}"
        stops = [text for text in body.stop_sequences if text]
        (job,) = await backend.chat_jobs(body.turn(stops), id_, body.sampling(backend.stop_ids))
        return Reply(body, backend, job, id_)

    return await respond(request, prepare, body.stream, backend, WIRE)


@router.post("/count_tokens")
async def count_tokens(
    request: Request, body: Annotated[CountRequest, Depends(body_as(CountRequest))]
) -> dict[str, int]:
    """The tokens of the prompt that a request would make."""
    backend = backend_of(request)
    await backend.ready(body.model)
    return {"input_tokens": len(await backend.chat_prompt(body.turn()))}
