"""The scheduler on lanes that only count."""

import time

import pytest

from strata.engine.lane import ModelLane
from strata.engine.messages import (
    Failed,
    Finished,
    Generate,
    Progress,
    SamplingParams,
    Token,
    Tokens,
)
from strata.engine.scheduler import Scheduler
from strata.engine.session import common_prefix
from strata.errors import EngineError, StrataError
from strata.models.base import PREFILL_CHUNK
from tests.engine.fakes import VOCAB, HashModel

CHUNK = 10
EOS = 0


class CountingLane:
    """Answers 1, 2, 3 ...; after `until` tokens EOS. Reads ten prompt tokens at a time."""

    def __init__(self, until: int = 10**9):
        self.tokens: list[int] = []
        self.until = until
        self.error: Exception | None = None
        self.num_resets = self.num_prepared = 0

    def match(self, prompt):
        return min(common_prefix(self.tokens, prompt), len(prompt) - 1)

    def begin(self, prompt, sampling, mask=None):
        self.prompt, self.count = prompt, 0
        self.tokens = prompt[: self.match(prompt)]
        return len(self.tokens)

    def prefill(self):
        self.tokens = self.prompt[: len(self.tokens) + CHUNK]
        return len(self.tokens)

    def prepare(self):
        self.num_prepared += 1

    def decode(self):
        if self.error is not None:
            raise self.error
        self.count += 1
        return [Token(self.count if self.count <= self.until else EOS)]

    def reset(self):
        self.num_resets += 1

    def holds(self):
        return len(self.tokens), 0, 0


class Run:
    def __init__(self, *lanes, context: int = 1000):
        self.lanes = lanes
        self.events: list = []
        self.scheduler = Scheduler(list(lanes), 100, context, self.events.append)

    def submit(self, request_id: str, prompt: list[int], **sampling) -> None:
        self.scheduler.submit(Generate(request_id, prompt, SamplingParams(**{"stop_ids": [EOS]} | sampling)))

    def finish(self, limit: int = 1000) -> None:
        while self.scheduler.busy:
            self.scheduler.step()
            assert (limit := limit - 1), "the scheduler does not come to an end"

    def of(self, request_id: str, kind: type) -> list:
        return [e for e in self.events if isinstance(e, kind) and e.id == request_id]

    def answer(self, request_id: str) -> list[int]:
        return [token.id for event in self.of(request_id, Tokens) for token in event.tokens]

    def end(self, request_id: str):
        (end,) = self.of(request_id, Finished) + self.of(request_id, Failed)
        return end


def test_a_request_from_prompt_to_stop() -> None:
    run = Run(CountingLane(until=3))
    run.submit("a", [7] * 25)
    run.finish()
    assert [(e.done, e.total) for e in run.of("a", Progress)] == [(0, 25), (10, 25), (20, 25), (25, 25)]
    assert run.answer("a") == [1, 2, 3]
    end = run.end("a")
    assert (end.reason, end.prompt_tokens, end.cached_tokens, end.completion_tokens) == ("stop", 25, 0, 3)
    assert min(end.queue_s, end.prompt_s, end.decode_s) >= 0


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_max_tokens(max_tokens: int) -> None:
    run = Run(CountingLane())
    run.submit("a", [7], max_tokens=max_tokens)
    run.finish()
    assert run.answer("a") == list(range(1, max_tokens + 1))
    assert run.end("a").reason == "length"


def test_ignore_eos() -> None:
    run = Run(CountingLane(until=2))
    run.submit("a", [7], max_tokens=4, ignore_eos=True)
    run.finish()
    assert run.answer("a") == [1, 2, EOS, EOS]


def test_a_lane_may_give_several_tokens_or_none_at_once() -> None:
    class Bursts(CountingLane):
        def decode(self):
            return {1: [], 2: [Token(8), Token(9)], 3: [Token(5), Token(EOS), Token(6)]}[
                super().decode()[0].id
            ]

    run = Run(Bursts())
    run.submit("a", [7])
    run.submit("b", [7], max_tokens=1)
    run.finish()
    assert (run.answer("a"), run.end("a").reason) == ([8, 9, 5], "stop")
    assert (run.answer("b"), run.end("b").reason) == ([8], "length")


def test_the_context_ends_an_answer() -> None:
    run = Run(CountingLane(), context=30)
    run.submit("a", [7] * 25, max_tokens=100)
    run.finish()
    assert (run.answer("a"), run.end("a").reason) == ([1, 2, 3, 4, 5], "length")


@pytest.mark.parametrize(
    ("prompt", "bias", "code", "field", "numbers"),
    [
        ([7] * 30, {}, "context_length_exceeded", "prompt", ["30", "30"]),
        ([7] * 345, {}, "context_length_exceeded", "prompt", ["345", "30"]),
        ([], {}, "invalid_request", "prompt", []),
        ([5, 100], {}, "invalid_request", "prompt", ["100"]),
        ([-1], {}, "invalid_request", "prompt", ["-1", "100"]),
        ([5], {123: 1.0}, "invalid_request", "logit_bias", ["123", "100"]),
    ],
)
def test_wrong_requests_are_refused_at_once(prompt, bias, code, field, numbers) -> None:
    run = Run(CountingLane(), context=30)
    run.submit("a", prompt, logit_bias=bias)
    assert not run.scheduler.busy
    end = run.end("a")
    assert (end.code, end.field) == (code, field)
    assert all(number in end.message for number in numbers)


def test_a_short_request_does_not_wait_behind_a_huge_prompt() -> None:
    """CASES #656."""
    run = Run(CountingLane(), CountingLane())
    run.submit("huge", [7] * 900, max_tokens=1)
    run.scheduler.step()
    run.submit("short", [8] * 5, max_tokens=5)
    for _ in range(8):
        run.scheduler.step()
    assert run.end("short").completion_tokens == 5
    assert run.of("huge", Progress)[-1].done < 100
    run.finish()


def test_answers_go_on_while_a_prompt_is_read() -> None:
    run = Run(CountingLane(), CountingLane())
    run.submit("writes", [8])
    run.scheduler.step()
    run.submit("reads", [7] * 500)
    before = len(run.answer("writes"))
    for _ in range(20):
        run.scheduler.step()
    assert len(run.answer("writes")) == before + 20
    assert run.of("reads", Progress)[-1].done == 200


def test_requests_beyond_the_lanes_wait_in_order() -> None:
    run = Run(CountingLane(until=2), CountingLane(until=2))
    for name in "abcde":
        run.submit(name, [7])
    run.scheduler.step()
    assert (run.scheduler.totals().running, run.scheduler.totals().queued) == (2, 3)
    run.finish()
    assert sorted(e.id for e in run.events if isinstance(e, Finished)) == list("abcde")
    starts = [e.id for e in run.events if isinstance(e, Progress) and e.done == 0]
    assert starts == sorted(starts)


def go_on(run: Run, name: str, prompt: list[int], **fields) -> None:
    run.scheduler.submit(Generate(name, prompt, SamplingParams(stop_ids=[EOS]), **fields))


def test_an_answer_in_parts_keeps_its_lane_and_what_that_has_read() -> None:
    """Thinking whose budget is used up goes on before those who wait, and reads nothing again."""
    run = Run(CountingLane(until=2))
    go_on(run, "a", [7] * 20, keeps_lane=True)
    run.submit("b", [8])
    while not run.of("a", Finished):
        run.scheduler.step()
    for _ in range(3):
        run.scheduler.step()
    assert run.of("b", Progress) == []
    assert run.scheduler.lanes()[0].busy
    go_on(run, "a+1", [*run.lanes[0].tokens, 9], after="a")
    run.finish()
    assert [e.id for e in run.events if isinstance(e, Finished)] == ["a", "a+1", "b"]
    assert run.end("a+1").cached_tokens == 20
    assert not run.scheduler.lanes()[0].busy


@pytest.mark.parametrize("how", ["its own cancel", "time", "another of its name"])
def test_a_lane_is_not_kept_for_ever(how: str, monkeypatch) -> None:
    monkeypatch.setattr("strata.engine.scheduler.KEPT_S", 0.05 if how == "time" else 60)
    run = Run(CountingLane(until=2), CountingLane(until=2))
    go_on(run, "a", [7], keeps_lane=True)
    run.finish()
    if how == "its own cancel":
        run.scheduler.cancel("a")
    elif how == "another of its name":
        go_on(run, "a", [7], keeps_lane=True)
        run.finish()
        run.scheduler.cancel("a")
    run.submit("b", [8])
    run.submit("c", [8])
    run.finish()
    assert {run.end(name).reason for name in "bc"} == {"stop"}
    time.sleep(0.06 if how == "time" else 0)
    assert not any(lane.busy for lane in run.scheduler.lanes())


def test_a_cancelled_request_keeps_no_lane() -> None:
    run = Run(CountingLane())
    go_on(run, "a", [7], keeps_lane=True)
    run.scheduler.step()
    run.scheduler.cancel("a")
    assert not run.scheduler.lanes()[0].busy
    go_on(run, "a+1", [7], after="a", keeps_lane=True)  # takes a lane as any other does
    run.scheduler.step()
    assert run.scheduler.lanes()[0].busy


def test_a_lane_is_chosen_by_its_longest_prefix() -> None:
    lanes = [CountingLane(until=1) for _ in range(3)]
    lanes[0].tokens, lanes[1].tokens, lanes[2].tokens = [1, 9], [1, 2, 3, 4], [1, 2]
    run = Run(*lanes)
    run.submit("a", [1, 2, 3, 5])
    run.finish()
    assert run.end("a").cached_tokens == 3
    assert lanes[1].tokens == [1, 2, 3, 5] and lanes[0].tokens == [1, 9]


def test_among_equal_lanes_the_longest_unused_is_overwritten() -> None:
    lanes = [CountingLane(until=1) for _ in range(2)]
    run = Run(*lanes)
    for name, prompt in (("a", [1, 1]), ("b", [2, 2]), ("c", [3, 3])):
        run.submit(name, prompt)
        run.finish()
    assert [lane.tokens for lane in lanes] == [[3, 3], [2, 2]]


def test_cancel_in_the_queue_while_reading_and_while_writing() -> None:
    """CASES 54: what is cancelled in the queue never begins."""
    lanes = [CountingLane(), CountingLane()]
    run = Run(*lanes)
    run.submit("writes", [7])
    run.submit("reads", [8] * 900)
    run.submit("waits", [9])
    for _ in range(3):
        run.scheduler.step()
    assert run.answer("writes") and not run.answer("reads")
    for name in ("waits", "reads", "writes", "unknown"):
        run.scheduler.cancel(name)
    assert not run.scheduler.busy
    assert {name: run.end(name).reason for name in ("writes", "reads", "waits")} == dict.fromkeys(
        ("writes", "reads", "waits"), "cancelled"
    )
    assert not run.of("waits", Progress)
    totals = run.scheduler.totals()
    assert (totals.cancelled, totals.finished, totals.running, totals.queued) == (3, 0, 0, 0)
    assert totals.prompt_tokens < 50  # CASES #471: only what was read counts


def test_a_cancel_that_arrives_between_two_units_is_heeded() -> None:
    run = Run(CountingLane(), CountingLane())
    run.submit("a", [7])
    run.submit("b", [7])
    run.scheduler.step()
    run.scheduler.step()
    arrivals = iter([None, "b", None])  # at the round's start, before a's token, before b's
    run.scheduler._poll = lambda: run.scheduler.cancel(next(arrivals))
    written = len(run.answer("a")), len(run.answer("b"))
    run.scheduler.step()
    assert (len(run.answer("a")), len(run.answer("b"))) == (written[0] + 1, written[1])


def test_a_hundred_cancels_leave_every_lane_free() -> None:
    """CASES 57, 58."""
    run = Run(CountingLane(until=3), CountingLane(until=3))
    for i in range(100):
        run.submit(f"c{i}", [7] * 15)
        for _ in range(i % 4):
            run.scheduler.step()
        run.scheduler.cancel(f"c{i}")
    assert len(run.scheduler._free) == 2
    run.submit("last", [7])
    run.finish()
    assert run.answer("last") == [1, 2, 3]


@pytest.mark.parametrize(
    ("error", "text"),
    [(StrataError("tensor x is odd"), "tensor x is odd"), (ValueError("oops"), "ValueError: oops")],
)
def test_an_error_ends_only_its_request(error: Exception, text: str, capsys) -> None:
    good, bad = CountingLane(until=5), CountingLane()
    bad.error = error
    run = Run(bad, good)
    run.submit("bad", [7])
    run.submit("good", [7])
    run.finish()
    assert (run.end("bad").code, run.answer("good")) == ("internal_error", [1, 2, 3, 4, 5])
    assert text in run.end("bad").message
    assert bad.num_resets == 1 and good.num_resets == 0
    assert len(run.scheduler._free) == 2
    assert ("Traceback" in capsys.readouterr().err) == (not isinstance(error, StrataError))


def test_lanes_tell_what_they_hold() -> None:
    run = Run(CountingLane(until=3), ModelLane(HashModel(recurrent=True), 1 << 20))
    run.submit("a", [7] * 25)
    run.scheduler.step()
    (idle,) = (lane for lane in run.scheduler.lanes() if not lane.busy)
    assert idle.tokens == 0
    (busy,) = (lane for lane in run.scheduler.lanes() if lane.busy)
    assert busy.tokens > 0
    run.finish()
    assert not any(lane.busy for lane in run.scheduler.lanes())
    assert sum(lane.tokens for lane in run.scheduler.lanes()) >= 25  # kept for the next request


def test_a_models_lane_tells_its_memory() -> None:
    lane = ModelLane(HashModel(recurrent=True), 1 << 20)
    lane.begin([5] * (PREFILL_CHUNK + 1), SamplingParams())
    lane.prefill()
    assert lane.holds() == (PREFILL_CHUNK, PREFILL_CHUNK + 8, 8)  # cells of a byte, a hash, and a copy of it


def test_totals() -> None:
    run = Run(CountingLane(until=3))
    run.submit("a", [7] * 20)
    run.finish()
    run.submit("b", [7] * 20)
    run.submit("c", [])
    run.finish()
    totals = run.scheduler.totals()
    assert (totals.finished, totals.failed, totals.cancelled) == (2, 1, 0)
    assert (totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens) == (21, 19, 6)


@pytest.mark.parametrize("recurrent", [False, True])
def test_company_changes_no_answer(recurrent: bool) -> None:
    """CASES 98: with a seed, the same text whatever else runs; on real sessions and samplers."""
    prompts = {f"r{i}": [(i * 7 + j * j) % VOCAB for j in range(5 + 90 * i)] for i in range(6)}

    def answers(num_lanes: int, names: list[str]) -> dict[str, list[int]]:
        model = HashModel(recurrent)
        run = Run(*[ModelLane(model, 1 << 20) for _ in range(num_lanes)])
        run.scheduler.vocab_size = VOCAB
        for name in names:
            sampling = {
                "seed": int(name[1:]),
                "temperature": 1.5,
                "max_tokens": 12,
                "repetition_penalty": 1.1,
            }
            run.submit(name, prompts[name], **sampling)
        run.finish()
        return {name: run.answer(name) for name in names}

    together = answers(3, list(prompts))
    assert together == answers(1, list(reversed(prompts)))
    for name in prompts:
        assert answers(2, [name])[name] == together[name]


def test_all_lanes_prepare_before_any_decodes():
    order = []

    class Watched(CountingLane):
        def prepare(self):
            order.append("p")

        def decode(self):
            order.append("d")
            return super().decode()

    run = Run(Watched(), Watched())
    for name in "ab":
        run.submit(name, [1, 2], max_tokens=3)
    run.finish()
    assert "ppdd" in "".join(order), "both prepared before either decoded"
    assert order.count("p") == order.count("d")


def test_an_engine_that_cannot_go_on_does_not():
    run = Run(CountingLane())
    run.lanes[0].error = EngineError("the card is gone")
    run.submit("a", [1, 2])
    with pytest.raises(EngineError, match="gone"):
        run.finish()
