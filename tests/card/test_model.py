"""A whole model on a card, in Triton's interpreter: near the processor, and every row as if it were alone."""

from dataclasses import replace

import pytest
import torch

from strata.card.cache import ExpertCache
from strata.card.model import CardModel, Inputs
from strata.card.weights import CardWeights
from strata.formats.geometry import GEOMETRIES, DeltaNet
from strata.formats.mixes import find_mix
from strata.formats.synthetic import SyntheticCheckpoint
from strata.layers.planes import PlaneWeights
from strata.models import load_model
from tests.card.fakes import FakeCard

pytest.importorskip("triton")

TOKENS = [7, 17, 12, 44, 60]
_TINY = GEOMETRIES["tiny"]
# As small as it goes: the interpreter takes some milliseconds for each tile of each product.
GEOMETRY = replace(
    _TINY, layers=2, interval=2, width=128, vocab=64, heads=2, kv_heads=1, head_length=32, expert_count=4,
    used=2, ff=32, shared_ff=32, rope_dimensions=16, rope_sections=(3, 3, 2, 0), delta=DeltaNet(1, 2, state=32),
    hyper=replace(_TINY.hyper, low_rank=32, index_heads=1, index_length=32, top_k=16, ngram_rows=50,
                  ngram_heads=1, ngram_length=32),
)  # fmt: skip


def checkpoint() -> SyntheticCheckpoint:
    return SyntheticCheckpoint(GEOMETRY, find_mix(GEOMETRY, "ud-q4_k_xl"))


class Runner:
    """A model on a made-up card, and windows of it."""

    def __init__(self, share: float):
        weights = CardWeights(checkpoint(), FakeCard())
        self.model = load_model(weights)
        weights.load_experts(lambda *_: None)
        total = sum(weights.store.record_bytes) * GEOMETRY.expert_count
        cache = ExpertCache(weights.card, weights.store, int(share * 2 * total), slack=0)
        cache.fill(range(weights.store.addresses.size))
        self.on_card = CardModel(self.model, weights, cache, lanes=2, context=64)
        ids = torch.tensor(TOKENS)
        self.embedding = self.model.token_embd(ids)
        self.ngrams = self.model.ple.table(ids, self.model.ple.table.new_window())

    def window(self, lane: int, begin: int, end: int, accepted: int) -> torch.Tensor:
        """Logits of tokens `begin` to `end`; of the lane's last window `accepted` rows stand."""
        counts = torch.zeros(2, dtype=torch.int32)
        counts[lane] = accepted
        at = torch.arange(begin, end, dtype=torch.int32)
        rows = self.on_card.rows(torch.full_like(at, lane), at, counts, commit=False)
        return self.on_card.step(Inputs(self.embedding[begin:end], self.ngrams[begin:end]), rows)


@pytest.mark.slow
@torch.inference_mode()
def test_windows_are_near_the_processor_and_rejected_rows_leave_no_trace():
    reference = load_model(PlaneWeights(checkpoint()))
    want = reference.forward(TOKENS, reference.new_state(), all_logits=True)
    held, missed = Runner(1.0), Runner(0.0)
    alone = [held.window(0, 0, 1, 0), held.window(0, 1, 2, 1)]
    got = torch.cat([*alone, held.window(0, 2, 5, 1)])
    # float16 keys and values, and sums in another order, which may turn a code of the activations
    assert (got - want).abs().max() / want.abs().max() < 2e-2
    first = missed.window(1, 0, 4, 0)
    assert torch.equal(first, got[:4]), "another lane, another window, no expert in the card's memory"
    assert torch.equal(missed.window(1, 2, 5, 2), got[2:]), "two of four rows stood"
