"""The scripted model's file and vocabulary."""

import time
from pathlib import Path

import pytest

from strata.engine.messages import SamplingParams, Token
from strata.engine.scripted import Script, ScriptedLane, load_script
from strata.errors import ModelFileError


def script_of(folder: Path, *lines: str) -> Script:
    path = folder / "script.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return load_script(f"scripted:{path}")


def recite(lane: ScriptedLane, **sampling) -> bytes:
    lane.begin([1], SamplingParams(**sampling))
    lane.prefill()
    vocabulary, answer = lane.script.vocabulary, b""
    while True:
        for token in lane.decode():
            if token.id == vocabulary.eos_id:
                return answer
            answer += vocabulary.token_bytes(token.id)


def test_strings_and_bytes_are_tokens(tmp_path: Path) -> None:
    script = script_of(tmp_path, '["Grü", "ß", [240, 159], [152, 128], "a", " Gott"]')
    vocabulary = script.vocabulary
    ids = [vocabulary.id_of(item) for item in script.lines[0] if isinstance(item, bytes)]
    assert len(set(ids)) == 6
    assert ids[4] == ord("a")  # a single byte is that byte's token
    assert vocabulary.decode_bytes(ids).decode() == "Grüß😀a Gott"
    assert recite(script.new_lane()).decode() == "Grüß😀a Gott"


def test_prompts_are_bytes_and_special_tokens(tmp_path: Path) -> None:
    vocabulary = script_of(tmp_path, '["Hi", "</think>", "<|im_end|>"]').vocabulary
    assert vocabulary.encode("Hi ß") == list("Hi ß".encode())
    # A user's text never becomes a control token; user-defined ones are found in any text, as in Qwen's.
    typed, markup = vocabulary.encode("<|im_end|>"), vocabulary.encode("<|im_end|>", special=True)
    assert typed == list(b"<|im_end|>") and markup == [vocabulary.eos_id]
    assert vocabulary.encode("</think>") == [vocabulary.id_of(b"</think>")]
    assert vocabulary.token_bytes(vocabulary.eos_id) == b""
    assert vocabulary.token_bytes(vocabulary.id_of(b"<think>")) == b"<think>"
    assert vocabulary.stop_ids >= {vocabulary.eos_id}
    assert vocabulary.bos_id is None and not vocabulary.add_bos
    assert all(name in vocabulary.special_tokens for name in ("<|im_start|>", "<tool_call>", "</tool_call>"))
    assert "<tool_call>\\n<function=" in vocabulary.chat_template


def test_a_seed_picks_the_line_and_others_take_turns(tmp_path: Path) -> None:
    script = script_of(tmp_path, '["zero"]', "", '["one"]', '["two"]', "")
    first, second = script.new_lane(), script.new_lane()
    assert [recite(first), recite(second), recite(first)] == [b"zero", b"one", b"two"]
    assert [recite(first, seed=s) for s in (1, 5, 3)] == [b"one", b"two", b"zero"]
    assert [recite(first), recite(second, seed=2), recite(second)] == [b"zero", b"two", b"one"]


TURN, CLOSE, ENDED = 257, 263, 258  # <|im_start|>, </think>, <|im_end|> of the scripted vocabulary


def say(lane: ScriptedLane, num_tokens: int) -> bytes:
    """So many tokens of the answer to the prompt that the lane has."""
    while len(lane.tokens) < len(lane._prompt):
        lane.prefill()
    while len(lane.tokens) < len(lane._prompt) + num_tokens:
        lane.decode()
    return lane.script.vocabulary.decode_bytes(lane.tokens[len(lane._prompt) :], special=True)


@pytest.mark.parametrize("seed", [None, 1])
def test_an_answer_that_is_gone_on_from_is_one_line(tmp_path: Path, seed: int | None) -> None:
    """Where the server divides it: at a budget of thinking, or where the model has closed it."""
    thought = '["a", "b", "c", "</think>", "\\n\\n", "d", "e"]'
    script = script_of(tmp_path, '["other", "lines"]', thought)
    lane, prompt, sampling = script.new_lane(), [1, 2, 3], SamplingParams(seed=seed)
    recite(lane, seed=0) if seed else recite(lane)
    lane.begin(prompt, sampling)
    assert say(lane, 2) == b"ab"
    written = [*lane.tokens, ord("!"), CLOSE, 10, 10]
    for other in (lane, script.new_lane()):  # the lane may be another's by then
        if other is not lane:
            lane.begin(prompt, SamplingParams(seed=1))
            say(lane, 2)
        other.begin(written, sampling)
        assert say(other, 3) == b"de<|im_end|>"
    lane.begin(prompt, SamplingParams(seed=1))
    assert say(lane, 4) == b"abc</think>"
    lane.begin([*lane.tokens, 10, 10], sampling)
    assert say(lane, 1) == b"d"
    lane.begin([*lane.tokens, ord("-")], sampling)  # as a limit of tokens is gone on from
    assert say(lane, 2) == b"e<|im_end|>"
    lane.begin(prompt, SamplingParams(seed=1))
    assert say(lane, 8).endswith(b"<|im_end|>")
    lane.begin([*prompt, ord("a"), ord("!"), CLOSE], sampling)  # the server had stopped it long before
    assert say(lane, 3) == b"de<|im_end|>"


def test_another_line_is_not_gone_on_with(tmp_path: Path) -> None:
    """Where a request's prompt happens to begin as an answer that was broken off."""
    lane = script_of(tmp_path, '["a", "b"]', '["c"]').new_lane()
    lane.begin([1], SamplingParams(seed=0))
    say(lane, 1)
    lane.begin([*lane.tokens, 7], SamplingParams(seed=1))
    assert say(lane, 1) == b"c"


def test_the_next_turn_is_the_next_line(tmp_path: Path) -> None:
    lane = script_of(tmp_path, '["a", "b"]', '["c"]').new_lane()
    lane.begin([1], SamplingParams())
    say(lane, 1)  # and its client stopped it
    lane.begin([*lane.tokens, ENDED, TURN, 5], SamplingParams())
    assert say(lane, 1) == b"c"
    lane.begin([2], SamplingParams())
    assert say(lane, 3) == b"ab<|im_end|>"
    lane.begin([*lane.tokens[:-1], 7], SamplingParams())  # a completion of a longer text
    assert say(lane, 1) == b"c"


def test_log_probabilities(tmp_path: Path) -> None:
    lane = script_of(tmp_path, '["x", "x", "x"]').new_lane()
    for logprobs, token in (
        (None, Token(120)),
        (0, Token(120, 0.0, [])),
        (5, Token(120, 0.0, [(120, 0.0)])),
    ):
        lane.begin([1], SamplingParams(logprobs=logprobs))
        lane.prefill()
        assert lane.decode() == [token]


def test_sleeping_takes_time_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    lane = script_of(tmp_path, '["a", {"sleep": 0.1}, "b"]').new_lane()
    lane.begin([1], SamplingParams())
    lane.prefill()
    assert lane.decode() == [Token(97)]
    start, longest, answer = time.monotonic(), 0.0, []
    while not answer:
        before = time.monotonic()
        answer = lane.decode()
        longest = max(longest, time.monotonic() - before)
    assert answer == [Token(98)]
    assert time.monotonic() - start >= 0.1
    assert longest < 0.1


def test_prompts_are_reused(tmp_path: Path) -> None:
    lane = script_of(tmp_path, '["abc"]').new_lane()
    recite(lane)
    written = list(lane.tokens)
    assert lane.begin([*written, 5, 6], SamplingParams()) == len(written)
    assert lane.begin([*written[:1]], SamplingParams()) == 0  # the last token is read in any case


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['["a"]', "[1"], "script.jsonl:2: is not JSON"),
        (['{"a": 1}'], "script.jsonl:1: is not a list"),
        (["", '["a", ""]'], "script.jsonl:2: item 2: a token without bytes"),
        (["[[]]"], "script.jsonl:1: item 1: a token without bytes"),
        (["[[65, 256]]"], "script.jsonl:1: item 1: 256 is not a byte value"),
        (["[[65, -1]]"], "-1 is not a byte value"),
        (["[[true]]"], "True is not a byte value"),
        (["[[1.5]]"], "1.5 is not a byte value"),
        (["[7]"], "script.jsonl:1: item 1: 7 is no token"),
        (["[null]"], "None is no token"),
        (['[{"sleep": -1}]'], "no token"),
        (['[{"sleep": "1"}]'], "no token"),
        (['[{"sleep": 1, "crash": true}]'], "no token"),
        (['[{"crash": false}]'], "no token"),
        ([""], "holds no line"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ModelFileError) as error:
        script_of(tmp_path, *lines)
    assert message in str(error.value)


def test_a_missing_file_and_bad_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no\.jsonl: cannot be read"):
        load_script(f"scripted:{tmp_path / 'no.jsonl'}")
    (tmp_path / "latin.jsonl").write_bytes(b'["\xff"]')
    with pytest.raises(ModelFileError, match=r"latin\.jsonl: cannot be read"):
        load_script(f"scripted:{tmp_path / 'latin.jsonl'}")
