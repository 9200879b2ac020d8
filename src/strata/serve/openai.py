"""`/v1/chat/completions`, `/v1/completions` and `/v1/models`, as OpenAI's API reference describes them."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request, Response

from strata import __version__
from strata.serve.answer import Piece
from strata.serve.backend import Backend
from strata.serve.body import body_as, respond
from strata.serve.chat_schemas import ChatRequest
from strata.serve.deltas import ContentDelta, End, Message
from strata.serve.job import Job
from strata.serve.logprobs import ChatLogprobs, CompletionLogprobs
from strata.serve.schemas import CompletionRequest, GenerationRequest
from strata.serve.shapes import ChatShape, Shape, TextShape, ending
from strata.serve.sse import DONE, event
from strata.serve.timings import timings

T = TypeVar("T")
Logprobs = ChatLogprobs | CompletionLogprobs
router = APIRouter(prefix="/v1")


def backend_of(request: Request) -> Backend:
    """The application's backend."""
    return request.app.state.backend


@dataclass(slots=True)
class Completion:
    """A request on its way: its choices and the frame of its responses.

    Args:
        body: the client's request.
        backend: answers it.
        jobs: `body.n` for each prompt.
        shape: the form of its choices.
        logprobs_type: collects their log-probabilities.
    """

    body: GenerationRequest
    backend: Backend
    jobs: list[Job]
    shape: Shape
    logprobs_type: type[Logprobs]
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def frame(self, **fields: object) -> dict:
        """A response or chunk with these fields."""
        kind = self.shape.chunk_kind if self.body.stream else self.shape.kind
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.backend.name}
        return head | {"system_fingerprint": f"strata-{__version__}"} | fields

    def logprobs(self) -> Logprobs | None:
        """Collects a choice's log-probabilities, if they were asked for."""
        return None if self.body.num_alternatives is None else self.logprobs_type(self.backend.token_text)

    def usage(self) -> dict:
        """Tokens of all choices; a prompt of several counts once."""
        firsts = self.jobs[:: self.body.n]
        num_prompt = sum(len(job.prompt) for job in firsts)
        num_answer = sum(job.answer.num_tokens for job in self.jobs)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_answer,
            "total_tokens": num_prompt + num_answer,
            "prompt_tokens_details": {"cached_tokens": sum(job.cached_tokens for job in firsts)},
            "completion_tokens_details": {
                "reasoning_tokens": sum(job.answer.num_thinking for job in self.jobs)
            },
        }

    async def pieces(self) -> AsyncGenerator[tuple[Job, Piece], None]:
        """The pieces of all choices, as they come; those of one choice are in order."""

        async def tagged(job: Job) -> AsyncGenerator[tuple[Job, Piece], None]:
            async with aclosing(self.backend.run(job)) as pieces:
                async for piece in pieces:
                    yield job, piece

        async with aclosing(merged([tagged(job) for job in self.jobs])) as items:
            async for item in items:
                yield item

    async def whole(self) -> dict:
        """The response to a request that does not stream."""
        messages = [Message() for _ in self.jobs]
        logprobs = [self.logprobs() for _ in self.jobs]
        async with aclosing(self.pieces()) as pieces:
            async for job, piece in pieces:
                messages[job.index].add(piece.deltas)
                if collected := logprobs[job.index]:
                    collected.add(piece.tokens)
        choices = [
            {"index": job.index}
            | self.shape.whole(message)
            | {"logprobs": collected.take() if collected else None}
            | ending(message.end)
            for job, message, collected in zip(self.jobs, messages, logprobs, strict=True)
        ]
        return self.frame(choices=choices, usage=self.usage(), **self._timings())

    def _timings(self) -> dict:
        """llama.cpp's field; the choices of a request run side by side, so only one can be timed."""
        return {"timings": timings(self.jobs[0])} if len(self.jobs) == 1 else {}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events of a stream; the first comes when the engine has taken up the request."""
        with_usage = self.body.stream_options.include_usage
        extra = {"usage": None} if with_usage else {}
        logprobs = [self.logprobs() for _ in self.jobs]
        begun: set[int] = set()
        async with aclosing(self.pieces()) as pieces:
            async for job, piece in pieces:
                chunks = [] if job.index in begun else self.shape.begin()
                begun.add(job.index)
                chunks = [fields | {"logprobs": None} | ending(None) for fields in chunks]
                for fields in [*chunks, *self._chunks(piece, logprobs[job.index])]:
                    timed = self._timings() if fields["finish_reason"] else {}
                    yield event(self.frame(choices=[{"index": job.index} | fields], **extra, **timed))
        if with_usage:
            yield event(self.frame(choices=[], usage=self.usage()))
        yield DONE

    def _chunks(self, piece: Piece, logprobs: Logprobs | None) -> list[dict]:
        """The fields of the chunks that carry a piece, one for each delta."""
        if logprobs:
            logprobs.add(piece.tokens)
        waiting = bool(piece.tokens)  # log-probabilities go with the content, not with a delta before it
        chunks = []
        for delta in piece.deltas:
            if (fields := self.shape.chunk(delta)) is None:
                continue
            carries = logprobs if waiting and isinstance(delta, ContentDelta) else None
            waiting = waiting and not carries
            end = delta if isinstance(delta, End) else None
            chunks.append(fields | {"logprobs": carries.take() if carries else None} | ending(end))
        if logprobs and waiting:  # their text was sent before
            alone = self.shape.of_content("") | {"logprobs": logprobs.take()} | ending(None)
            at_end = bool(chunks) and chunks[-1]["finish_reason"] is not None
            chunks.insert(len(chunks) - at_end, alone)
        return chunks


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The items of several streams as they come; the first error ends them all."""
    queue: asyncio.Queue[tuple[str, object]] = asyncio.Queue()

    async def pump(stream: AsyncGenerator[T, None]) -> None:
        try:
            async for item in stream:
                queue.put_nowait(("item", item))
            queue.put_nowait(("end", None))
        except Exception as error:
            queue.put_nowait(("error", error))
        finally:
            await stream.aclose()

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            kind, value = await queue.get()
            if kind == "error":
                raise value
            if kind == "end":
                running -= 1
            else:
                yield value
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@router.post("/chat/completions")
async def chat_completions(
    request: Request, body: Annotated[ChatRequest, Depends(body_as(ChatRequest))]
) -> Response:
    """Continue a conversation."""
    backend = backend_of(request)

    async def prepare() -> Completion:
        await backend.ready(body.model)
        backend.check_biases(body.logit_bias)
        id_ = f"chatcmpl-{uuid.uuid4().hex}"
        jobs = await backend.chat_jobs(body.turn(), id_, body.sampling(backend.stop_ids), body.n)
        return Completion(body, backend, jobs, ChatShape(), ChatLogprobs, id_)

    return await respond(request, prepare, body.stream, backend)


@router.post("/completions")
async def completions(
    request: Request, body: Annotated[CompletionRequest, Depends(body_as(CompletionRequest))]
) -> Response:
    """Continue a text, or each of several."""
    backend = backend_of(request)

    async def prepare() -> Completion:
        await backend.ready(body.model)
        backend.check_biases(body.logit_bias)
        id_ = f"cmpl-{uuid.uuid4().hex}"
        sampling = body.sampling(backend.stop_ids)
        jobs = await backend.text_jobs(body.prompt, body.stop, id_, sampling, body.n, body.structure())
        return Completion(body, backend, jobs, TextShape(), CompletionLogprobs, id_)

    return await respond(request, prepare, body.stream, backend)


@router.get("/models")
async def models(request: Request) -> dict:
    """The one model, with the other names that it answers to."""
    card = backend_of(request).card()
    page = {"first_id": card["id"], "last_id": card["id"], "has_more": False}  # Anthropic's
    return {"object": "list", "data": [card]} | page


@router.get("/models/{name:path}")
async def model(request: Request, name: str) -> dict:
    """The model, by any of its names."""
    backend = backend_of(request)
    backend.check_name(name)
    return backend.card()
