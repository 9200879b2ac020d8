"""The processor's share of a prompt's experts: a sensible choice, complete lists, and the same bits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from strata.card.cache import ExpertCache
from strata.card.feed_forward import card_feed_forward
from strata.card.host_experts import HostExperts
from strata.card.model import CardModel
from strata.card.products import Activations
from strata.card.prompt_share import PromptJob, PromptShare
from strata.card.prompts import Processor, PromptReader
from strata.card.weights import CardWeights
from strata.experts.split import Costs, split
from strata.models import load_model
from strata.ops.triton.float_matmul import WINDOW_ROWS
from tests.card.fakes import FakeCard
from tests.card.test_architectures import QWEN3_MOE
from tests.helpers.tiny_models import TinyCheckpoint
from tests.helpers.triton_interpreter import repair_bfloat16

repair_bfloat16()

EXPERTS, SLOTS = 12, 3


def check_lists(job: PromptJob, ids: torch.Tensor, weights: torch.Tensor) -> set[int]:
    """Each entry is in the lists or computed by the card, and an expert is one's or the other's; returns the
    processor's."""
    count = int(job.num_entries)
    taken = job.host_entry >= 0
    assert sorted(job.host_entry[taken].tolist()) == list(range(count))
    for row, slot in taken.nonzero().tolist():
        place = int(job.host_entry[row, slot])
        found = (job.experts[place], job.rows[place], job.weights[place])
        assert found == (ids[row, slot], row, weights[row, slot])
    experts = set(job.experts[:count].tolist())
    assert not experts & set(ids[~taken].tolist())
    return experts


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 9999),
    rows=st.integers(1, 40),
    held=st.integers(0, EXPERTS),
    share=st.sampled_from([None, None, 0.0, 0.5, 1.0]),
    max_entries=st.sampled_from([4, 30, 200]),
    cpu=st.floats(0.1, 10),
    busy=st.sampled_from([0.0, 3.0, 40.0]),
)
def test_it_is_split_as_a_windows_misses_are(seed, rows, held, share, max_entries, cpu, busy):
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.standard_normal((rows, EXPERTS)) + np.linspace(0, 3, EXPERTS))[:, :SLOTS]
    ids = torch.from_numpy(ids.astype(np.int32))
    ids[rng.integers(rows)] = -1
    weights = torch.from_numpy(rng.random((rows, SLOTS), np.float32))
    home = torch.arange(2 * EXPERTS).view(2, EXPERTS) + 100
    addresses = home[1].clone()
    addresses[rng.permutation(EXPERTS)[:held]] += 1000
    cpu *= 1.0123456789  # else two numbers of experts could end at times that only rounding tells apart
    costs = Costs(handshake=0.2, cpu=cpu, cpu_row=0.3 * cpu, link=1.0, host=0.3)
    divided = PromptShare(home, costs, share, [0, EXPERTS - held], [0.0, busy])
    experts = check_lists(divided.choose(1, ids, weights, addresses, max_entries), ids, weights)
    used = np.bincount(ids[ids >= 0].numpy(), minlength=EXPERTS)
    missed = np.flatnonzero((used > 0) & (addresses == home[1]).numpy())
    assert experts <= set(missed.tolist())
    if used[missed].sum() > max_entries:
        assert used[sorted(experts)].sum() <= max_entries
    elif share is None:
        assert experts == set(missed[split(used[missed], replace(costs, card=busy))].tolist())
    else:
        assert len(experts) == round(share * len(missed))


@torch.inference_mode()
def compute(share: float | None, held: float, host: bool) -> tuple[torch.Tensor, int]:
    """A layer of 18 rows, and how many jobs the processor was given."""
    formats = dict.fromkeys(("experts", "experts_down"), "Q8_0")
    weights = CardWeights(TinyCheckpoint(QWEN3_MOE, formats), FakeCard())
    model = load_model(weights)
    layers = weights.load_experts(len(model.expert_layers()), lambda done, total: None)
    cache = ExpertCache(weights.card, weights.store)
    cache.allocate(int(held * cache.residency.size.sum()), slack=0)
    cache.fill(range(len(cache.residency.size)))
    width, used = model.config.embedding_length, model.config.expert_used_count
    pool = HostExperts(weights.card, layers, width, WINDOW_ROWS, used, 2) if host else None
    on_card = CardModel(model, weights, cache, 1, 64, host=pool)
    processor = Processor(Costs(0.0, 1.0, 0.1, 1.0, 0.5), 1.0, share) if host else None
    divided = PromptReader(on_card, cache, 0, 64, 1e9, processor)._share(None)
    lane, accepted = torch.zeros(18, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    rows = on_card.rows(lane, torch.arange(18, dtype=torch.int32), accepted, True, share=divided)
    x = torch.randn(18, width, generator=torch.Generator().manual_seed(0))
    y = card_feed_forward(next(iter(model.expert_layers().values())), on_card.memory)(Activations(x), rows)
    jobs = 0
    if pool is not None:
        HostExperts.check(int(pool.error))
        jobs = int(pool._epochs.sum())
        pool.close()
    return y, jobs


def test_the_bits_are_the_same_whoever_computes():
    want, _ = compute(None, 1.0, host=False)
    for share, held in ((None, 0.0), (1.0, 0.5), (1.0, 1.0)):
        got, jobs = compute(share, held, host=True)
        assert torch.equal(got, want), f"{held} held, the processor takes {share}"
        assert jobs == (share != 0.0 and held < 1)
