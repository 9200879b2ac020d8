"""Strict, forced and parallel calls in every dialect, from the request to the message.

The models are the scripted one, whose lines are what each dialect writes, and the embedded one, which writes
whatever its mask lets it. Markup is once tokens of its own and once mere text.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from strata.engine import scripted
from strata.engine.grammar import GrammarCompiler
from strata.engine.lane import Lane, ModelLane
from strata.engine.messages import Event, Failed, Generate, ModelInfo, SamplingParams
from strata.engine.scheduler import Scheduler
from strata.errors import RequestError
from strata.formats.tokenizer import load_tokenizer
from strata.models import open_checkpoint
from strata.options import EMBEDDED_MODEL, Options
from strata.serve.backend import Backend
from strata.serve.chat import ChatFormat, Thinking, Turn
from strata.serve.deltas import Message
from strata.serve.dialects import DIALECTS
from strata.serve.templates import ChatTemplate
from tests.helpers.chat_templates import TEMPLATES
from tests.helpers.models import reference_model

# The dialect of each template.
TEMPLATE_OF = {
    "qwen": "tiny",
    "hermes": "thinking",
    "llama": "headers",
    "mistral": "named",
    "mistral list": "inst",
    "generic": "turns",
}
MARKUP = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>")
CITY = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bonn", "Ulm"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": CITY, "weather_now": NO_ARGUMENTS}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in SCHEMAS.items()]
BONN, ULM = {"city": "Bonn", "days": 3}, {"city": "Ulm", "days": 7}


class LocalEngine:
    """What a backend asks of an engine, in this process and one request at a time."""

    def __init__(self, lane: Lane, compiler: GrammarCompiler, vocab_size: int):
        self.info = ModelInfo("m", "none", vocab_size, 4096, 0.0, [], 1, "none")
        self._events: list[Event] = []
        self._scheduler = Scheduler([lane], vocab_size, 4096, self._events.append, grammars=compiler)

    async def generate(self, request: Generate) -> AsyncGenerator[Event, None]:
        self._scheduler.submit(request)
        while self._events or self._scheduler.busy:
            while self._events:
                event = self._events.pop(0)
                if isinstance(event, Failed):
                    raise RequestError(event.message, event.field, event.code)
                yield event
            if self._scheduler.busy:
                self._scheduler.step()

    async def cancel(self, id_: str) -> None:
        self._scheduler.cancel(id_)


def answered(engine: LocalEngine, of: ChatFormat, turn: Turn, **sampling: Any) -> Message:
    """The message that a backend makes of the answer."""
    backend = Backend(Options(model="scripted:m.jsonl"))
    backend.engine, backend._tokenizer, backend._chat = engine, of.tokenizer, of  # type: ignore[assignment]
    params = SamplingParams(stop_ids=sorted(of.tokenizer.stop_ids), **sampling)

    async def run() -> Message:
        (job,) = await backend.chat_jobs(turn, "chatcmpl-1", params)
        message = Message()
        async for piece in backend.run(job):
            message.add(piece.deltas)
        return message

    return asyncio.run(run())


def calls_of(message: Message) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


def asked(**fields: Any) -> Turn:
    fields = {"tools": TOOLS, "strict": list(SCHEMAS), "thinking": Thinking(enabled=False)} | fields
    return Turn(messages=[{"role": "user", "content": "How is the weather?"}], **fields)


# --- the scripted model -----------------------------------------------------------------------------


def written(dialect: str, *calls: tuple[str, Any]) -> str:
    """Calls as a model of a dialect writes them."""
    objects = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
    match dialect:
        case "qwen":
            blocks = []
            for name, given in calls:
                values = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in given.items())
                blocks.append(f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>")
            return "\n".join(blocks)
        case "llama":
            return "; ".join(text.replace('"arguments"', '"parameters"') for text in objects)
        case "mistral":
            return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}" for name, given in calls)
        case "mistral list":
            return f"[TOOL_CALLS] [{', '.join(objects)}]"
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)


class Scripted:
    """A dialect that a script is written in.

    Args:
        dialect: its name.
        tags: what is a token of its own; everything else is written byte by byte.
        path: of the script.
        compiler: of the vocabulary, which all scripts have that are written so.
    """

    def __init__(self, dialect: str, tags: tuple[str, ...], path: Path, compiler: GrammarCompiler):
        self.dialect, self._tags, self._path, self._compiler = dialect, tags, path, compiler

    def answer(self, text: str, turn: Turn, **sampling: Any) -> Message:
        """What becomes of a text that the model would write."""
        script = script_of(self._path, text, self._tags)
        vocabulary = script.vocabulary
        of = ChatFormat(
            vocabulary, ChatTemplate.for_tokenizer(vocabulary, TEMPLATES[TEMPLATE_OF[self.dialect]])
        )
        assert of.dialect.name == self.dialect
        engine = LocalEngine(script.new_lane(), self._compiler, vocabulary.vocab_size)
        return answered(engine, of, turn, **sampling)


def script_of(path: Path, text: str, tags: tuple[str, ...]) -> scripted.Script:
    pieces: list[str | list[int]] = []
    parts = re.split(f"({'|'.join(map(re.escape, tags))})", text)
    for part in parts:
        pieces += [part] if part in tags else [[byte] for byte in part.encode()]
    path.write_text(json.dumps(pieces), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted, "USER_DEFINED", tags)
        return scripted.load_script(f"scripted:{path}")


TAGS = {"text": ("<think>", "</think>"), "tokens": ("<think>", "</think>", *MARKUP)}


@pytest.fixture(scope="module")
def compilers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GrammarCompiler]:
    path = tmp_path_factory.mktemp("strict") / "any.jsonl"
    vocabularies = {kind: script_of(path, "x", tags).vocabulary for kind, tags in TAGS.items()}
    return {kind: GrammarCompiler(lambda v=v: v, v.vocab_size) for kind, v in vocabularies.items()}


@pytest.fixture(params=[f"{name}, {kind}" for name in TEMPLATE_OF for kind in TAGS])
def model(request: pytest.FixtureRequest, tmp_path: Path, compilers: dict[str, GrammarCompiler]) -> Scripted:
    dialect, _, kind = request.param.rpartition(", ")
    return Scripted(dialect, TAGS[kind], tmp_path / "script.jsonl", compilers[kind])


def test_every_dialect_is_here() -> None:
    assert list(TEMPLATE_OF) == [
        d.name for d in sorted(DIALECTS, key=lambda d: list(TEMPLATE_OF).index(d.name))
    ]


def test_a_strict_call_comes_as_it_is_written(model: Scripted) -> None:
    message = model.answer(written(model.dialect, ("weather", BONN)), asked())
    assert (calls_of(message), message.content) == ([("weather", BONN)], "")
    assert message.end is not None and message.end.reason == "tool_calls"


@pytest.mark.parametrize(
    "wrong", [{"city": "Köln", "days": 3}, {"days": 3, "city": "Bonn"}, {"days": "many"}]
)
def test_a_strict_call_follows_its_schema(model: Scripted, wrong: dict) -> None:
    message = model.answer(written(model.dialect, ("weather", wrong)), asked())
    ((name, given),) = calls_of(message)
    jsonschema.validate(given, SCHEMAS[name])
    assert message.content == ""


def test_text_is_free_beside_strict_tools(model: Scripted) -> None:
    text = "A <b> [list] {of} things; it rains."
    message = model.answer(text, asked())
    assert (message.content, calls_of(message)) == (text, [])


def test_a_call_may_come_behind_text(model: Scripted) -> None:
    text = "I < look.\n" + written(model.dialect, ("weather", BONN))
    message = model.answer(text, asked())
    if model.dialect == "llama":  # whose calls have no marker, so that it would be text
        assert (calls_of(message), message.content) == ([], text)
    else:
        assert (calls_of(message), message.content) == ([("weather", BONN)], "I < look.")


def test_several_calls_and_one_only(model: Scripted) -> None:
    two = [("weather", BONN), ("weather_now", {}), ("weather", ULM)]
    text = written(model.dialect, *two)
    assert calls_of(model.answer(text, asked())) == two
    assert calls_of(model.answer(text + "\n", asked())) == two
    assert calls_of(model.answer(text, asked(parallel=False))) == two[:1]


@pytest.mark.parametrize("strict", [list(SCHEMAS), []])
def test_a_named_function_is_called(model: Scripted, strict: list[str]) -> None:
    """The server writes the beginning, the model what is left."""
    whole = written(model.dialect, ("weather", BONN))
    opening = model_opening(model, ["weather"])
    assert whole.startswith(opening)
    message = model.answer(whole.removeprefix(opening), asked(forced=["weather"], strict=strict))
    assert (calls_of(message), message.content) == ([("weather", BONN)], "")
    other = model.answer("No, I would rather not.", asked(forced=["weather"], parallel=False))
    ((name, given),) = calls_of(other)
    jsonschema.validate(given, SCHEMAS[name])
    assert (name, other.content) == ("weather", "")


def test_some_call_is_required(model: Scripted) -> None:
    whole = written(model.dialect, ("weather_now", {}), ("weather", ULM))
    opening = model_opening(model, list(SCHEMAS))
    assert whole.startswith(opening)
    message = model.answer(whole.removeprefix(opening), asked(forced=list(SCHEMAS)))
    assert calls_of(message) == [("weather_now", {}), ("weather", ULM)]
    (call,) = calls_of(model.answer("Nothing.", asked(forced=list(SCHEMAS), parallel=False)))
    jsonschema.validate(call[1], SCHEMAS[call[0]])


def model_opening(model: Scripted, names: list[str]) -> str:
    dialect = next(dialect for dialect in DIALECTS if dialect.name == model.dialect)
    return dialect.forced_opening(names)


# --- the embedded model -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded() -> Iterator[tuple[LocalEngine, Any]]:
    checkpoint = open_checkpoint(EMBEDDED_MODEL)
    tokenizer = load_tokenizer(checkpoint)
    assert tokenizer is not None
    compiler = GrammarCompiler(lambda: tokenizer, tokenizer.vocab_size)
    lane = ModelLane(reference_model(checkpoint, 1 << 30), 0)
    yield LocalEngine(lane, compiler, tokenizer.vocab_size), tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("dialect", TEMPLATE_OF)
def test_the_embedded_model_calls_as_it_must(embedded: tuple[LocalEngine, Any], dialect: str) -> None:
    """It has learnt stories only, so that all that is right about its calls comes from the masks."""
    engine, tokenizer = embedded
    of = ChatFormat(tokenizer, ChatTemplate.for_tokenizer(tokenizer, TEMPLATES[TEMPLATE_OF[dialect]]))
    sampling = {"temperature": 1.5, "max_tokens": 120, "seed": 1}
    for forced in (["weather"], list(SCHEMAS)):
        message = answered(engine, of, asked(forced=forced, parallel=False), **sampling)
        ((name, given),) = calls_of(message)
        jsonschema.validate(given, SCHEMAS[name])
        assert name in forced and message.content == ""
