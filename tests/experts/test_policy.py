"""The policy must keep what is used, and never let a slot be written that a window may read."""

import numpy as np
import pytest
from helpers.replay import belady, ours
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.experts import policy as policy_module
from strata.experts.policy import (
    LearnedError,
    Policy,
    Residency,
    affordable_moves,
    load_frequency,
    save_frequency,
    slot_classes,
)
from strata.experts.trace import Trace

# FIELD.md F 3.2: misses of 480 uses per token, LFRU with so much of all experts held
LFRU = {0.16: 88.4, 0.26: 42.0, 0.33: 25.0, 0.41: 12.5, 0.49: 6.6}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return Trace.generate(1500, layers=4, experts=512, used=10)


@pytest.mark.parametrize("share, published", LFRU.items())
def test_no_more_is_missed_than_was_published_for_lfru(trace, share, published):
    assert belady(trace, share) < ours(trace, share) < 100 * published / 480 + 0.75


def test_misses_are_those_of_lfru_where_frequencies_fade_as_slowly(trace, monkeypatch):
    monkeypatch.setattr(policy_module, "HALF_LIFE", 4096)
    for share, published in LFRU.items():
        assert ours(trace, share) == pytest.approx(100 * published / 480, abs=1.5), share


def test_what_another_text_has_used_soon_counts_less(trace):
    """A tenth more misses at most than with nothing learned, however long was learned from the other."""
    other = Trace.generate(1000, layers=4, experts=512, used=10, seed=1)
    learned = 100 * other.counts(0, len(other)).reshape(-1).astype(np.float32)
    assert ours(trace, 0.16, learned=learned) < 1.1 * ours(trace, 0.16)


def test_few_moves_are_enough(trace):
    """24 per token of 48 layers; the same hits as with eight times as many."""
    assert ours(trace, 0.16, moves_per_layer=0.5) < ours(trace, 0.16, moves_per_layer=4) + 0.5


def test_with_all_experts_held_nothing_moves():
    sizes = np.full(8, 300)
    residency, policy = Residency(sizes, slot_classes(sizes, 8 * 512), slack=3), Policy(8)
    for move in residency.fill(range(8)):
        residency.land(move)
    policy.observe(np.arange(8))
    assert residency.held.all() and policy.moves(residency, 5) == []


def test_a_much_used_expert_replaces_the_least_used():
    sizes = np.full(4, 256)
    residency, policy = Residency(sizes, {256: 3}, slack=1), Policy(4)
    for move in residency.fill([0, 1]):
        residency.land(move)
    policy.observe(np.array([1, 5, 0, 4]))
    (move,) = policy.moves(residency, 9)
    assert (move.expert, move.evicted, move.slot) == (3, 0, 2)
    assert residency.held.tolist() == [True, True, False, False]  # until it lands
    residency.land(move)
    assert residency.held.tolist() == [False, True, False, True]


def test_a_small_class_keeps_few_slots_free():
    sizes = np.repeat([256, 512], [100, 20])
    residency = Residency(sizes, {256: 64, 512: 8}, slack=64)
    assert [residency.room(size) for size in residency.classes] == [48, 6]


def test_frequency_survives_eviction_and_fades():
    policy = Policy(2)
    policy.observe(np.array([64, 0]))
    for _ in range(4095):
        policy.observe(np.array([0, 1]))
    assert policy.frequency.tolist() == [32, 4095 / 2]
    assert policy.scores()[0] < policy.scores()[1]


def test_a_step_of_many_tokens_fades_as_if_they_had_come_one_by_one():
    one_by_one, at_once = Policy(2), Policy(2)
    for policy in (one_by_one, at_once):
        policy.observe(np.array([3, 1]))
    for _ in range(500):
        one_by_one.observe(np.array([1, 2]))
    at_once.observe(np.array([500, 1000]), tokens=500)
    assert at_once.recent == pytest.approx(one_by_one.recent, rel=1e-3)


def test_an_evicted_slot_waits_for_windows_that_may_read_it():
    residency = Residency(np.full(3, 256), {256: 2}, slack=1)
    (first,) = residency.fill([0])
    residency.land(first)
    window = residency.launch()  # reads slot of 0
    residency.land(residency.begin(1, evicted=0))
    assert residency.free(256) == 0  # slot of 0 is not free: `window` may read it
    with pytest.raises(IndexError):
        residency.begin(2, evicted=1)
    residency.finish(window)
    assert residency.free(256) == 1


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_slot_is_written_while_a_window_may_read_it(data):
    sizes = np.repeat([256, 300, 512], 6)  # two classes: 300 takes 512
    slots = {256: data.draw(st.integers(1, 6)), 512: data.draw(st.integers(1, 12))}
    slack = data.draw(st.integers(0, 3))
    residency, policy = Residency(sizes, slots, slack), Policy(18)
    for move in residency.fill(data.draw(st.permutations(range(18)))):
        residency.land(move)
    tables: dict[int, np.ndarray] = {}  # of windows under way
    copies = []
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["launch", "finish", "observe", "move", "land"]))
        if step == "launch":
            tables[residency.launch()] = residency.slot_of.copy()
        elif step == "finish" and tables:
            done = data.draw(st.sampled_from(sorted(tables)))
            residency.finish(done)
            tables = {window: table for window, table in tables.items() if window > done}
        elif step == "observe":
            policy.observe(np.array(data.draw(st.lists(st.integers(0, 3), min_size=18, max_size=18))))
        elif step == "move":
            moves = policy.moves(residency, data.draw(st.integers(0, 4)))
            for move in moves:
                readable = np.concatenate([*tables.values(), residency.slot_of])
                assert move.slot not in readable
                assert move.slot not in [copy.slot for copy in copies]
                assert residency.slot_size[move.slot] == residency.size[move.expert]
                copies.append(move)
        elif copies:
            residency.land(copies.pop(data.draw(st.integers(0, len(copies) - 1))))
        held = residency.slot_of[residency.held]
        assert len(set(held.tolist())) == len(held)  # no slot twice
        assert all(residency.room(size) >= 0 for size in residency.classes)


def test_windows_cannot_end_before_they_began():
    residency = Residency(np.full(2, 256), {256: 1}, slack=0)
    with pytest.raises(ValueError, match="window 1 cannot end"):
        residency.finish(1)


@given(st.integers(0, 10**6), st.lists(st.sampled_from([1000, 1500, 2000]), min_size=1, max_size=50))
def test_slots_stay_in_the_budget_and_use_it(budget, sizes):
    slots = slot_classes(np.array(sizes), budget)
    used = sum(size * count for size, count in slots.items())
    assert used <= budget
    assert used == sum(1024 if s == 1000 else 1536 if s == 1500 else 2048 for s in sizes) or (
        budget - used < sum(slots)  # less than one slot of each class is left over
    )


def test_moves_take_a_quarter_of_a_window():
    assert affordable_moves(25e9, 0.008, 1.7e6) == 29
    assert affordable_moves(1e9, 0.001, 1.7e6) == 1  # without any, nothing would ever be learned


def test_the_learned_order_comes_back(tmp_path):
    path = tmp_path / "order"
    frequency = np.random.default_rng(0).random(6).astype(np.float32)
    save_frequency(path, frequency, "model A")
    assert np.array_equal(load_frequency(path, 6, "model A"), frequency)
    assert [p.name for p in tmp_path.iterdir()] == ["order"]
    with pytest.raises(LearnedError, match="model A"):
        load_frequency(path, 6, "model B")
    with pytest.raises(LearnedError, match="8 experts"):
        load_frequency(path, 8, "model A")
    save_frequency(path, np.full(6, np.nan, np.float32), "model A")
    with pytest.raises(LearnedError, match="none"):
        load_frequency(path, 6, "model A")
    path.write_bytes(b"something else")
    with pytest.raises(LearnedError, match="no learned order"):
        load_frequency(path, 6, "model A")
    with pytest.raises(LearnedError, match="cannot be read"):
        load_frequency(tmp_path / "missing", 6, "model A")
