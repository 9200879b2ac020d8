"""Native block selection and gathered attention against torch's, and each query as if it were alone."""

import pytest
import torch

from strata.native import ops
from strata.ops.block_selection import select_blocks
from strata.ops.gathered_attention import attend_gathered


def randoms(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("num_listed", [1, 7, 256, 300, 700])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "value_dim"), [(6, 2, 24, 20), (16, 1, 64, 64)])
def test_gathered_attention(num_listed, heads, kv_heads, dim, value_dim, isa, threads):
    n, length = 9, 800
    q, k, v = randoms((n, heads, dim), (length, kv_heads, dim), (length, kv_heads, value_dim))
    generator = torch.Generator().manual_seed(1)
    positions = torch.stack([torch.randperm(length, generator=generator)[:num_listed] for _ in range(n)])
    visible = torch.rand(n, num_listed, generator=generator) < 0.7
    visible[:, 0] = True
    got = ops.attend_gathered(q, k, v, 0.2, positions, visible)
    torch.testing.assert_close(got, attend_gathered(q, k, v, 0.2, positions, visible), rtol=1e-5, atol=1e-5)
    for i in range(n):
        one = slice(i, i + 1)
        alone = ops.attend_gathered(q[one], k, v, 0.2, positions[one], visible[one])
        assert torch.equal(alone[0], got[i])
        seen = positions[one, visible[i]]  # without the padding
        assert torch.equal(ops.attend_gathered(q[one], k, v, 0.2, seen, torch.ones_like(seen) > 0)[0], got[i])


@pytest.mark.parametrize(
    ("blocks", "budget"), [(40, 8), (600, 8), (600, 9), (600, 128), (40, 39), (700, 700)]
)
def test_selection_agrees_with_torch(blocks, budget, isa, threads):
    # small integers: scores are exact and full of ties, which must fall as torch.topk lets them
    generator = torch.Generator().manual_seed(blocks + budget)
    q = torch.randint(-1, 2, (25, 3, 16), generator=generator).float()
    keys = torch.randint(-1, 2, (blocks, 16), generator=generator).float()
    num_complete = torch.linspace(budget, blocks, 25).long()
    chosen = ops.select_blocks(q, keys, num_complete, budget)
    assert torch.equal(chosen, select_blocks(q, keys, num_complete, budget))
    alone = [ops.select_blocks(q[i : i + 1], keys, num_complete[i : i + 1], budget) for i in range(25)]
    assert torch.equal(torch.cat(alone), chosen)


def test_where_no_head_scores_the_zeros_tie_as_in_torch(isa):
    q, keys = randoms((30, 2, 8), (60, 8))
    num_complete = torch.arange(30) + 31
    want = select_blocks(q, keys, num_complete, 30)
    scores = (q @ keys.T).relu().sum(1)
    num_ties = sum(int((scores[i, :count] > 0).sum()) < 30 for i, count in enumerate(num_complete))
    assert num_ties > 5  # a zero score is chosen only where zeros tie
    assert torch.equal(ops.select_blocks(q, keys, num_complete, 30), want)


def test_what_does_not_fit_is_refused():
    q, k, v = randoms((2, 4, 8), (9, 2, 8), (9, 2, 8))
    seen = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="a row that k does not have"):
        ops.attend_gathered(q, k, v, 1.0, torch.tensor([[0, 1, 8], [0, 1, 9]]), seen)
    with pytest.raises(TypeError):
        ops.attend_gathered(q, k, v, 1.0, torch.zeros(2, 3, dtype=torch.int32), seen)
    with pytest.raises(ValueError, match="between budget and the number of blocks"):
        ops.select_blocks(q, k[:, 0], torch.tensor([9, 10]), 3)
    with pytest.raises(ValueError, match="between budget and the number of blocks"):
        ops.select_blocks(q, k[:, 0], torch.tensor([9, 2]), 3)
