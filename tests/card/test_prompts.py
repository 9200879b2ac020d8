"""While experts stream and are exchanged, an address must lead to the expert's own bytes, in every layer."""

from collections.abc import Callable
from itertools import pairwise
from math import inf
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from strata.card import runner as runner_module
from strata.card.cache import ExpertCache
from strata.card.pace import Pace
from strata.card.prompts import PromptReader, _run_bounds
from strata.card.runner import CardRunner
from strata.card.store import ExpertStore
from strata.prompt_memory import SHORT
from tests.card.fakes import StreamCard, read

EXPERTS = 6
PART_ROWS = 2048
RECORDS = [512, 768, 512, 768, 256]  # bytes, by layers with experts
BLOCKS = [None, 0, 1, 2, None, 3, 4]  # the layer with experts that a block is
TOTAL = EXPERTS * sum(RECORDS)


def new_cache(card: StreamCard, budget: int) -> ExpertCache:
    store = ExpertStore(card, RECORDS, EXPERTS)
    rng = np.random.default_rng(0)
    for layer in range(len(RECORDS)):
        store.records(layer)[:] = rng.integers(0, 200, store.records(layer).shape)
        store.fill(layer)
    store.wait()
    cache = ExpertCache(card, store)
    cache.allocate(budget, slack=1)
    cache.fill(range(len(RECORDS) * EXPERTS))
    return cache


class BytesModel:
    """Blocks that look at the bytes of all their experts, when the card comes to it."""

    def __init__(self, cache: ExpertCache):
        card = cache.card
        self.weights = SimpleNamespace(card=card, store=cache.store)
        self.model = SimpleNamespace(config=SimpleNamespace(vocab_size=8, embedding_length=2), ple=None)
        self.host, self.lanes, self.context = None, 2, 10_000
        self.memory = SimpleNamespace(workspace=SimpleNamespace(make_room=lambda num_bytes: None))
        self.addresses, self.num_layers = cache.table.tensor, len(BLOCKS)
        self.counts = torch.zeros(self.addresses.shape, dtype=torch.int32)
        self.calls: list[tuple[int, int, int, list[int]]] = []  # layer, first position, rows, accepted
        self._card, self._store = card, cache.store

    def experts_of(self, layer: int) -> int | None:
        return BLOCKS[layer]

    def rows(
        self, lane, position, accepted, commit, addresses=None, share=None, gate=lambda key: None
    ) -> SimpleNamespace:
        addresses = self.addresses if addresses is None else addresses
        return SimpleNamespace(position=position, accepted=accepted, addresses=addresses, gate=gate)

    def inputs(self, tokens: torch.Tensor, ngrams: None) -> SimpleNamespace:
        return SimpleNamespace(embedding=tokens, ngrams=ngrams)

    def embed(self, inputs) -> SimpleNamespace:
        return SimpleNamespace(last=lambda: None)

    def block(self, layer: int, stream, ngrams, rows) -> SimpleNamespace:
        self.calls.append((layer, int(rows.position[0]), len(rows.position), rows.accepted.tolist()))
        if (key := BLOCKS[layer]) is not None:
            rows.gate(key)
            self._card.launch(lambda: self.look(key, rows.addresses))
        return stream

    def look(self, key: int, addresses: torch.Tensor) -> None:
        for expert, want in enumerate(self._store.records(key)):
            found = read(int(addresses[key, expert]), len(want))
            assert np.array_equal(found, want), f"expert {expert} of layer {key} was read, and others' bytes"

    def logits(self, stream) -> torch.Tensor:
        return torch.zeros(1, 8)

    def state_of(self, layer: int, lane: int) -> list[torch.Tensor]:
        return [torch.tensor([len(self.calls)])]


def read_prompt(reader: PromptReader, rows: int, first: int = 0, keep: int | None = None):
    return reader.read(0, first, torch.zeros(rows, 2), None, torch.tensor([3, 0]), keep)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 999),
    eagerness=st.sampled_from([0.0, 0.3, 1.0]),
    budget=st.integers(0, TOTAL),
    ring=st.integers(0, 2 * EXPERTS * 768 + 600),
    rows=st.sampled_from([20, SHORT, SHORT + 1, PART_ROWS + 5]),
    link=st.sampled_from([1e7, 1e9, 1e12]),
)
def test_every_layer_finds_its_experts(
    seed: int, eagerness: float, budget: int, ring: int, rows: int, link: float
):
    card = StreamCard(Random(seed), eagerness)
    cache = new_cache(card, budget)
    reader = PromptReader(BytesModel(cache), cache, ring, PART_ROWS, link)
    assert reader.ring_bytes <= ring
    for _ in range(2):
        read_prompt(reader, rows)
        card.wait()


def test_pending_rows_stand_once_and_a_state_is_kept_where_it_is_asked_for():
    card = StreamCard(Random(0), 0.5)
    cache = new_cache(card, TOTAL // 2)
    model = BytesModel(cache)
    rows, first, keep = PART_ROWS + 900, 300, 1024
    _, saved = read_prompt(PromptReader(model, cache, 4096, PART_ROWS, 1e9), rows, first, keep)
    cuts = [300, 1024, 300 + PART_ROWS, 300 + rows]
    for layer in range(len(BLOCKS)):
        of_layer = [call[1:] for call in model.calls if call[0] == layer]
        accepted = [[3, 0], [0, 0], [0, 0]]
        assert of_layer == [(a, b - a, taken) for (a, b), taken in zip(pairwise(cuts), accepted, strict=True)]
    # The first part of a layer ends at `keep`; the state is the one after it and before the second part.
    assert [int(tensors[0]) for tensors in saved] == [1 + 3 * layer for layer in range(len(BLOCKS))]


@pytest.mark.parametrize("keep, parts", [(900, 1), (512, 2), (None, 1)])
def test_a_state_may_be_kept_at_the_chunks_end(keep: int | None, parts: int):
    card = StreamCard(Random(0), 0.5)
    cache = new_cache(card, 0)
    model = BytesModel(cache)
    _, saved = read_prompt(PromptReader(model, cache, 0, PART_ROWS, 1e9), 900, 0, keep)
    assert len(model.calls) == parts * len(BLOCKS)
    assert saved is None if keep is None else len(saved) == len(BLOCKS)


def test_what_the_link_has_time_for_is_copied_ahead_and_the_most_used_first():
    card = StreamCard(Random(0), 1.0)
    cache = new_cache(card, 0)
    cache.policy.frequency[:] = np.arange(len(cache.policy.frequency)) % EXPERTS
    copied, copy = [], card.copy
    card.copy = lambda pairs, after: copied.append([len(to) for to, _ in pairs]) or copy(pairs, after)
    reader = PromptReader(BytesModel(cache), cache, 2 * EXPERTS * 768, PART_ROWS, 1e9)
    read_prompt(reader, 600)  # nothing is known: all that the ring has room for
    assert sum(copied[0]) == EXPERTS * cache.store.record_bytes[0]
    card.wait()
    room = reader._pace.room(600)
    copied.clear()
    read_prompt(reader, 600)
    for layer, (run, size) in enumerate(zip(copied, cache.store.record_bytes, strict=True)):
        number = min(EXPERTS, (room if layer else room / 2) // size)
        assert number > 1
        assert run == [number * size]  # the last ones, in a row


def test_pace_leaves_out_what_was_waited_for():
    def at(seconds: float, done: bool = True):
        return SimpleNamespace(
            time=seconds, done=lambda: done, seconds_since=lambda earlier: seconds - earlier.time
        )

    pace = Pace(link=1e9)
    assert pace.room(512) == inf
    pace.read(1000, 4, at(1.0), at(2.0, done=False), [])
    assert pace.room(1000) == inf
    pace.read(1000, 4, at(1.0), at(2.0), [(at(1.1), at(1.3)), (at(1.5), at(1.5))])
    assert pace.room(1000) == pytest.approx(0.2e9)  # 0.8 s for four layers
    assert pace.room(500) == pytest.approx(0.1e9)  # of the nearest that is known
    pace.read(500, 4, at(0), at(0.6), [])
    assert pace.room(500) == pytest.approx(0.15e9)
    assert pace.room(1000) == pytest.approx(0.2e9)


def test_runs_of_numbers():
    assert _run_bounds(np.array([1, 2, 3, 5, 8, 9])).tolist() == [1, 4, 5, 6, 8, 10]
    assert _run_bounds(np.array([0])).tolist() == [0, 1]
    assert _run_bounds(np.array([], int)).tolist() == []


class LookingWindow:
    """A window that looks at the bytes of all experts."""

    def __init__(self, model: BytesModel, sampler: object, size: int):
        self._model = model
        self.counts, self.logits = torch.zeros(model.counts.shape, dtype=torch.int32), torch.zeros(size, 8)

    def capture(self) -> "LookingWindow":
        return self

    def run(self, rows: list, accepted: list[int]) -> None:
        for key in range(len(RECORDS)):
            self._model._card.launch(lambda key=key: self._model.look(key, self._model.addresses))

    def wait(self) -> list[int]:
        self._model._card.wait()
        self.counts.copy_(torch.poisson(torch.full(self.counts.shape, 0.5)))
        return [0] * len(self.logits)


class Chosen:
    """A token on the card."""

    def __init__(self, card: StreamCard):
        self._card = card

    def __int__(self) -> int:
        self._card.wait()
        return 0


def new_runner(card: StreamCard, cache: ExpertCache, patch: pytest.MonkeyPatch, **options) -> CardRunner:
    sampler = SimpleNamespace(commit=lambda accepted: None, choose_next=lambda *_: Chosen(card))
    patch.setattr(runner_module, "Window", LookingWindow)
    patch.setattr(runner_module, "CardSampler", lambda *_: sampler)
    model = BytesModel(cache)
    return CardRunner(model, cache, PromptReader(model, cache, 3000, PART_ROWS, 1e9), 1e9, **options)


def ask_prompt(runner: CardRunner, rows: int) -> None:
    runner.prompt(0, 0, [0] * rows, torch.zeros(rows, 2), None, None, None)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 999),
    eagerness=st.sampled_from([0.0, 0.5, 0.9]),
    budget=st.integers(0, TOTAL),
    steps=st.lists(st.sampled_from(["window", "prompt", "long prompt"]), max_size=15),
)
def test_exchanges_disturb_no_step(seed: int, eagerness: float, budget: int, steps: list[str]):
    torch.manual_seed(seed)
    card = StreamCard(Random(seed), eagerness)
    cache = new_cache(card, budget)
    told = []
    with pytest.MonkeyPatch.context() as patch:
        runner = new_runner(card, cache, patch, learn=lambda counts, tokens: told.append(tokens))
        lane = SimpleNamespace(lane=1)
        do: dict[str, Callable[[], object]] = {
            "window": lambda: runner.window([lane]),
            "prompt": lambda: ask_prompt(runner, 100),
            "long prompt": lambda: ask_prompt(runner, 600),
        }
        for step in steps:
            runner.model.counts.copy_(torch.poisson(torch.full(runner.model.counts.shape, 0.5)))
            do[step]()
    tokens = {"window": 1, "prompt": 100, "long prompt": 600}
    known = steps if steps[-1:] == ["long prompt"] else steps[:-1]  # else: beside the next step
    assert told == [tokens[step] for step in known]
