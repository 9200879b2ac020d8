"""The sampler against transformers' processors, against probabilities, and against its own promises."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from strata.engine.messages import SamplingParams
from strata.engine.sampling import Sampler
from strata.errors import StrataError

VOCAB = 300


def logits_of(seed: int, size: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def draw(logits: np.ndarray, position: int = 0, prompt: list[int] | None = None, **params) -> int:
    sampler = Sampler(SamplingParams(**{"seed": 0} | params), prompt or [], len(logits))
    sampler.position = position
    return sampler.sample(logits).id


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1e-6])
def test_a_temperature_of_nothing_is_argmax(temperature: float) -> None:
    """CASES 96."""
    logits = logits_of(0)
    logits[[250, 40, 99]] = logits.max() + 1
    assert draw(logits, temperature=temperature) == 40  # ties: the lowest id


def test_frequencies_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03], np.float32))
    temperature, num_draws = 1.5, 5_000
    expected = np.exp(logits / temperature) / np.exp(logits / temperature).sum() * num_draws
    sampler = Sampler(SamplingParams(temperature=temperature, seed=11), [], 5)
    counts = np.bincount([sampler.sample(logits).id for _ in range(num_draws)], minlength=5)
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # 4 degrees of freedom, p = 0.001


def test_seeds_give_independent_draws() -> None:
    logits = np.zeros(4, np.float32)
    pairs = [
        (draw(logits, position=9, seed=s), draw(logits, position=9, seed=s + 1)) for s in range(0, 3200, 2)
    ]
    counts = np.bincount([4 * a + b for a, b in pairs], minlength=16)
    assert ((counts - 100) ** 2 / 100).sum() < 37.7  # 15 degrees of freedom, p = 0.001


def test_same_seed_same_answer_whatever_ran_before() -> None:
    """CASES 98: the draw is a function of logits, seed and position."""
    steps = [logits_of(i) for i in range(30)]
    params = SamplingParams(seed=5, temperature=2.0)
    first, second = Sampler(params, [1, 2], VOCAB), Sampler(params, [1, 2], VOCAB)
    answer = [first.sample(x).id for x in steps]
    draw(logits_of(77), seed=6)  # another request between
    assert [second.sample(x).id for x in steps] == answer
    assert [draw(x, position=2 + i, temperature=2.0, seed=5) for i, x in enumerate(steps)] == answer
    assert [draw(x, position=2 + i, temperature=2.0, seed=6) for i, x in enumerate(steps)] != answer


def test_without_a_seed_requests_differ() -> None:
    logits = np.zeros(VOCAB, np.float32)
    samplers = [Sampler(SamplingParams(), [], VOCAB) for _ in range(2)]
    assert samplers[0].seed != samplers[1].seed
    assert [samplers[0].sample(logits).id for _ in range(8)] != [
        samplers[1].sample(logits).id for _ in range(8)
    ]


@pytest.mark.parametrize("seed", [-1, 2**64, 2**70 + 3])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert draw(logits_of(1), seed=seed) == draw(logits_of(1), seed=seed % 2**64)


def kept(logits: np.ndarray, **params) -> set[int]:
    """Ids that can be drawn: temperature so high that each of them comes up."""
    return {draw(logits, position=i, **params) for i in range(400)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("params", "warper"),
    [
        ({"top_k": 4}, TopKLogitsWarper(4)),
        ({"top_p": 0.7}, TopPLogitsWarper(0.7)),
        ({"min_p": 0.3}, MinPLogitsWarper(0.3)),
        ({"top_p": 0.0}, TopKLogitsWarper(1)),
        ({"top_k": 1}, TopKLogitsWarper(1)),
    ],
)
def test_filters_keep_what_transformers_keeps(seed: int, params: dict, warper) -> None:
    logits = logits_of(seed, 12) / 3
    scores = warper(None, TemperatureLogitsWarper(0.8)(None, torch.from_numpy(logits)[None]))[0]
    assert kept(logits, temperature=0.8, **params) == set(torch.isfinite(scores).nonzero().flatten().tolist())


def test_top_p_counts_what_top_k_left() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    assert kept(logits, top_p=0.5) == {0, 1}
    assert kept(logits, top_k=2, top_p=0.5) == {0}  # 0.4 of 0.7 is enough by then
    assert kept(np.zeros(4, np.float32), top_p=0.5) == {0, 1}  # reached exactly: no third one


@pytest.mark.parametrize("top_k", [0, -1, VOCAB, VOCAB + 1])
def test_top_k_off(top_k: int) -> None:
    logits = logits_of(3)
    assert [draw(logits, i, top_k=top_k) for i in range(50)] == [draw(logits, i) for i in range(50)]


def test_repetition_penalty_is_transformers_own() -> None:
    logits, prompt = logits_of(4), [3, 7, 7, 200]
    sampler = Sampler(SamplingParams(temperature=0, repetition_penalty=1.8), prompt, VOCAB)
    seen = list(prompt)
    for _ in range(20):
        scores = RepetitionPenaltyLogitsProcessor(1.8)(
            torch.tensor([seen]), torch.from_numpy(logits)[None].clone()
        )
        seen.append(sampler.sample(logits).id)
        assert seen[-1] == int(scores.argmax())
    assert len(set(seen)) > 8  # it did move on


def test_presence_and_frequency_count_the_answer_only() -> None:
    logits = np.array([1.0, 0.9, 0.0], np.float32)
    prompt = [0, 0, 0]
    presence = Sampler(SamplingParams(temperature=0, presence_penalty=0.5), prompt, 3)
    assert [presence.sample(logits).id for _ in range(4)] == [0, 1, 0, 0]
    # logit - 0.3 * count: 1.0 0.9 | 0.7 0.9 | 0.7 0.6 | 0.4 0.6 | 0.4 0.3 | 0.1 0.3 | ...
    frequency = Sampler(SamplingParams(temperature=0, frequency_penalty=0.3), prompt, 3)
    assert [frequency.sample(logits).id for _ in range(6)] == [0, 1, 0, 1, 0, 1]


def test_logit_bias_forces_and_forbids() -> None:
    logits = logits_of(6)
    assert draw(logits, logit_bias={17: 100.0}) == 17
    best = int(logits.argmax())
    assert draw(logits, temperature=0, logit_bias={best: -100.0}) == int(np.argsort(logits)[-2])
    assert draw(np.zeros(2, np.float32), logit_bias={0: -np.inf, 1: -np.inf}) == 0


def test_log_probabilities_are_the_models_own() -> None:
    logits = logits_of(8)
    expected = torch.from_numpy(logits).double().log_softmax(0)
    params = SamplingParams(temperature=0.3, top_k=3, seed=1, logit_bias={5: 90.0}, logprobs=4)
    token = Sampler(params, [], VOCAB).sample(logits)
    assert token.id == 5
    assert token.logprob == pytest.approx(float(expected[5]), abs=1e-9)
    values, ids = expected.topk(4)
    assert [i for i, _ in token.top] == ids.tolist()
    assert [p for _, p in token.top] == pytest.approx(values.tolist(), abs=1e-9)


def test_zero_alternatives_are_valid() -> None:
    """CASES 80."""
    token = Sampler(SamplingParams(logprobs=0, seed=0), [], VOCAB).sample(logits_of(8))
    assert token.logprob is not None and token.top == []


def test_alternatives_tie_to_the_lowest_ids() -> None:
    token = Sampler(SamplingParams(logprobs=3, seed=0), [], 10).sample(np.zeros(10, np.float32))
    assert [i for i, _ in token.top] == [0, 1, 2]
    assert (
        len(Sampler(SamplingParams(logprobs=20, seed=0), [], 10).sample(np.zeros(10, np.float32)).top) == 10
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_logits_are_named(value: float) -> None:
    logits = logits_of(9)
    logits[3] = value
    with pytest.raises(StrataError, match="largest logit at position 2"):
        Sampler(SamplingParams(seed=0), [1, 1], VOCAB).sample(logits)


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.floats(-50, 50, width=32) | st.just(float("-inf")), min_size=1, max_size=40).filter(
        lambda x: max(x) > float("-inf")
    ),
    temperature=st.floats(0, 5),
    top_k=st.integers(-1, 50),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    penalty=st.floats(0.5, 3),
    seed=st.integers(0, 2**64 - 1),
)
def test_something_possible_is_always_drawn(logits, temperature, top_k, top_p, min_p, penalty, seed) -> None:
    params = SamplingParams(temperature, top_k, top_p, min_p, penalty, seed=seed, logprobs=2)
    token = Sampler(params, [0], len(logits)).sample(np.array(logits, np.float32))
    assert logits[token.id] > float("-inf")
    assert token.logprob is not None and token.logprob <= 0


def test_the_pruned_vocabulary_changes_no_draw() -> None:
    """Tokens beyond the reach of the noise are left out for speed; with all of them the same one wins."""
    from strata.engine import sampling

    logits = np.random.default_rng(2).normal(0, 8, 5000).astype(np.float32)
    gap = sampling._MAX_NOISE_GAP
    pruned = [draw(logits, i, temperature=1.3) for i in range(100)]
    try:
        sampling._MAX_NOISE_GAP = np.inf
        assert [draw(logits, i, temperature=1.3) for i in range(100)] == pruned
    finally:
        sampling._MAX_NOISE_GAP = gap
