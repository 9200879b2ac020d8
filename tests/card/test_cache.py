"""Windows must always read an expert's own bytes, whatever is exchanged while they run."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.card.cache import ExpertCache
from strata.card.device import CardError
from strata.card.store import ExpertStore
from tests.card.fakes import FakeCard, read

LAYERS, EXPERTS = 3, 8
RECORDS = [512, 512, 256]  # two sizes of slots
TOTAL = EXPERTS * sum(RECORDS)


def new_store(card: FakeCard) -> ExpertStore:
    store = ExpertStore(card, RECORDS, EXPERTS)
    rng = np.random.default_rng(0)
    for layer in range(LAYERS):
        store.records(layer)[:] = rng.integers(0, 200, store.records(layer).shape)
        store.fill(layer)
    store.wait()
    return store


def assert_whole(store: ExpertStore, addresses: np.ndarray) -> None:
    for (layer, expert), address in np.ndenumerate(addresses):
        want = store.records(layer)[expert]
        assert np.array_equal(read(int(address), len(want)), want), (layer, expert)


def test_records_are_where_the_addresses_say():
    card = FakeCard()
    store = new_store(card)
    assert_whole(store, store.addresses)
    assert (store.addresses % 64 == 0).all()
    assert len(card.registered) == LAYERS
    store.close()
    assert not card.registered


def test_a_driver_that_refuses_is_heard():
    def refuse(memory: np.ndarray) -> None:
        raise CardError("no more")

    store = ExpertStore(FakeCard(refuse), RECORDS, EXPERTS)
    store.fill(0)
    with pytest.raises(CardError, match="no more"):
        store.wait()
    with pytest.raises(CardError, match="no more"):
        store.fill(1)  # the rest need not be read for nothing
    store.close()


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 1])
def test_the_first_contents_are_those_that_were_learned(share: float):
    card = FakeCard()
    store = new_store(card)
    frequency = np.arange(LAYERS * EXPERTS, dtype=np.float32)
    cache = ExpertCache(card, store, frequency)
    cache.allocate(int(share * TOTAL * 2), slack=1)
    cache.fill(np.argsort(-frequency))
    addresses = cache.table.tensor.numpy()
    assert_whole(store, addresses)
    held = (addresses != store.addresses).reshape(-1)
    assert np.array_equal(held, cache.residency.held)
    assert held.any() == (share > 0) and held.all() == (share >= 0.5)
    for size in cache.residency.classes:
        of_class = cache.residency.size == size
        assert not np.diff(held[of_class].astype(int)).min() < 0, "the most used are held"


@settings(max_examples=60)
@given(st.data())
def test_no_window_reads_a_slot_that_is_written(data: st.DataObject):
    card = FakeCard()
    store = new_store(card)
    cache = ExpertCache(card, store)
    cache.allocate(data.draw(st.integers(0, TOTAL)), slack=data.draw(st.integers(1, 3)))
    cache.fill(range(LAYERS * EXPERTS))
    running = []  # (the table as the window sees it, its ticket)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["launch", "finish", "land"])):
            case "launch":
                cache.refresh()
                cache.launched()
                running.append((cache.table.tensor.numpy().copy(), card.marks[-1]))
                cache.adapt(rng.poisson(0.5, LAYERS * EXPERTS), data.draw(st.integers(0, 4)))
            case "finish" if running:
                running.pop(0)[1].landed = True
            case "land":
                card.land(1)
        running = [(table, ticket) for table, ticket in running if not ticket.landed]
        for table, _ in running:
            assert_whole(store, table)
    assert cache.hits + cache.misses >= 0
    card.synchronize()
    cache.refresh()
    assert_whole(store, cache.table.tensor.numpy())


def test_what_is_used_comes_to_be_held():
    card = FakeCard()
    store = new_store(card)
    cache = ExpertCache(card, store)
    cache.allocate(TOTAL // 3, slack=1)
    cache.fill(range(LAYERS * EXPERTS))
    wanted = np.zeros(LAYERS * EXPERTS, int)
    wanted[[7, 15, 23]] = 1
    for _ in range(30):
        cache.refresh()
        cache.launched()
        cache.adapt(wanted, at_most=2)
        card.synchronize()
    assert cache.residency.held[[7, 15, 23]].all()
    assert cache.hits > cache.misses > 0


def test_slots_can_be_given_out_anew():
    card = FakeCard()
    store = new_store(card)
    cache = ExpertCache(card, store)
    for budget in (TOTAL, TOTAL // 4, 0, TOTAL // 2):
        cache.allocate(budget, slack=1)
        cache.fill(range(LAYERS * EXPERTS))
        addresses = cache.table.tensor.numpy()
        assert_whole(store, addresses)
        first, end = cache.slots.tolist()
        inside = (addresses >= first) & (addresses < end)
        assert np.array_equal(inside.reshape(-1), cache.residency.held)
        assert end - first == cache.num_bytes <= budget


def test_a_prompt_is_learned_from_and_not_counted():
    cache = ExpertCache(card := FakeCard(), new_store(card))
    cache.allocate(TOTAL // 2, slack=1)
    cache.fill(range(LAYERS * EXPERTS))
    uses = np.ones(LAYERS * EXPERTS)
    cache.settle(uses, at_most=0, tokens=1)
    assert cache.hits == cache.misses == 0 and (cache.policy.frequency == 1).all()
    cache.adapt(uses, at_most=0)
    assert (cache.hits, cache.misses) == (cache.residency.held.sum(), (~cache.residency.held).sum())


def test_an_answer_finds_what_its_prompt_has_used():
    cache = ExpertCache(card := FakeCard(), store := new_store(card))
    cache.allocate(TOTAL // 2, slack=1)
    cache.fill(range(LAYERS * EXPERTS))
    cache.refresh()
    cache.launched()  # the prompt's chunk, which is done when its uses are known
    card.synchronize()
    used = np.zeros(LAYERS * EXPERTS)
    used[~cache.residency.held] = 1
    size = next(size for size in cache.residency.classes if (used[cache.residency.size == size] > 0).any())
    of_class = cache.residency.size == size
    used[~of_class] = 0
    held = int((cache.residency.held & of_class).sum())
    cache.settle(used, at_most=1, tokens=1)
    assert len(card.copies) == 1, "what the answer's windows need not wait for"
    card.synchronize()
    cache.settle(used, at_most=2, tokens=1)
    card.synchronize()
    cache.refresh()
    assert (cache.residency.held & (used > 0)).sum() == min(3, held), "no more than there is time for"
    cache.settle(used, at_most=10**6, tokens=1)
    card.synchronize()
    cache.refresh()
    assert (cache.residency.held & (used > 0)).sum() == min(held, (used > 0).sum()), "in several rounds"
    assert_whole(store, cache.table.tensor.numpy())
    inside = cache.table.tensor.numpy() != store.addresses
    assert np.array_equal(inside.reshape(-1), cache.residency.held), "and windows are told"
