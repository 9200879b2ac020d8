"""The card's sampler, through Triton's interpreter, request after request beside the processor's."""

from random import Random

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from strata.card import sampling
from strata.card.sampling import CardSampler
from strata.engine.messages import SamplingParams
from strata.engine.sampling import Sampler
from strata.ops.triton.sampling import PROMPT
from strata.ops.triton.sampling import settings as numbers_of

VOCAB = 40
REQUESTS = [
    SamplingParams(temperature=0.0, frequency_penalty=2.0, presence_penalty=1.0),
    SamplingParams(seed=7, repetition_penalty=1.8, top_k=12),
    SamplingParams(temperature=0.0, logit_bias={3: 4.0, 5: -100.0}, frequency_penalty=1.5),
    SamplingParams(seed=2**64 - 5, temperature=1.4, top_p=0.8, presence_penalty=3.0),  # without the bias
]


def int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


class Asked:
    """A lane's request, and the same on the processor."""

    def __init__(self, sampler: CardSampler, lane: int, params: SamplingParams, prompt: list[int]):
        numbers = numbers_of(
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        sampler.begin(lane, numbers, params.top_k, params.seed or 0, params.logit_bias, prompt)
        self.lane, self.text, self.answered = lane, list(prompt), 0
        self.want = Sampler(params, prompt, VOCAB)


def step(sampler: CardSampler, asked: list[Asked], accepted: list[int], rng: np.random.Generator) -> None:
    """A window with the last token of each request's text, and one row that is nobody's."""
    logits = torch.from_numpy(3 * rng.normal(size=(len(asked) + 1, VOCAB)).astype(np.float32))
    lane = int32(*(a.lane for a in asked), -1)
    position = int32(*(len(a.text) - 1 for a in asked), 0)
    tokens, is_answer = int32(*(a.text[-1] for a in asked), 0), int32(*(a.answered > 0 for a in asked), 0)
    mask, chosen = torch.full((len(asked) + 1, 2), -1, dtype=torch.int32), torch.full_like(lane, -7)
    sampler.commit(int32(*accepted))
    sampler.choose(logits, lane, position, tokens, is_answer, mask, chosen)
    for index, a in enumerate(asked):
        assert int(chosen[index]) == a.want.sample(logits[index].numpy()).id
        a.text.append(int(chosen[index]))
        a.answered += 1


def test_requests_of_a_lane_choose_as_the_processor_does():
    sampler, rng, random = CardSampler(2, VOCAB, torch.device("cpu")), np.random.default_rng(0), Random(0)
    accepted = [0, 0]
    for turn in (0, 2):
        asked = [
            Asked(sampler, lane, REQUESTS[turn + lane], random.choices(range(VOCAB), k=9))
            for lane in range(2)
        ]
        for _ in range(2):
            step(sampler, asked, accepted, rng)
            accepted = [1, 1]  # rows of the request before count for nobody


def test_a_history_is_the_prompt_and_the_rows_that_stand(monkeypatch):
    """Rows that were pending when a request began are the request's before."""
    monkeypatch.setattr(sampling, "sample", lambda *_: None)
    sampler = CardSampler(2, VOCAB, torch.device("cpu"))

    def history(lane: int) -> dict[int, int]:
        return {int(i): int(sampler._lanes.history[lane, i]) for i in sampler._lanes.history[lane].nonzero()}

    def rows(tokens: list[int], is_answer: list[int]) -> None:
        lane, nothing = int32(0, 0, 1, -1), torch.empty(0)
        sampler.choose(nothing, lane, nothing, int32(*tokens), int32(*is_answer), nothing, nothing)

    for lane in range(2):
        sampler.begin(lane, numbers_of(), 0, 0, {}, [1, 1, 2])
    rows([2, 4, 2, 0], [0, 1, 1, 1])
    sampler.commit(int32(2, 1))
    assert history(0) == {1: PROMPT, 2: 2 * PROMPT, 4: 1}
    assert history(1) == {1: PROMPT, 2: PROMPT + 1}
    rows([5, 6, 7, 0], [1, 1, 1, 1])
    sampler.begin(1, numbers_of(), 0, 0, {}, [8])
    sampler.commit(int32(1, 1))  # of two rows of lane 0 one stands
    assert history(0) == {1: PROMPT, 2: 2 * PROMPT, 4: 1, 5: 1}
    assert history(1) == {8: PROMPT}
    sampler.commit(int32(1, 1))  # nothing is pending twice
    assert history(0) == {1: PROMPT, 2: 2 * PROMPT, 4: 1, 5: 1}
