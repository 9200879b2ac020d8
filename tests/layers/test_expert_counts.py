"""Counts of choices, against a sum over every single one."""

import pytest
import torch

from strata.layers.expert_counts import BATCH_TOKENS, HALF_LIFE_TOKENS, ExpertCounts

EXPERTS, SLOTS = 32, 4


@pytest.mark.parametrize("rows", [[1] * 700, [5], [BATCH_TOKENS], [512, 1, 1, 300, 7], [BATCH_TOKENS - 1, 1]])
def test_no_choice_is_lost_however_they_come(rows: list[int]):
    """One decode step at a time, in prompts, or both, on either side of a batch."""
    ids = torch.randint(EXPERTS, (sum(rows), SLOTS), generator=torch.Generator().manual_seed(1))
    counts = ExpertCounts(EXPERTS)
    with torch.inference_mode():  # as the engine calls it
        for part in ids.split(rows):
            counts.note(part)
    counts.settle()
    assert torch.equal(counts.total, torch.bincount(ids.flatten(), minlength=EXPERTS))
    counts.settle()
    assert counts.total.sum() == ids.numel()


def test_old_choices_weigh_less():
    counts = ExpertCounts(2)
    counts.note(torch.zeros(BATCH_TOKENS, 1, dtype=torch.int64))
    assert counts.recent.tolist() == [BATCH_TOKENS, 0]
    for _ in range(HALF_LIFE_TOKENS):
        counts.note(torch.ones(1, 1, dtype=torch.int64))
    counts.settle()
    assert counts.recent[0] == pytest.approx(BATCH_TOKENS / 2)
    assert HALF_LIFE_TOKENS / 2 < counts.recent[1] < HALF_LIFE_TOKENS
    assert counts.total.tolist() == [BATCH_TOKENS, HALF_LIFE_TOKENS]
