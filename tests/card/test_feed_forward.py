"""A window's missed experts: computed by the processor, fetched, or read in place."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from strata.card import model as card_model
from strata.card.cache import ExpertCache
from strata.card.feed_forward import card_feed_forward
from strata.card.host_experts import HostExperts
from strata.card.products import Activations
from strata.card.weights import CardWeights
from strata.models import load_model
from strata.ops.triton.float_matmul import WINDOW_ROWS
from tests.card.fakes import FakeCard
from tests.card.test_architectures import QWEN3_MOE
from tests.helpers import card_runs
from tests.helpers.tiny_models import TinyCheckpoint

ROWS = 3


@torch.inference_mode()
def compute(held: float, take: Sequence[int] | None, experts: str, fetched: int = 16) -> tuple:
    """A layer's output for a window, the experts fetched, and the jobs that the processor was given."""
    weights = CardWeights(
        TinyCheckpoint(QWEN3_MOE, {"experts": experts, "experts_down": experts}), FakeCard()
    )
    model = load_model(weights)
    layers = weights.load_experts(len(model.expert_layers()), lambda done, total: None)
    cache = ExpertCache(weights.card, weights.store)
    cache.allocate(int(held * cache.residency.size.sum()), slack=0)
    cache.fill(range(len(cache.residency.size)))
    width, used = model.config.embedding_length, model.config.expert_used_count
    pool = HostExperts(weights.card, layers, width, WINDOW_ROWS, used, 2) if any(take or ()) else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(card_model, "FETCHED", fetched)
        on_card = card_model.CardModel(model, weights, cache, 1, 64, host=pool, take=take)
    zeros, position = torch.zeros(ROWS, dtype=torch.int32), torch.arange(ROWS, dtype=torch.int32)
    rows = on_card.rows(zeros, position, torch.zeros(1, dtype=torch.int32), False)
    x = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(0))
    y = card_feed_forward(next(iter(model.expert_layers().values())), on_card.memory)(Activations(x), rows)
    jobs, misses = 0, on_card.memory.misses
    if pool is not None:
        HostExperts.check(int(pool.error))
        jobs = int(pool._epochs.sum())
        pool.close()
    return y, 0 if misses is None else int(misses.num_fetched), jobs


def test_the_bits_are_the_same_wherever_missed_experts_are_computed():
    want, *counts = compute(1.0, [1] * 100, "Q8_0")
    assert counts == [0, 0], "nothing is missed"
    y, *counts = compute(0.0, [0] + [1] * 99, "Q8_0")
    assert torch.equal(y, want) and counts[0] >= 2 and counts[1] == 1, "one is the processor's"
    y, *counts = compute(0.0, [0] * 100, "Q8_0", fetched=1)
    assert torch.equal(y, want) and counts == [1, 0], "one is fetched, the others are read in place"


def test_experts_of_floats_are_fetched():
    want, *_ = compute(0.0, None, "F16")
    y, *counts = compute(0.0, [0] * 100, "F16")
    assert torch.equal(y, want) and counts[0] >= 2 and counts[1] == 0


@torch.inference_mode()
@pytest.mark.parametrize("num_rows", [3, WINDOW_ROWS + 1])
def test_experts_are_not_read_before_the_gate(num_rows: int):
    checkpoint = TinyCheckpoint(QWEN3_MOE, {"experts": "Q8_0", "experts_down": "Q8_0"})
    model = card_runs.on_card(checkpoint, lanes=1)
    experts = card_feed_forward(next(iter(model.model.expert_layers().values())), model.memory)
    width = model.model.config.embedding_length
    x = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(0))
    zeros, position = torch.zeros(num_rows, dtype=torch.int32), torch.arange(num_rows, dtype=torch.int32)

    def compute(**settings) -> torch.Tensor:
        rows = model.rows(zeros, position, torch.zeros(1, dtype=torch.int32), True, **settings)
        return experts(Activations(x), rows)

    want = compute()
    nothing = np.zeros(max(model.weights.store.record_bytes), np.uint8)
    addresses = torch.full_like(model.addresses, nothing.ctypes.data // 64 * 64)
    opened = []

    def gate(key: int) -> None:
        opened.append(key)
        addresses.copy_(model.addresses)

    assert torch.equal(compute(addresses=addresses, gate=gate), want) and opened == [experts.key]
