"""What the endpoints work with: the engine, the model's vocabulary and template, and its names."""

import asyncio
import contextlib
import dataclasses
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from strata.engine.client import EngineClient, EngineError, RequestCancelled
from strata.engine.messages import Finished, Pong, SamplingParams, Tokens, Totals
from strata.engine.scripted import PREFIX, load_script
from strata.errors import RequestError, StrataError
from strata.formats.checkpoint import open_checkpoint
from strata.formats.tokenizer import Tokenizer, load_tokenizer
from strata.options import Options
from strata.serve.answer import Answer, Piece
from strata.serve.chat import ChatFormat, Turn
from strata.serve.deltas import End
from strata.serve.engine_config import engine_config
from strata.serve.job import Job, choices
from strata.serve.metrics import Metrics
from strata.serve.requests import Requests
from strata.serve.router import Router
from strata.serve.structured import Structure
from strata.serve.templates import Rendered, rendered_ids
from strata.serve.timings import summary

ANY_NAME = "*"  # as an alias
PING_S = 2.0  # a step of the engine may take as long
# Characters of a prompt that are encoded first, to see whether the rest can matter.
MIN_BEGINNING = 1 << 20
BEGINNING_PER_TOKEN = 16  # of the context
_log = logging.getLogger("strata.serve")


class Backend:
    """The served model. All methods belong to one event loop.

    Args:
        options: those of `strata serve`; the model is a path or `scripted:FILE`.
    """

    def __init__(self, options: Options):
        self.options = options
        self.created = int(time.time())
        given = [name.strip() for name in (options.aliases or "").split(",")]
        self.name, self.aliases = model_names(options.model), [options.model, *filter(None, given)]
        self.metrics = Metrics(self.name)
        self.requests = Requests()
        self.failure: str | None = None  # why the model does not load, in one line
        self._tokenizer: Tokenizer | None = None
        self._chat: ChatFormat | None = None
        self._token_bytes: Callable[[int], bytes] = lambda token_id: b""
        self._loading: asyncio.Task[None] | None = None
        self.engine = EngineClient(
            engine_config(options),
            echo=lambda line: _log.info("engine: %s", line),
        )

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load; `loaded` waits for the end of it."""
        self._loading = asyncio.create_task(self._load())

    @property
    def is_loaded(self) -> bool:
        """The model has been loaded, or will never be."""
        return self._loading is not None and self._loading.done()

    async def loaded(self) -> None:
        """Wait until the model is loaded.

        Raises:
            StrataError: it does not load; the text says why.
        """
        assert self._loading is not None
        await asyncio.shield(self._loading)

    async def stop(self) -> None:
        """End the engine; requests that still run are cancelled."""
        assert self._loading is not None
        await self.engine.stop()
        self._loading.cancel()
        await asyncio.wait({self._loading})
        if not self._loading.cancelled():
            self._loading.exception()

    async def _load(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.to_thread(self._load_vocabulary))
                group.create_task(self.engine.start())
        except ExceptionGroup as errors:
            self.failure = self.engine.failure or str(errors.exceptions[0])
            raise errors.exceptions[0] from None
        info = self.engine.info
        assert info is not None
        self.aliases.append(info.name)
        _log.info("loaded %s in %.1f s, computing with %s", info.name, info.load_s, info.kernels)

    def _load_vocabulary(self) -> None:
        model = self.options.model
        if model.startswith(PREFIX):
            tokenizer: Tokenizer | None = load_script(model).vocabulary
        else:
            tokenizer = load_tokenizer(open_checkpoint(model))
        if tokenizer is None:
            return
        self._token_bytes = tokenizer.token_bytes
        with contextlib.suppress(RequestError):  # chat requests will tell what is wrong with the template
            self._chat = ChatFormat.for_tokenizer(tokenizer, self.options)
            self._token_bytes = self._chat.token_bytes()
        self._tokenizer = tokenizer

    # --- what it is ---------------------------------------------------------------------------------

    def check_name(self, name: str) -> None:
        """Raises RequestError `model_not_found` for a name that is not this model's."""
        names = list(dict.fromkeys([self.name, *self.aliases]))
        if name not in names and ANY_NAME not in names:
            message = f"model: {name!r} is not served here; served: {', '.join(names)}"
            raise RequestError(message, "model", "model_not_found")

    def card(self) -> dict:
        """The model as `GET /v1/models` lists it."""
        info = self.engine.info
        names = [name for name in dict.fromkeys(self.aliases) if name not in (self.name, ANY_NAME)]
        card = {"id": self.name, "object": "model", "created": self.created, "owned_by": "strata"}
        # What Anthropic's clients read of a model, beside what OpenAI's do.
        created = datetime.fromtimestamp(self.created, UTC).isoformat()
        card |= {"type": "model", "display_name": self.name, "created_at": created, "aliases": names}
        return card | ({"context_length": info.context_length} if info else {})

    async def health(self) -> dict:
        """`state`, with the engine's counts if it answers now."""
        state = self.state()
        totals = await self.totals() if state["status"] == "ok" else None
        return state | (msgspec.structs.asdict(totals) if totals else {})

    def state(self) -> dict:
        """What is known of the engine without asking it; `status` is "ok", "loading" or "dead"."""
        engine = self.engine
        if self.failure is not None:
            return {"status": "dead", "reason": self.failure}
        if engine.state == "dead":
            return {"status": "dead", "reason": engine.failure, "note": "the next request starts it again"}
        if engine.state != "ready" or not self.is_loaded:
            progress = engine.progress
            step = {"progress": progress.text} if progress else {}
            return {"status": "loading"} | step
        assert engine.info is not None
        info = engine.info
        return {
            "status": "ok",
            "model": self.name,
            "architecture": info.architecture,
            "context_length": info.context_length,
            "load_s": info.load_s,
            "memory": [dataclasses.asdict(part) for part in info.memory],
            "threads": info.threads,
            "kernels": info.kernels,
            "dense": info.dense,
        }

    async def totals(self) -> Totals | None:
        """Counts of the engine, if it answers now; see `pong`."""
        pong = await self.pong()
        return pong and pong.totals

    async def pong(self) -> Pong | None:
        """Counts and lanes of the engine; without them it is busy with one long step, or has just died."""
        try:
            return await asyncio.wait_for(self.engine.ping(), PING_S)
        except (TimeoutError, EngineError):
            return None

    def special_texts(self) -> dict[str, str]:
        """The chat template and the special tokens that templates write, as far as the model has them."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return {}
        ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        texts = {
            name: self.token_text(i).decode(errors="replace") for name, i in ids.items() if i is not None
        }
        return texts | ({"chat_template": self._chat.template.source} if self._chat else {})

    # --- requests -----------------------------------------------------------------------------------

    async def ready(self, name: str | None = None) -> None:
        """Wait until the model is loaded; `name` is what the request calls it, if it does.

        Raises:
            EngineError: it does not load.
            RequestError: `model_not_found`.
        """
        try:
            await self.loaded()
        except StrataError as error:
            raise EngineError(f"the model does not load: {self.failure}") from error
        if name is not None:
            self.check_name(name)

    async def chat_prompt(self, turn: Turn) -> list[int]:
        """Token ids of a turn; raises RequestError where the template refuses it."""
        chat, tokenizer = self._chat_format(), self.text_tokenizer("messages")

        def encode() -> list[int]:
            # What people wrote counts before the template's own bounds speak of operators and seconds.
            written = "".join(text for m in turn.messages if isinstance(text := m.get("content"), str))
            self._check_beginning(written, tokenizer, "messages")
            rendered = chat.render(turn)
            self._check_beginning(rendered.text, tokenizer, "messages")
            return rendered_ids(rendered, tokenizer)

        return await asyncio.to_thread(encode)

    async def chat_text(self, turn: Turn) -> str:
        """The prompt of a turn; raises RequestError where the template refuses it."""
        return (await asyncio.to_thread(self._chat_format().render, turn)).text

    async def chat_jobs(self, turn: Turn, id_: str, sampling: SamplingParams, n: int = 1) -> list[Job]:
        """The `n` choices of a chat request; raises RequestError where the template refuses it."""
        prompt, chat = await self.chat_prompt(turn), self._chat_format()
        steering, structure = chat.steering(turn), chat.structure(turn, prompt)
        return [
            Job(i, name, prompt, own, chat.answer(turn, prompt), "messages", steering, structure)
            for i, (name, own) in enumerate(choices(id_, sampling, n))
        ]

    def _chat_format(self) -> ChatFormat:
        tokenizer = self.text_tokenizer("messages")
        return self._chat or ChatFormat.for_tokenizer(tokenizer, self.options)

    async def text_jobs(
        self,
        prompts: Sequence[str | list[int]],
        stops: list[str],
        id_: str,
        sampling: SamplingParams,
        n: int,
        structure: Structure | None = None,
    ) -> list[Job]:
        """The choices of a completions request, `n` for each prompt."""
        encoded = [await self.text_prompt(p) if isinstance(p, str) else p for p in prompts]
        return [
            Job(
                *(i, name, encoded[i // n], own, Answer(self._token_bytes, Router(stops=stops)), "prompt"),
                structure=structure,
            )
            for i, (name, own) in enumerate(choices(id_, sampling, n, len(prompts)))
        ]

    async def text_prompt(self, text: str) -> list[int]:
        """Token ids of a text, in which control tokens are markup, with BOS where the model wants it."""
        tokenizer = self.text_tokenizer("prompt")

        def encode() -> list[int]:
            self._check_beginning(text, tokenizer, "prompt")
            return rendered_ids(Rendered((text,)), tokenizer)

        return await asyncio.to_thread(encode)

    def _check_beginning(self, text: str, tokenizer: Tokenizer, field: str) -> None:
        """Raises RequestError for a text whose beginning alone is far too long.

        To encode all of it would only count it: 60 MB of words took a minute and 9 GB. Twice the context,
        because a cut may change the tokens next to it.
        """
        assert self.engine.info is not None
        context = self.engine.info.context_length
        beginning = text[: max(MIN_BEGINNING, BEGINNING_PER_TOKEN * context)]
        if len(beginning) == len(text):
            return
        num_tokens = len(tokenizer.encode(beginning))
        if num_tokens > 2 * context:
            raise RequestError(
                f"{field}: the prompt has more than {num_tokens} tokens, and the context of {context} tokens "
                "must hold at least one more for the answer; shorten the prompt",
                field,
                "context_length_exceeded",
            )

    def text_tokenizer(self, field: str) -> Tokenizer:
        """The model's; raises RequestError, which names the field that needs it, if there is none."""
        if self._tokenizer is None:
            raise RequestError(
                f"{field}: this model has no tokenizer; send token ids as prompt to /v1/completions", field
            )
        return self._tokenizer

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self._tokenizer.stop_ids if self._tokenizer else frozenset()

    def token_text(self, token_id: int) -> bytes:
        """A token's bytes for display: special ones by name."""
        return self._tokenizer.token_bytes(token_id, special=True) if self._tokenizer else b""

    def check_biases(self, biases: dict[int, float]) -> None:
        """Raises RequestError for a token id outside the vocabulary."""
        info = self.engine.info
        wrong = next((i for i in biases if info and i >= info.vocab_size), None)
        if info and wrong is not None:
            raise RequestError(
                f"logit_bias: token id {wrong} is outside the vocabulary of {info.vocab_size}", "logit_bias"
            )

    async def run(self, job: Job) -> AsyncGenerator[Piece, None]:
        """Answer one choice; each piece may be empty, which says that the engine is at work.

        Raises:
            RequestError: the prompt is wrong, e.g. too long.
            RequestCancelled: `cancel` was called.
            EngineError: the engine died or failed.
        """
        start = time.monotonic()
        tracked = self.requests.begin(job)
        piece = Piece(job.begin())  # sent when the engine has taken up the request, as it may refuse it
        try:
            while True:
                request = job.request()
                self.requests.next_run(tracked, request.id)
                async with aclosing(self.engine.generate(request)) as events:
                    async for event in events:
                        self.requests.note(tracked, event)
                        match event:
                            case Tokens() if not job.halted:
                                taken = job.answer.take(event.tokens)
                                piece = Piece([*piece.deltas, *taken.deltas], taken.tokens)
                                if job.halted:
                                    await self.engine.cancel(event.id)
                            case Finished():
                                ended = event
                        yield piece
                        piece = Piece()
                if tracked.cancelled:
                    raise RequestCancelled("the request was cancelled by who runs this server")
                assert self.engine.info is not None
                written = job.go_on(ended, self.engine.info.context_length)
                if written is None:
                    break
                piece = Piece(written)
            if request.keeps_lane:
                await self.engine.cancel(request.id)
            last = job.answer.finish(job.reason(ended))
            job.end = next(delta for delta in last.deltas if isinstance(delta, End))
            yield last
        except RequestError as error:
            place, field = error.field or "", job.field
            if job.structure is not None and place.startswith("grammar"):
                field = job.structure.field_of(place)
            raise RequestError(f"{field}: {error}", field, error.code) from error
        finally:
            self.requests.end(tracked)
            self._report(job, time.monotonic() - start)

    async def cancel(self, id_: str) -> None:
        """End a request under way with an error that says so.

        Raises:
            RequestError: there is none of this id.
        """
        if (tracked := self.requests.find(id_)) is None:
            raise RequestError(f"no request {id_!r:.80} is under way", "id", "request_not_found")
        tracked.cancelled = True
        await self.engine.cancel(tracked.engine_id)

    def _report(self, job: Job, total_s: float) -> None:
        """The log's line of a request; nothing in it comes from its text."""
        self.metrics.observe(job, total_s)
        ending = job.end.reason if job.end else "broken off"
        _log.info("%s %s: %s, total %.2f s, %s", job.id, self.name, summary(job), total_s, ending)


def model_names(model: str) -> str:
    """The name that a model is served under: its file's or folder's, without ending and part number."""
    path = Path(model.removeprefix(PREFIX))
    stem = path.stem if path.suffix in (".gguf", ".jsonl", ".json") else path.name
    return re.sub(r"-\d{5}-of-\d{5}$", "", stem) or model
