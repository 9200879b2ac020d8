"""Messages survive the wire with their types."""

import msgspec
import pytest

from strata.engine import messages as m

SAMPLING = m.SamplingParams(
    temperature=0.5,
    top_k=3,
    top_p=0.25,
    min_p=0.125,
    repetition_penalty=1.5,
    presence_penalty=-1.0,
    frequency_penalty=2.0,
    seed=2**64 - 1,
    logit_bias={7: -100.0, 250_000: 1.0},
    logprobs=0,
    max_tokens=9,
    stop_ids=[1, 2],
    ignore_eos=True,
)
INFO = m.ModelInfo("n", "a", 5, 6, 0.5, [m.MemoryPart("experts", "RAM", 2**40)], 2, "torch")


@pytest.mark.parametrize(
    "request_",
    [m.Generate("a", [1, 2**31], SAMPLING), m.Cancel("a"), m.Ping(), m.CountExperts(), m.Shutdown()],
)
def test_requests(request_: m.Request) -> None:
    assert m.decode_request(m.encode(request_)) == request_
    with pytest.raises(msgspec.ValidationError):
        m.decode_event(m.encode(request_))


@pytest.mark.parametrize(
    "event",
    [
        m.Hello("secret"),
        m.LoadProgress(1, 2, "opening"),
        m.Ready(INFO),
        m.Ready(msgspec.structs.replace(INFO, experts=m.ExpertLayout([0, 2], 8, 2, "RAM"))),
        m.Progress("a", 1, 2),
        m.Tokens("a", [m.Token(1), m.Token(2, -0.5, [(2, -0.5), (3, float("-inf"))])]),
        m.Finished("a", "stop", 1, 2, 3, 0.1, 0.2, 0.3),
        m.Failed("a", "no", "invalid_request", "prompt"),
        m.Pong(m.Totals(running=1, cached_tokens=2**40), [m.LaneUse(True, 5, 2**40, 3)]),
        m.ExpertUse(b"\x00\xff" * 8, b"", 9),
    ],
)
def test_events(event: m.Event) -> None:
    assert m.decode_event(m.encode(event)) == event
    with pytest.raises(msgspec.ValidationError):
        m.decode_request(m.encode(event))


def test_defaults_are_not_shared() -> None:
    m.SamplingParams().stop_ids.append(1)
    assert m.SamplingParams().stop_ids == []
