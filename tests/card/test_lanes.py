"""Whatever other lanes do, whatever was begun, cancelled and reused: an answer is that of a lane alone."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from strata.card import runner as runner_module
from strata.card import sampling as sampling_module
from strata.card.device import CardError
from strata.card.prompts import PromptReader
from strata.card.runner import CardRunner
from strata.engine import card_lane, session
from strata.engine.card_lane import CardLane, card_lanes
from strata.engine.messages import Failed, Generate, Grammar, SamplingParams, Token, Tokens
from strata.engine.sampling import Sampler
from strata.engine.scheduler import Scheduler
from strata.errors import RequestError
from tests.card.token_model import VOCAB, TokenModel, TokenWindow, count_tokens, logits_of, sample

ROWS = 4  # of the largest window
CONTEXT = 200
PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    top_k=st.sampled_from([0, 5]),
    repetition_penalty=st.sampled_from([1.0, 1.7]),
    presence_penalty=st.sampled_from([0.0, 2.0]),
    frequency_penalty=st.sampled_from([0.0, 1.5]),
    seed=st.integers(0, 2**63 - 1),
    logprobs=st.sampled_from([None, 0, 2]),
)


@contextmanager
def new_lanes(lanes: int, recurrent: bool) -> Iterator[tuple[list[CardLane], CardRunner]]:
    """Lanes with small chunks and windows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_module, "Window", TokenWindow)
        for module in (runner_module, sampling_module, card_lane):
            patch.setattr(module, "WINDOW_ROWS", ROWS)
        patch.setattr(sampling_module, "sample", sample)
        patch.setattr(sampling_module, "count_tokens", count_tokens)
        patch.setattr(card_lane, "SHORT_PROMPT", 6)
        patch.setattr(session, "PREFILL_CHUNK", 8)
        cache = SimpleNamespace(refresh=lambda: None, launched=lambda: None)
        model = TokenModel(lanes, CONTEXT, recurrent)
        runner = CardRunner(model, cache, PromptReader(model, cache, 0, 8, 1e9), 1e9)
        yield list(card_lanes(runner, checkpoint_bytes=64, chunk=16)), runner


class Mask:
    """A grammar that allows two thirds of the tokens, others each time, and ends after some."""

    end_id = 0

    def __init__(self, length: int, fails_at: int = -1):
        self._left, self._fails_at = length, fails_at

    @property
    def ended(self) -> bool:
        return self._left == 0

    def allowed(self) -> np.ndarray:
        if self._left == self._fails_at:
            raise RequestError("the answer cannot follow the grammar", "grammar")
        return (np.arange(VOCAB) + self._left) % 3 > 0

    def words(self) -> np.ndarray:
        bits = np.zeros(64, bool)
        bits[:VOCAB] = self.allowed()
        return np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token: int) -> None:
        assert self.allowed()[token]
        self._left -= 1


def alone(prompt: list[int], params: SamplingParams, recurrent: bool, mask: Mask | None) -> Iterator[Token]:
    """An answer as it must be, from nothing but the model and the processor's sampler."""
    tokens = list(prompt)
    sampler = Sampler(params, prompt, VOCAB, mask)
    while True:
        if mask is not None and mask.ended:
            yield Token(mask.end_id)
            continue
        token = sampler.sample(logits_of(tokens, recurrent))
        yield token
        tokens.append(token.id)


@dataclass
class Seen:
    """A lane, and what its request must answer."""

    lane: CardLane
    text: list[int] = field(default_factory=list)  # prompt and answer
    left: int = 0  # tokens of the prompt that are not read yet
    expected: Iterator[Token] | None = None  # of a request under way

    @property
    def writing(self) -> bool:
        return self.expected is not None and self.left == 0


def begin(data: st.DataObject, seen: Seen, everybody: list[Seen], recurrent: bool) -> None:
    base = data.draw(st.sampled_from([seen, *everybody])).text
    prompt = base[: data.draw(st.integers(0, len(base)))] + data.draw(PROMPTS)
    prompt = prompt[-120:] if len(prompt) > 120 else prompt
    params = data.draw(PARAMS)
    length = data.draw(st.sampled_from([None, None, 3]))
    masks = [None if length is None else Mask(length) for _ in range(2)]
    reused = seen.lane.begin(prompt, params, masks[0])
    assert 0 <= reused < len(prompt)
    seen.text, seen.left = list(prompt), len(prompt) - reused
    seen.expected = alone(prompt, params, recurrent, masks[1])


def write(data: st.DataObject, everybody: list[Seen]) -> None:
    """A round, as the scheduler has them; a request may be cancelled in its middle."""
    writing = [seen for seen in everybody if seen.writing and len(seen.text) < CONTEXT - 1]
    for seen in writing:
        seen.lane.prepare()
    for seen in writing:
        if data.draw(st.integers(0, 5)) == 0:
            seen.expected = None
            continue
        (token,) = seen.lane.decode()
        want = next(seen.expected)
        assert token.id == want.id
        assert token.logprob == pytest.approx(want.logprob) and len(token.top) == len(want.top)
        seen.text.append(token.id)


@settings(max_examples=12, phases=[Phase.generate])  # to shrink takes minutes
@given(st.data())
def test_an_answer_is_that_of_a_lane_alone(data: st.DataObject):
    recurrent = data.draw(st.booleans())
    with new_lanes(data.draw(st.sampled_from([1, 2, 3, 6])), recurrent) as (lanes, _):
        everybody = [Seen(lane) for lane in lanes]
        for _ in range(data.draw(st.integers(1, 30))):
            seen = data.draw(st.sampled_from(everybody))
            if data.draw(st.integers(0, 9)) == 0:
                seen.expected, seen.left = None, 0
                if data.draw(st.booleans()):
                    seen.lane.reset()
            elif seen.expected is None:
                begin(data, seen, everybody, recurrent)
            elif seen.left:
                seen.left = len(seen.text) - seen.lane.prefill()
            else:
                write(data, everybody)


def answer(lane: CardLane, prompt: list[int], count: int, sampling: SamplingParams) -> tuple[int, list[int]]:
    """Tokens reused, and those answered."""
    reused = lane.begin(prompt, sampling)
    while lane.prefill() < len(prompt):
        pass
    tokens = []
    for _ in range(count):
        lane.prepare()
        tokens += [token.id for token in lane.decode()]
    return reused, tokens


GREEDY = SamplingParams(temperature=0.0, frequency_penalty=0.5)


@pytest.mark.parametrize("recurrent, reused", [(True, 16), (False, 19)])
def test_rows_that_are_pending_do_not_stand_where_a_lane_goes_back(recurrent: bool, reused: int):
    prompt, other = list(range(21)), [*range(19), 39, 38]
    with new_lanes(2, recurrent) as (lanes, _):
        for text, found in ((prompt, 0), (other, reused)):
            want = alone(text, GREEDY, recurrent, None)
            assert answer(lanes[0], text, 4, GREEDY) == (found, [next(want).id for _ in range(4)])


def test_more_lanes_write_than_a_window_has_rows():
    with new_lanes(2 * ROWS + 1, True) as (lanes, _):
        wanted = [alone([index, 3], GREEDY, True, None) for index in range(len(lanes))]
        for index, lane in enumerate(lanes):
            lane.begin([index, 3], GREEDY)
            lane.prefill()
        for _ in range(5):
            for lane in lanes:
                lane.prepare()
            assert [lane.decode()[0].id for lane in lanes] == [next(want).id for want in wanted]


def test_a_step_that_fails_ends_the_engine_not_one_request():
    """A window of several lanes that breaks off leaves no lane with a state to go on from."""
    with new_lanes(2, True) as (lanes, runner):
        for lane in lanes:
            lane.begin([1, 2], GREEDY)
            lane.prefill()
            lane.prepare()
            lane.decode()
            lane.prepare()
        error = RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might")

        def block(*_: object) -> None:
            raise error

        runner.model.block = block
        with pytest.raises(CardError, match=r"failed .*illegal memory access was encountered$"):
            lanes[0].decode()


class Hold:
    """Grammars of a scheduler that are there at once; a text of digits is a length and where it fails."""

    def compile(self, grammar):
        future = Future()
        future.set_result(Mask(*map(int, grammar.text.split())))
        return future


@settings(max_examples=8, phases=[Phase.generate])
@given(st.data())
def test_a_scheduler_answers_each_request_as_if_it_were_alone(data: st.DataObject):
    recurrent = data.draw(st.booleans())
    told: dict[str, list] = {}
    with new_lanes(data.draw(st.sampled_from([1, 3, 6])), recurrent) as (lanes, _):

        def poll() -> None:
            if told and data.draw(st.integers(0, 15)) == 0:
                scheduler.cancel(data.draw(st.sampled_from(sorted(told))))

        def emit(event) -> None:
            told[event.id].append(event)

        scheduler = Scheduler(lanes, VOCAB, CONTEXT, emit, poll, Hold())
        requests = []
        for index in range(data.draw(st.integers(1, 6))):
            shared = requests[-1].prompt if requests and data.draw(st.booleans()) else []
            sampling = msgspec.structs.replace(data.draw(PARAMS), max_tokens=8, stop_ids=[0])
            text = data.draw(st.sampled_from([None, None, "4", "9 3"]))
            grammar = None if text is None else Grammar("regex", text)
            prompt = shared + data.draw(PROMPTS)
            requests.append(Generate(str(index), prompt[-120:], sampling, grammar))
        for request in requests:
            told[request.id] = []
            scheduler.submit(request)
            for _ in range(data.draw(st.integers(0, 5))):
                scheduler.step()
        while scheduler.busy:
            scheduler.step()
    for request in requests:
        check(request, told[request.id], recurrent)


def check(request: Generate, events: list, recurrent: bool) -> None:
    """An answer is whole, or the part that was there when the request was cancelled or its grammar failed."""
    text = None if request.grammar is None else request.grammar.text
    want = alone(request.prompt, request.sampling, recurrent, text and Mask(*map(int, text.split())))
    tokens = [token for event in events if isinstance(event, Tokens) for token in event.tokens]
    for token in tokens:
        assert token.id == next(want).id
    end = events[-1]
    if isinstance(end, Failed):
        assert text == "9 3" and "grammar" in end.message
    elif end.reason == "stop":
        assert next(want).id == 0
    else:
        assert end.reason in ("length", "cancelled") and (len(tokens) == 8) == (end.reason == "length")
