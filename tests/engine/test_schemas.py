"""300 schemas: whatever a model wants to say, what it says is valid, or cut by the limit."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from strata.engine.grammar import GrammarCompiler
from strata.engine.lane import Lane, ModelLane
from strata.engine.loading import has_native
from strata.engine.messages import Event, Finished, Generate, Grammar, SamplingParams, Tokens
from strata.engine.scheduler import Scheduler
from strata.engine.scripted import load_script
from strata.formats.tokenizer import Tokenizer, load_tokenizer
from strata.models import open_checkpoint
from strata.options import EMBEDDED_MODEL
from tests.helpers.models import native_model, reference_model
from tests.helpers.schemas import schemas

SEED, COUNT, LANES = 7, 300, 4
SAYINGS = [
    ['{"name": "Köln", "id": 1', ', "tags": ["a", "b"]', "}"],
    ["Certainly! ", "Here it is:\n```json\n", "{}\n```"],
    ['{\n  "city": null', ',\n  "kind": {"a b": -0.5e3}\n}'],
    ["[", "[", "[", '"', "\\u00e4\\n", '"'],
]


def check_all(
    lanes: list[Lane], tokenizer: Tokenizer, vocab_size: int, count: int, limit: int, most_cut: float
) -> None:
    """Let the lanes answer under each schema and validate what comes."""
    compiler = GrammarCompiler(lambda: tokenizer, vocab_size)
    events: list[Event] = []
    scheduler = Scheduler(lanes, vocab_size, 4096, events.append, grammars=compiler)
    asked = schemas(SEED, count)
    for i, schema in enumerate(asked):
        params = SamplingParams(
            seed=i, temperature=0.7, stop_ids=sorted(tokenizer.stop_ids), max_tokens=limit
        )
        scheduler.submit(Generate(str(i), [1, 2, 3], params, Grammar("json_schema", json.dumps(schema))))
    while scheduler.busy:
        scheduler.step()
    ids: dict[str, list[int]] = {str(i): [] for i in range(count)}
    ends = {event.id: event.reason for event in events if isinstance(event, Finished)}
    assert ends.keys() == ids.keys(), [event for event in events if not isinstance(event, Tokens)][-3:]
    for event in events:
        if isinstance(event, Tokens):
            ids[event.id] += [token.id for token in event.tokens]
    for i, schema in enumerate(asked):
        if ends[str(i)] == "stop":
            text = tokenizer.decode_bytes(ids[str(i)]).decode()
            # Formats are left out: Python knows no year 0, which RFC 3339 allows.
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert sum(reason == "length" for reason in ends.values()) <= most_cut * count


@pytest.mark.slow
def test_the_scripted_model(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text("\n".join(map(json.dumps, SAYINGS)), encoding="utf-8")
    script = load_script(f"scripted:{path}")
    lanes: list[Lane] = [script.new_lane() for _ in range(LANES)]
    check_all(lanes, script.vocabulary, script.vocabulary.vocab_size, COUNT, 400, most_cut=0.15)


@pytest.fixture
def embedded() -> Callable[[int, int], None]:
    checkpoint = open_checkpoint(EMBEDDED_MODEL)
    model = native_model(EMBEDDED_MODEL) if has_native() else reference_model(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    assert tokenizer is not None
    lanes: list[Lane] = [ModelLane(model, 0) for _ in range(LANES)]
    return lambda count, limit: check_all(
        lanes, tokenizer, model.config.vocab_size, count, limit, most_cut=0.9
    )


def test_the_embedded_model_on_a_few(embedded: Callable[[int, int], None]) -> None:
    embedded(8, 24)


@pytest.mark.slow
def test_the_embedded_model(embedded: Callable[[int, int], None]) -> None:
    embedded(COUNT, 40)


def test_the_schemas_are_the_same_every_time() -> None:
    assert schemas(SEED, 20) == schemas(SEED, 20) != schemas(SEED + 1, 20)
    assert np.mean(["properties" in json.dumps(schema) for schema in schemas(SEED, COUNT)]) > 0.7
