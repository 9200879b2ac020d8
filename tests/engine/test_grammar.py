"""Grammars: what may come next, hostile ones, and their way through the scheduler and the samplers."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from strata.engine.grammar import MAX_TEXT, GrammarCompiler, TokenMask
from strata.engine.messages import Failed, Finished, Generate, Grammar, SamplingParams, Tokens
from strata.engine.sampling import Sampler
from strata.engine.scheduler import Scheduler
from strata.engine.scripted import Script, load_script
from strata.errors import RequestError

VOWELS = Grammar("regex", "[aeiou]{3}")
CITY = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        }
    ),
)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    path: Path = tmp_path_factory.mktemp("grammar") / "script.jsonl"
    lines = [
        ["Hello", " world"],
        ['{"city": "Köln", "da', 'ys": 3}', " and more"],
        ["<think>", "Hm", "</think>", "aei"],
        ["ou", "<|im_end|>"],
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return load_script(f"scripted:{path}")


@pytest.fixture(scope="module")
def compiler(script: Script) -> GrammarCompiler:
    return GrammarCompiler(lambda: script.vocabulary, script.vocabulary.vocab_size + 8)


def mask_of(compiler: GrammarCompiler, grammar: Grammar) -> TokenMask:
    return compiler.compile(grammar).result(60)


def allowed_bytes(mask: TokenMask) -> bytes:
    allowed = mask.allowed()
    assert allowed is not None
    return bytes(int(i) for i in np.flatnonzero(allowed[:256]))


def run(
    script: Script, compiler: GrammarCompiler, grammar: Grammar, seed: int, **sampling: object
) -> tuple[str, str]:
    """The text of an answer and why it ended."""
    events: list = []
    vocabulary = script.vocabulary
    scheduler = Scheduler([script.new_lane()], vocabulary.vocab_size, 4096, events.append, grammars=compiler)
    params = SamplingParams(seed=seed, stop_ids=sorted(vocabulary.stop_ids), **sampling)
    scheduler.submit(Generate("a", [1, 2], params, grammar))
    while scheduler.busy:
        scheduler.step()
    ids = [token.id for event in events if isinstance(event, Tokens) for token in event.tokens]
    assert isinstance(events[-1], Finished), events[-1]
    return vocabulary.decode_bytes(ids).decode(), events[-1].reason


def test_a_mask_allows_what_the_grammar_does(script: Script, compiler: GrammarCompiler) -> None:
    mask = mask_of(compiler, VOWELS)
    assert allowed_bytes(mask) == b"aeiou"
    allowed = mask.allowed()
    assert allowed is not None and len(allowed) == script.vocabulary.vocab_size + 8
    assert allowed[script.vocabulary.id_of(b"aei")] and not allowed[script.vocabulary.eos_id]
    mask.accept(script.vocabulary.id_of(b"ou"))
    assert not mask.ended
    mask.accept(ord("a"))
    assert mask.ended and list(np.flatnonzero(mask.allowed())) == sorted(script.vocabulary.stop_ids)


def test_answers_do_not_share_their_place(compiler: GrammarCompiler) -> None:
    """One compiled grammar, several lanes."""
    first, second = mask_of(compiler, VOWELS), mask_of(compiler, VOWELS)
    for _ in range(3):
        first.accept(ord("a"))
    assert first.ended and not second.ended and allowed_bytes(second) == b"aeiou"


def test_special_tokens_are_never_allowed_inside(script: Script, compiler: GrammarCompiler) -> None:
    mask = mask_of(compiler, Grammar("regex", r"(.|\n)*"))
    allowed = mask.allowed()
    assert allowed is not None
    special = sorted(script.vocabulary.special_tokens.values())
    assert [i for i in special if allowed[i]] == sorted(script.vocabulary.stop_ids)


def test_the_escape_frees_the_answer(script: Script, compiler: GrammarCompiler) -> None:
    think = script.vocabulary.id_of(b"<think>")
    free = mask_of(compiler, Grammar(VOWELS.kind, VOWELS.text, escape_id=think))
    bound = mask_of(compiler, Grammar(VOWELS.kind, VOWELS.text, escape_id=think))
    free.accept(think)
    assert free.allowed() is None and not free.ended
    bound.accept(ord("a"))
    assert not bound.allowed()[think], "only the first token may be it"


def test_the_scripted_model_follows_a_grammar(script: Script, compiler: GrammarCompiler) -> None:
    assert run(script, compiler, CITY, 1) == ('{"city": "Köln", "days": 3}', "stop")
    text, reason = run(script, compiler, CITY, 0)
    assert set(json.loads(text)) == {"city", "days"} and reason == "stop"
    assert run(script, compiler, VOWELS, 3)[0].startswith("ou")
    assert run(script, compiler, CITY, 1, max_tokens=1) == ('{"city": "Köln", "da', "length")


@pytest.mark.parametrize(
    ("grammar", "answer"),
    [
        (Grammar("choice", json.dumps(["yes", "no"])), "no"),
        (Grammar("json_schema", "true"), '""'),
        (Grammar("lark", 'start: "a" | "b"'), "a"),
        (Grammar("lark", 'root ::= "x" [0-9]'), "x0"),
    ],
)
def test_kinds(script: Script, compiler: GrammarCompiler, grammar: Grammar, answer: str) -> None:
    assert run(script, compiler, grammar, 0) == (answer, "stop")


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 2.0, "top_k": 3},
        {"top_p": 0.01},
        {"min_p": 0.9, "repetition_penalty": 5.0},
        {"logit_bias": {ord("z"): 100.0}},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0, "logprobs": 2},
    ],
)
def test_every_way_to_sample_stays_inside(script: Script, compiler: GrammarCompiler, params: dict) -> None:
    """The model wants `z` most of all; what a grammar forbids no filter or bias may bring back."""
    size = script.vocabulary.vocab_size + 8
    logits = np.random.default_rng(1).normal(size=size).astype(np.float32)
    logits[ord("z")] = 50.0
    logits[ord("a")] = -np.inf
    sampler = Sampler(SamplingParams(seed=5, **params), [1], size, mask_of(compiler, VOWELS))
    text = b""
    while not sampler.mask.ended:
        text += script.vocabulary.token_bytes(sampler.sample(logits).id)
    assert len(text) == 3 and set(text) <= set(b"aeiou")


def test_a_mask_that_allows_all_changes_nothing(script: Script) -> None:
    class All:
        ended = False

        def allowed(self) -> np.ndarray:
            return np.ones(64, bool)

        def accept(self, token_id: int) -> None:
            pass

    params = SamplingParams(seed=3, top_k=20, top_p=0.9)
    masked, plain = Sampler(params, [1], 64, All()), Sampler(params, [1], 64)
    for i in range(50):
        logits = np.random.default_rng(i).normal(size=64).astype(np.float32)
        assert masked.sample(logits) == plain.sample(logits)


def doubling(levels: int) -> str:
    rules = [f"a{i}: a{i + 1} a{i + 1}" for i in range(levels)]
    return "\n".join(["start: a0", *rules, f'a{levels}: "x"'])


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


WRONG = {
    "self reference": Grammar("json_schema", '{"$ref": "#"}'),
    "cycle": Grammar(
        "json_schema",
        '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}',
    ),
    "unknown reference": Grammar("json_schema", '{"$ref": "#/$defs/none"}'),
    "remote reference": Grammar("json_schema", '{"$ref": "http://127.0.0.1/schema.json"}'),
    "unsupported keyword": Grammar("json_schema", '{"not": {"type": "string"}}'),
    "unknown type": Grammar("json_schema", '{"type": "strin"}'),
    "no value": Grammar("json_schema", '{"type": "integer", "minimum": 5, "maximum": 2}'),
    "look-around": Grammar("json_schema", '{"type": "string", "pattern": "(?=a)b"}'),
    "deep": Grammar("json_schema", nested(5000)),
    "false": Grammar("json_schema", "false"),
    "own options": Grammar("json_schema", '{"type": "string", "x-guidance": {"lenient": true}}'),
    "regex": Grammar("regex", "(a"),
    "deep regex": Grammar("regex", "(" * 10000 + "a" + ")" * 10000),
    "lark": Grammar("lark", "start: nothing"),
    "left recursion": Grammar("lark", 'start: start "a"'),
    "deep gbnf": Grammar("lark", "root ::= " + "(" * 10000 + '"a"' + ")" * 10000),
    "junk": Grammar("lark", "hello"),
    "no choice": Grammar("choice", "[]"),
    "too long": Grammar("regex", "a" * (MAX_TEXT + 1)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_grammars_are_refused_in_no_time(compiler: GrammarCompiler, name: str) -> None:
    """CASES 88, 89, 90, 94."""
    started = time.monotonic()
    with pytest.raises(RequestError) as caught:
        mask_of(compiler, WRONG[name])
    assert caught.value.field == "grammar" and str(caught.value)
    assert time.monotonic() - started < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", '{"type": "integer", "multipleOf": 123456789}'),
        Grammar("lark", doubling(3000)),
    ],
)
def test_grammars_that_compile_for_ever_are_given_up(compiler: GrammarCompiler, grammar: Grammar) -> None:
    """llguidance has no limit of its own for these; the checking process ends itself, and the next works."""
    started = time.monotonic()
    with pytest.raises(RequestError, match="too complex"):
        mask_of(compiler, grammar)
    assert time.monotonic() - started < 40
    assert allowed_bytes(mask_of(compiler, VOWELS)) == b"aeiou"


def test_titles_and_definitions_alone_are_a_schema(compiler: GrammarCompiler) -> None:
    """CASES 93."""
    mask_of(compiler, Grammar("json_schema", '{"title": "T", "$defs": {"a": {"type": "string"}}}'))


def test_a_refused_grammar_ends_its_request_alone(script: Script, compiler: GrammarCompiler) -> None:
    events: list = []
    vocabulary = script.vocabulary
    lanes = [script.new_lane(), script.new_lane()]
    scheduler = Scheduler(lanes, vocabulary.vocab_size, 4096, events.append, grammars=compiler)
    params = SamplingParams(seed=1, stop_ids=sorted(vocabulary.stop_ids))
    scheduler.submit(Generate("wrong", [1], params, WRONG["regex"]))
    scheduler.submit(Generate("right", [1], params, CITY))
    scheduler.submit(Generate("free", [1], params))
    scheduler.submit(Generate("endless", [1], SamplingParams(), CITY))
    while scheduler.busy:
        scheduler.step()
    failed = {event.id: event for event in events if isinstance(event, Failed)}
    assert {id_: (event.code, event.field) for id_, event in failed.items()} == {
        "wrong": ("invalid_request", "grammar"),
        "endless": ("invalid_request", "grammar"),
    }
    assert {event.id for event in events if isinstance(event, Finished)} == {"right", "free"}
