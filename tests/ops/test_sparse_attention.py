"""Block selection and attention over gathered keys, against their definitions."""

import pytest
import torch

from strata.ops import block_selection, gathered_attention
from strata.ops.attention import attend
from strata.ops.block_selection import select_blocks
from strata.ops.gathered_attention import attend_gathered


def test_only_complete_blocks_compete():
    q = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]])
    keys = torch.tensor([[-1.0, 3.0], [2.0, 0.0], [-2.0, 1.0], [3.0, 5.0], [1.0, -1.0], [9.0, 0.0]])
    chosen = select_blocks(q, keys, torch.tensor([5, 5]), 2)
    # query 0 scores 0 2 0 3 1 and must not see block 5; query 1 scores 1 0 2 0 0
    assert chosen.tolist() == [[1, 3], [0, 2]]


def test_ties_fall_as_in_transformers_whatever_the_batch():
    generator = torch.Generator().manual_seed(2)
    q, keys = torch.randn(30, 2, 8, generator=generator), torch.randn(60, 8, generator=generator)
    num_complete = torch.arange(30) + 31
    batch = select_blocks(q, keys, num_complete, 30)
    num_ties = 0
    for row, count in enumerate(num_complete.tolist()):
        scores = (q[row] @ keys[:count].T).relu().sum(0)
        num_ties += int((scores > 0).sum()) < 30
        assert batch[row].tolist() == sorted(scores.topk(30, dim=0).indices.tolist())
        assert torch.equal(
            select_blocks(q[row : row + 1], keys, num_complete[row : row + 1], 30)[0], batch[row]
        )
    assert num_ties > 5  # a zero score is chosen only where zeros tie


def test_score_is_the_sum_of_rectified_products(monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(0)
    q, keys = torch.randn(9, 3, 8, generator=generator), torch.randn(40, 8, generator=generator)
    num_complete = torch.arange(9) * 4 + 8
    whole = select_blocks(q, keys, num_complete, 8)
    for row, chosen in enumerate(whole.tolist()):
        scores = [
            sum(max(0.0, float(head @ keys[block])) for head in q[row])
            for block in range(int(num_complete[row]))
        ]
        assert chosen == sorted(sorted(range(len(scores)), key=lambda block: -scores[block])[:8])
    monkeypatch.setattr(block_selection, "_MAX_SCORES", 3 * 40 * 2)  # two queries at a time
    assert torch.equal(select_blocks(q, keys, num_complete, 8), whole)


@pytest.mark.parametrize("limit", [1, 1 << 23])
def test_gathered_attention_is_masked_attention(limit: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gathered_attention, "_MAX_GATHERED", limit)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(5, 4, 8, generator=generator)
    k, v = torch.randn(20, 2, 8, generator=generator), torch.randn(20, 2, 6, generator=generator)
    positions = torch.stack([torch.randperm(16, generator=generator)[:7] for _ in range(5)])
    visible = torch.rand(5, 7, generator=generator) < 0.7
    visible[:, 0] = True
    mask = torch.zeros(5, 20, dtype=torch.bool)
    for row in range(5):
        mask[row, positions[row][visible[row]]] = True
    out = attend_gathered(q, k, v, 0.3, positions, visible)
    torch.testing.assert_close(out, attend(q, k, v, 0.3, mask=mask))
