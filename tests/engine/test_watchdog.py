"""Which silence is taken for a frozen engine."""

import asyncio
from collections.abc import Callable

import pytest

from strata.engine import watchdog
from strata.engine.watchdog import until_frozen
from strata.hardware.usage import ProcessWork

STALL_S = 0.2
ROUNDS = 20  # of looks, which is far more than a frozen process gets


async def _at_once() -> None:
    pass


async def _never() -> None:
    await asyncio.sleep(60)


def frozen(
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[int], ProcessWork | None],
    answer: Callable = _never,
    busy: bool = True,
) -> bool:
    """Whether a process that does `work(i)` up to look `i` is found to be frozen."""
    looks = iter(range(ROUNDS))

    def look(pid: int) -> ProcessWork | None:
        return work(next(looks))

    monkeypatch.setattr(watchdog, "process_work", look)
    try:
        asyncio.run(until_frozen(1, answer, lambda: busy, STALL_S))
    except RuntimeError as error:  # what becomes of the StopIteration of `looks`
        assert isinstance(error.__cause__, StopIteration)
        return False
    return True


def still(i: int) -> ProcessWork:
    return ProcessWork(3.0, 10)


def test_silent_still_and_busy_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 1317."""
    assert frozen(monkeypatch, still)
    assert frozen(monkeypatch, lambda i: ProcessWork(3.0 + 1e-5 * i, 10))  # what its other threads use


@pytest.mark.parametrize(
    "work",
    [
        lambda i: ProcessWork(3.0 + i, 10),
        lambda i: ProcessWork(3.0, 10 + i),
        lambda i: ProcessWork(3.0, 10 + (i // 4)),
        lambda i: None,
    ],
    ids=["computes", "reads", "reads now and then", "not to be looked at"],
)
def test_one_long_step_is_not(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[int], ProcessWork | None]
) -> None:
    assert not frozen(monkeypatch, work)


def test_an_engine_that_answers_or_has_nothing_to_do_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not frozen(monkeypatch, still, answer=_at_once)
    assert not frozen(monkeypatch, still, busy=False)
