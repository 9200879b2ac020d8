"""The split must be the best there is: compared with trying every one."""

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.experts.split import Costs, finish_times, split

# an expert of 1.7 MB: 50 GB/s on the processor, 25 GB/s over the link, 65 GB/s in all, microseconds
PC = Costs(handshake=6e-6, cpu=34e-6, cpu_row=5e-6, link=68e-6, host=26e-6, card=15e-6)
SECONDS = st.floats(0, 1e-3)


def ends(rows: np.ndarray, taken: set[int], costs: Costs) -> float:
    """The rule in its own words."""
    cpu = sum(costs.cpu + costs.cpu_row * (rows[i] - 1) for i in taken)
    card = costs.card + costs.link * (len(rows) - len(taken))
    return max(cpu + costs.handshake if taken else 0, card, costs.host * len(rows))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 4), max_size=7),
    st.builds(Costs, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS),
)
def test_no_other_split_ends_sooner(rows, costs):
    rows = np.array(rows, int)
    chosen = split(rows, costs)
    everything = range(len(rows))
    subsets = chain.from_iterable(combinations(everything, n) for n in range(len(rows) + 1))
    best = min(ends(rows, set(subset), costs) for subset in subsets)
    assert ends(rows, set(chosen.tolist()), costs) == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_without_misses_nobody_works():
    assert split(np.array([], int), PC).tolist() == []
    assert finish_times(np.array([], int), PC).tolist() == [PC.card]


def test_one_miss_goes_where_it_ends_sooner():
    assert split(np.array([1]), PC).tolist() == [0]
    slow_cpu = Costs(**{**{f: getattr(PC, f) for f in PC.__slots__}, "cpu": 200e-6})
    assert split(np.array([1]), slow_cpu).tolist() == []


def test_the_processor_takes_what_few_rows_use():
    taken = split(np.array([4, 1, 1, 4, 1, 1]), PC)
    assert set(taken.tolist()) <= {1, 2, 4, 5} and len(taken) == 4


def test_a_tie_leaves_the_processor_alone():
    bound_by_the_card = Costs(handshake=0, cpu=1, cpu_row=0, link=0, host=0, card=5)
    assert split(np.array([1, 1]), bound_by_the_card).tolist() == []


def test_a_memory_that_bounds_every_split_does_not_decide():
    """A card may get more of it than cores alone."""
    bound_by_memory = Costs(handshake=0, cpu=1, cpu_row=0, link=1, host=5)
    assert split(np.array([1, 1]), bound_by_memory).tolist() == [0]
    assert finish_times(np.array([1, 1]), bound_by_memory).tolist() == [10, 10, 10]
