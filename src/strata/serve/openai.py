"""`/v1/chat/completions`, `/v1/completions` and `/v1/models`, as OpenAI's API reference describes them."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic_core import from_json

from strata import __version__
from strata.engine.messages import Generate
from strata.errors import RequestError
from strata.serve.answer import Piece
from strata.serve.backend import Backend, Job
from strata.serve.errors import CLIENT_GONE, from_validation
from strata.serve.logprobs import ChatLogprobs, CompletionLogprobs
from strata.serve.schemas import ChatRequest, CompletionRequest, GenerationRequest
from strata.serve.sse import DONE, ClientGone, EventStream, event, until_gone, with_pauses

BODY_LIMIT = 64 << 20  # bytes of a request

T = TypeVar("T")
R = TypeVar("R", bound=GenerationRequest)
Logprobs = ChatLogprobs | CompletionLogprobs
router = APIRouter(prefix="/v1")


def backend_of(request: Request) -> Backend:
    """The application's backend."""
    return request.app.state.backend


def body_as(model: type[R]) -> Callable[[Request], object]:
    """A dependency that reads and checks the request's body.

    Raises:
        RequestError: it is no JSON (400), not declared as JSON (415), too large (413), or a field is wrong.
    """

    async def parse(request: Request) -> R:
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


@dataclass(slots=True)
class Completion:
    """A request on its way: its choices and the frame of its responses.

    Args:
        body: the client's request.
        backend: answers it.
        jobs: one for each choice.
        chat: chat shape, or that of `/v1/completions`.
    """

    body: GenerationRequest
    backend: Backend
    jobs: list[Job]
    chat: bool
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def frame(self, **fields: object) -> dict:
        """A response or chunk with these fields."""
        kind = "text_completion"
        if self.chat:
            kind = "chat.completion.chunk" if self.body.stream else "chat.completion"
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.backend.name}
        return head | {"system_fingerprint": f"strata-{__version__}"} | fields

    def logprobs(self) -> Logprobs | None:
        """Collects a choice's log-probabilities, if they were asked for."""
        if self.body.num_alternatives is None:
            return None
        return (ChatLogprobs if self.chat else CompletionLogprobs)(self.backend.token_text)

    def usage(self) -> dict:
        """Tokens of all choices."""
        num_prompt = sum(len(job.request.prompt) for job in self.jobs)
        num_answer = sum(job.answer.num_tokens for job in self.jobs)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_answer,
            "total_tokens": num_prompt + num_answer,
            "prompt_tokens_details": {"cached_tokens": sum(job.cached_tokens for job in self.jobs)},
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
        texts = {job.index: ([], []) for job in self.jobs}
        logprobs = {job.index: self.logprobs() for job in self.jobs}
        async with aclosing(self.pieces()) as pieces:
            async for job, piece in pieces:
                texts[job.index][0].append(piece.content)
                texts[job.index][1].append(piece.reasoning)
                if collected := logprobs[job.index]:
                    collected.add(piece.tokens)
        choices = []
        for job in self.jobs:
            content, reasoning = map("".join, texts[job.index])
            shape: dict = {"text": content}
            if self.chat:
                shape = {"message": {"role": "assistant", "content": content, "refusal": None}}
                if reasoning:
                    shape["message"] |= thought(reasoning)
            collected = logprobs[job.index]
            choices.append(
                {"index": job.index}
                | shape
                | {"logprobs": collected.take() if collected else None, "finish_reason": job.finish_reason}
            )
        return self.frame(choices=choices, usage=self.usage())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events of a stream; the first comes when the engine has taken up the request."""
        with_usage = self.body.stream_options.include_usage
        extra = {"usage": None} if with_usage else {}
        logprobs = {job.index: self.logprobs() for job in self.jobs}
        begun: set[int] = set()
        async with aclosing(self.pieces()) as pieces:
            async for job, piece in pieces:
                for choice in self._choices(job, piece, logprobs[job.index], begun):
                    yield event(self.frame(choices=[choice], **extra))
        if with_usage:
            yield event(self.frame(choices=[], usage=self.usage()))
        yield DONE

    def _choices(self, job: Job, piece: Piece, logprobs: Logprobs | None, begun: set[int]) -> list[dict]:
        """The choices of the chunks that carry a piece: one for each delta, and one for the end."""
        if logprobs:
            logprobs.add(piece.tokens)
        choices = []
        for delta in self._deltas(job, piece, begun):
            # Log-probabilities go with the content, not with a delta before it.
            carries = piece.tokens and ("text" in delta or delta.keys() == {"content"})
            choices.append(
                {"index": job.index}
                | ({"delta": delta} if self.chat else delta)
                | {"logprobs": logprobs.take() if logprobs and carries else None, "finish_reason": None}
            )
        if job.finish_reason:
            end = {"delta": {}} if self.chat else {"text": ""}
            choices.append(
                {"index": job.index} | end | {"logprobs": None, "finish_reason": job.finish_reason}
            )
        return choices

    def _deltas(self, job: Job, piece: Piece, begun: set[int]) -> list[dict]:
        """What to send of a piece: the role once, then thinking, then text."""
        if not self.chat:
            return [{"text": piece.content}] if piece.content or piece.tokens else []
        deltas: list[dict] = []
        if job.index not in begun:
            begun.add(job.index)
            deltas.append({"role": "assistant", "content": ""})
        if piece.reasoning:
            deltas.append(thought(piece.reasoning))
        if piece.content or piece.tokens:
            deltas.append({"content": piece.content})
        return deltas


def thought(text: str) -> dict:
    """Thinking under the name that DeepSeek gave it, and the one that others read."""
    return {"reasoning_content": text, "reasoning": text}


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


async def respond(request: Request, completion: Completion) -> Response:
    """Run a completion and answer the client, streaming or not; its leaving cancels the work."""
    try:
        if not completion.body.stream:
            return JSONResponse(await until_gone(request, completion.whole))
        events = with_pauses(completion.events(), completion.backend.options.keep_alive_s)
        # What is wrong with the request shows before the first event, while a status can still say it.
        return EventStream(await until_gone(request, lambda: anext(events)), events)
    except ClientGone:
        return Response(status_code=CLIENT_GONE)


@router.post("/chat/completions")
async def chat_completions(
    request: Request, body: Annotated[ChatRequest, Depends(body_as(ChatRequest))]
) -> Response:
    """Continue a conversation."""
    backend = backend_of(request)
    await backend.ready()
    backend.check_name(body.model)
    backend.check_biases(body.logit_bias)
    prompt = await backend.chat_prompt(body.plain_messages(), body.template_variables)
    id_ = f"chatcmpl-{uuid.uuid4().hex}"
    answer = backend.chat_answer(body.stop, prompt)
    job = Job(0, Generate(id_, prompt, body.sampling(backend.stop_ids)), answer, "messages")
    return await respond(request, Completion(body, backend, [job], chat=True, id=id_))


@router.post("/completions")
async def completions(
    request: Request, body: Annotated[CompletionRequest, Depends(body_as(CompletionRequest))]
) -> Response:
    """Continue a text, or each of several."""
    backend = backend_of(request)
    await backend.ready()
    backend.check_name(body.model)
    backend.check_biases(body.logit_bias)
    id_ = f"cmpl-{uuid.uuid4().hex}"
    sampling = body.sampling(backend.stop_ids)
    jobs = []
    for i, prompt in enumerate(body.prompt):
        ids = await backend.text_prompt(prompt) if isinstance(prompt, str) else prompt
        name = f"{id_}-{i}" if len(body.prompt) > 1 else id_
        jobs.append(Job(i, Generate(name, ids, sampling), backend.answer(body.stop), "prompt"))
    return await respond(request, Completion(body, backend, jobs, chat=False, id=id_))


@router.get("/models")
async def models(request: Request) -> dict:
    """The one model, with the other names that it answers to."""
    return {"object": "list", "data": [backend_of(request).card()]}


@router.get("/models/{name:path}")
async def model(request: Request, name: str) -> dict:
    """The model, by any of its names."""
    backend = backend_of(request)
    backend.check_name(name)
    return backend.card()
