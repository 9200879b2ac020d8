"""Answers on their way. They live here, not in a page: one that is reloaded finds its answer again."""

import asyncio
import contextlib
import logging
import time
import uuid
from contextlib import aclosing
from typing import Any

from pydantic import ValidationError

from strata.errors import RequestError, StrataError
from strata.serve.backend import Backend
from strata.serve.chat_schemas import ChatRequest
from strata.serve.deltas import Message
from strata.serve.errors import from_validation
from strata.serve.job import Job
from strata.serve.requests import RequestReport
from strata.serve.timings import timings
from strata.web.conversation import Call, Conversation, Entry, Speed

UNWATCHED_S = 300.0  # an answer that no page shows is ended after so many seconds, or else forgotten
KEEPING_S = 2.0  # for browsers to keep what is there of an answer when the server stops
_log = logging.getLogger("strata.web")


def checked(fields: dict[str, Any]) -> ChatRequest:
    """A chat request; raises RequestError, with the field's name, where it is wrong."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error) from error


class Run:
    """One answer, from the request to its end.

    Args:
        backend: answers it.
        conversation: gets the answer as its last entry.

    Attributes:
        entry: the answer as far as it is there.
        job: of the engine; None until the model has been loaded and the prompt made.
        done: nothing will change any more.
        watchers: how many pages show it.
    """

    def __init__(self, backend: Backend, conversation: Conversation):
        self.backend, self.conversation = backend, conversation
        self.entry = Entry("assistant", calls=[])
        self.job: Job | None = None
        self.done = False
        self.watchers = 0
        self.unwatched_since = time.monotonic()
        self._request = checked(conversation.request(backend.name))
        self._begin = time.monotonic()
        self._thinking_since: float | None = None
        self._first_s = 0.0
        conversation.entries.append(self.entry)
        self._task = asyncio.create_task(self._work())

    @property
    def waited_s(self) -> float:
        """Seconds since the request."""
        return time.monotonic() - self._begin

    @property
    def report(self) -> RequestReport | None:
        """How far the engine is; None before it is asked."""
        return self.backend.requests.report(self.job.id) if self.job else None

    @property
    def is_thinking(self) -> bool:
        """Whether the model thinks now."""
        return not self.done and self._thinking_since is not None and not self.entry.content

    @property
    def thinking_s(self) -> float:
        """Seconds that the model has thought so far."""
        return 0.0 if self._thinking_since is None else time.monotonic() - self._thinking_since

    async def stop(self, ending: str) -> None:
        """End the answer; what is there of it stays."""
        if not self.done:
            self.entry.ending = ending
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _work(self) -> None:
        entry = self.entry
        try:
            await self.backend.ready()
            self.backend.check_biases(self._request.logit_bias)
            sampling = self._request.sampling(self.backend.stop_ids)
            id_ = f"web-{uuid.uuid4().hex}"
            (self.job,) = await self.backend.chat_jobs(self._request.turn(), id_, sampling)
            await self._collect(self.job)
        except asyncio.CancelledError:
            entry.ending = entry.ending or "stopped"
        except StrataError as error:
            entry.error = str(error)
        except Exception as error:
            _log.exception("an answer failed")
            entry.error = f"the server failed on this answer: {type(error).__name__}"
        finally:
            self._note_thinking()
            self.conversation.changed = time.time()
            self.done = True

    async def _collect(self, job: Job) -> None:
        """Take the answer's pieces until it ends."""
        message = Message()
        async with aclosing(self.backend.run(job)) as pieces:
            async for piece in pieces:
                if not piece.deltas:
                    continue
                message.add(piece.deltas)
                self._show(message)
        assert message.end is not None
        self.entry.ending = _ending(message)
        measured = timings(job)
        self.entry.speed = Speed(
            prompt_tokens=len(job.prompt),
            cached_tokens=job.cached_tokens,
            answer_tokens=job.answer.num_tokens,
            first_s=self._first_s,
            per_second=measured["predicted_per_second"],
        )

    def _show(self, message: Message) -> None:
        entry, now = self.entry, time.monotonic()
        if not self._first_s and (message.reasoning or message.content or message.tool_calls):
            self._first_s = now - self._begin
        entry.thinking, entry.content = message.reasoning, message.content
        entry.calls = [Call(call.id, call.name, call.arguments) for call in message.tool_calls]
        if message.reasoning and self._thinking_since is None:
            self._thinking_since = now
        if message.content or message.tool_calls:
            self._note_thinking()

    def _note_thinking(self) -> None:
        if self._thinking_since is not None and not self.entry.thinking_s:
            self.entry.thinking_s = time.monotonic() - self._thinking_since


def _ending(message: Message) -> str:
    """How a whole message ended, of `ENDINGS`; empty where there is nothing to tell."""
    assert message.end is not None
    if message.end.reason in ("length", "repetition"):
        return message.end.reason
    if message.end.unfinished:
        return message.end.unfinished
    return "" if message.reasoning or message.content or message.tool_calls else "empty"


class Runs:
    """The answers on their way, by the ids of their conversations."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._tidying: asyncio.Task[None] | None = None

    def begin(self, backend: Backend, conversation: Conversation) -> Run:
        """Ask for the next answer of a conversation.

        Raises:
            RequestError: a setting is wrong, or an answer is under way.
        """
        running = self._runs.get(conversation.id)
        if running is not None and not running.done:
            raise RequestError("an answer to this conversation is under way, in another window perhaps")
        run = self._runs[conversation.id] = Run(backend, conversation)
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.create_task(self._tidy())
        return run

    def find(self, conversation_id: str) -> Run | None:
        """The answer of a conversation that is under way, or whose end no page has kept."""
        return self._runs.get(conversation_id)

    def answering(self, conversation: Conversation) -> Run | None:
        """`find`, where the answer is still the last entry of its conversation."""
        run = self._runs.get(conversation.id)
        return run if run and conversation.entries and conversation.entries[-1] is run.entry else None

    def watch(self, run: Run) -> None:
        """A page shows the answer from now on."""
        run.watchers += 1

    def unwatch(self, run: Run) -> None:
        """A page does not show it any more."""
        run.watchers -= 1
        run.unwatched_since = time.monotonic()

    def kept(self, run: Run) -> None:
        """A browser has kept the whole answer."""
        if run.done and self._runs.get(run.conversation.id) is run:
            del self._runs[run.conversation.id]

    async def end(self) -> None:
        """End all answers as broken off, and wait a moment until browsers have kept those that pages show."""
        shown = [run for run in self._runs.values() if run.watchers]
        await asyncio.gather(*(run.stop("broken") for run in self._runs.values()))
        deadline = time.monotonic() + KEEPING_S
        while any(self._runs.get(run.conversation.id) is run for run in shown):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.02)

    async def _tidy(self) -> None:
        """End and forget what no page shows; runs only while there is something."""
        while self._runs:
            await asyncio.sleep(UNWATCHED_S / 10)
            for id_, run in list(self._runs.items()):
                if run.watchers or time.monotonic() - run.unwatched_since < UNWATCHED_S:
                    continue
                if run.done:
                    del self._runs[id_]
                else:
                    with contextlib.suppress(StrataError):
                        await run.stop("gone")
                    run.unwatched_since = time.monotonic()  # kept as long again for its page
