"""The loop guard: loops are found, and what only resembles one is let alone."""

import random
import time
from itertools import chain, cycle, islice

import pytest

from strata.serve.loops import CYCLE_TOKENS, MAX_PERIOD, WINDOW, LoopGuard


def looped_after(ids: list[int], passages: bool = False) -> int | None:
    guard = LoopGuard(passages)
    return next((i for i, token_id in enumerate(ids, 1) if guard.push(token_id)), None)


RANDOM = random.Random(1).choices(range(50_000), k=8 * WINDOW)


@pytest.mark.parametrize("period", [1, 2, 7, MAX_PERIOD])
def test_a_cycle_is_found_wherever_it_begins(period: int) -> None:
    for before in (0, 1, 777):
        ids = [*RANDOM[:before], *islice(cycle(RANDOM[-period:]), 3000)]
        assert CYCLE_TOKENS <= looped_after(ids) - before <= CYCLE_TOKENS + 3 * MAX_PERIOD


def test_what_is_no_loop() -> None:
    assert looped_after(RANDOM, passages=True) is None
    table = list(chain.from_iterable([7, 8, 9, i, 10] for i in range(2000)))  # rows that differ
    assert looped_after(table, passages=True) is None
    short = [*RANDOM[:500], *[5] * (CYCLE_TOKENS - 1)] * 4  # a ruler, not for ever
    assert looped_after(short) is None


def test_passages_are_found_if_asked_for() -> None:
    """The same paragraph again and again, with a word changed each time."""
    paragraph = RANDOM[:150]
    ids = list(chain.from_iterable([*paragraph, i] for i in range(60)))
    assert looped_after(ids) is None
    assert looped_after(ids, passages=True) <= 2 * WINDOW


def test_a_reset_forgets() -> None:
    guard = LoopGuard()
    assert not any(guard.push(1) for _ in range(CYCLE_TOKENS))
    guard.reset()
    assert not any(guard.push(1) for _ in range(CYCLE_TOKENS))


def test_it_costs_little() -> None:
    start = time.perf_counter()
    looped_after(RANDOM, passages=True)
    assert (time.perf_counter() - start) / len(RANDOM) < 100e-6
