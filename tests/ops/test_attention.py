"""Attention against its formula, at every shape that takes another path."""

import pytest
import torch

from strata.layers.attention import KVState
from strata.ops import attention
from strata.ops.attention import attend


def reference(q, k, v, scale, allowed):
    group = q.shape[1] // k.shape[1]
    scores = scale * torch.einsum("nhd,thd->hnt", q, k.repeat_interleave(group, 1))
    shares = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    return torch.einsum("hnt,thd->nhd", shares, v.repeat_interleave(group, 1))


def random(num_queries: int, length: int, num_heads: int = 6, num_kv_heads: int = 2):
    generator = torch.Generator().manual_seed(num_queries * 1000 + length)
    q = torch.randn(num_queries, num_heads, 8, generator=generator)
    k = torch.randn(length, num_kv_heads, 8, generator=generator)
    v = torch.randn(length, num_kv_heads, 5, generator=generator)
    return q, k, v


@pytest.mark.parametrize(("num_queries", "length"), [(1, 1), (1, 9), (9, 9), (5, 12), (64, 130)])
@pytest.mark.parametrize("window", [None, 1, 4, 200])
@pytest.mark.parametrize("max_mask", [1 << 24, 500])
def test_agrees_with_the_formula(num_queries, length, window, max_mask, monkeypatch):
    monkeypatch.setattr(attention, "_MAX_MASK", max_mask)  # 500: several blocks of queries
    q, k, v = random(num_queries, length)
    distance = torch.arange(length - num_queries, length)[:, None] - torch.arange(length)
    allowed = (distance >= 0) & (distance < (window or length))
    ours = attend(q, k, v, 0.3, window)
    torch.testing.assert_close(ours, reference(q, k, v, 0.3, allowed), rtol=1e-5, atol=1e-5)


def test_a_mask_narrows_what_is_seen():
    q, k, v = random(7, 11)
    mask = torch.rand(7, 11, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[:, 0] = True
    allowed = mask & torch.ones(7, 11, dtype=torch.bool).tril(4)
    ours = attend(q, k, v, 0.3, mask=mask)
    torch.testing.assert_close(ours, reference(q, k, v, 0.3, allowed), rtol=1e-5, atol=1e-5)


def test_key_value_state_grows_and_is_cut():
    state = KVState(2, 4, 3)
    k, v = torch.randn(300, 2, 4), torch.randn(300, 2, 3)
    for begin, end in ((0, 1), (1, 64), (64, 200), (200, 300)):
        seen = state.append(k[begin:end], v[begin:end])
    assert torch.equal(seen[0], k) and torch.equal(seen[1], v)
    state.load(state.save(), 150)
    seen = state.append(k[:2], v[:2])
    assert torch.equal(seen[0], torch.cat([k[:150], k[:2]])) and seen[1].shape == (152, 2, 3)
    assert 300 * 14 * 4 <= state.num_bytes() <= 450 * 14 * 4
