"""Requests under way, told by a clock that only moves when it is told to."""

import pytest

from strata.engine.messages import Finished, Progress, SamplingParams, Token, Tokens
from strata.serve.answer import Answer
from strata.serve.job import Job
from strata.serve.requests import SPEED_S, RequestReport, Requests, Throughput
from strata.serve.router import Router


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def job(id_: str = "chatcmpl-1", num_prompt: int = 100) -> Job:
    answer = Answer(lambda token_id: b"secret ", Router())
    return Job(0, id_, [5] * num_prompt, SamplingParams(), answer, "messages")


def write(requests: Requests, tracked, num_tokens: int) -> None:
    tokens = [Token(7)] * num_tokens
    tracked.job.answer.take(tokens)
    requests.note(tracked, Tokens("e", tokens))


def test_a_request_from_queue_to_end() -> None:
    clock = Clock()
    requests = Requests(clock)
    tracked = requests.begin(job())

    def report() -> RequestReport:
        (only,) = requests.reports()
        return only

    requests.next_run(tracked, "e")
    clock.now += 2
    assert (report().state, report().age_s, report().protocol) == ("queued", 2, "chat completions")
    requests.note(tracked, Progress("e", 40, 100))  # 40 needed no reading
    assert (report().state, report().prompt_tokens_read) == ("reading", 40)
    clock.now += 1
    requests.note(tracked, Progress("e", 100, 100))
    assert (report().state, report().first_token_s, report().tokens_per_s) == ("writing", None, None)
    assert requests.speed().prompt_tokens_per_s == 60
    write(requests, tracked, 1)
    assert (report().first_token_s, report().tokens_per_s) == (3, None)
    clock.now += 2
    write(requests, tracked, 20)
    assert (report().completion_tokens, report().tokens_per_s) == (21, 10)
    assert requests.speed().first_token_s == 3
    assert "secret" not in report().model_dump_json()
    requests.note(tracked, Finished("e", "stop", 100, 40, 21, 0, 1, 2))
    requests.end(tracked)
    assert requests.reports() == [] and requests.find("chatcmpl-1") is None


def test_a_request_that_goes_on_waits_for_a_lane_again() -> None:
    """Thinking whose budget is used up: the engine is asked anew, from a longer prompt."""
    requests = Requests(Clock())
    tracked = requests.begin(job("msg_1"))
    requests.next_run(tracked, "msg_1")
    requests.note(tracked, Progress("msg_1", 100, 100))
    write(requests, tracked, 5)
    requests.next_run(tracked, "msg_1+1")
    assert requests.reports()[0].state == "queued"
    requests.note(tracked, Progress("msg_1+1", 104, 105))
    (report,) = requests.reports()
    assert (report.state, report.protocol, report.prompt_tokens_read) == ("writing", "messages", 100)


def test_who_waits_is_told_how_many_wait_before_it() -> None:
    clock = Clock()
    requests = Requests(clock)
    ids = ("resp_a", "chatcmpl-b-0", "chatcmpl-b-1", "msg_c")
    tracked = [requests.begin(job(id_)) for id_ in ids]
    for one in tracked:
        clock.now += 1
        requests.next_run(one, one.job.id)

    def told() -> list[str]:
        return [requests.progress(id_) for id_ in ("resp_a", "chatcmpl-b", "msg_c", "chatcmpl-x")]

    assert told() == ["queued, 0 before it", "queued, 2 before it", "queued, 3 before it", ""]
    assert [report.queued_before for report in requests.reports()] == [0, 1, 2, 3]
    requests.note(tracked[0], Progress("resp_a", 40, 100))
    requests.note(tracked[1], Progress("b", 100, 100))
    assert told()[:2] == ["read 40 of 100 tokens of the prompt", "queued, 0 before it"]
    requests.note(tracked[2], Progress("b", 60, 100))
    assert told()[1:3] == ["read 60 of 100 tokens of the prompt", "queued, 0 before it"]
    requests.note(tracked[2], Progress("b", 100, 100))
    assert told()[1] == ""  # it writes
    assert [report.queued_before for report in requests.reports()] == [None, None, None, 0]


@pytest.mark.parametrize("id_", ["chatcmpl-1", "cmpl-1-0", "resp_1", "msg_1", "web-1"])
def test_every_kind_of_id_has_a_protocol(id_: str) -> None:
    requests = Requests()
    requests.begin(job(id_))
    assert requests.reports()[0].id == id_


def test_a_speed_is_of_the_last_seconds() -> None:
    throughput = Throughput()
    assert throughput.per_second(0) == 0
    for second in range(20):
        throughput.note(second, second + 1, 10)
    assert throughput.per_second(20) == pytest.approx(10)
    assert throughput.per_second(20 + SPEED_S / 2) == pytest.approx(5, abs=1)  # nothing since
    assert throughput.per_second(21 + SPEED_S) == 0


def test_work_longer_than_the_window_counts_from_its_begin() -> None:
    """A prompt's part of 500 tokens that took 20 seconds is 25 tokens/s, not 100."""
    throughput = Throughput()
    throughput.note(0, 20, 500)
    assert throughput.per_second(20) == 25


def test_a_speed_of_an_instant_is_none() -> None:
    throughput = Throughput()
    throughput.note(0, 0, 100)
    assert throughput.per_second(0.001) == 100  # at most what there was
