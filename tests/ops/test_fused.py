"""The references of ops that stand for several: what they promise beside their parts."""

import torch

from strata.ops.cached_attention import attend_cached
from strata.ops.gated_delta_net import gated_delta_net
from strata.ops.rms_norm import add_rms_norm, rms_norm


def test_a_sum_and_its_norm():
    x, y, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    total, normalized = add_rms_norm(x, y, weight, 1e-5)
    assert torch.equal(total, x + y) and torch.equal(normalized, rms_norm(x + y, weight, 1e-5))


def test_a_cache_is_written_where_it_ends():
    q, k, v = torch.randn(2, 4 * 8), torch.randn(2, 2 * 8), torch.randn(2, 2 * 6)
    keys, values = torch.zeros(9, 2, 8), torch.zeros(9, 2, 6)
    angle = torch.zeros(2, 4)
    out = attend_cached(q, k, v, angle.cos(), angle.sin(), keys, values, 5, 0.3)
    assert out.shape == (2, 4 * 6)
    assert torch.equal(keys[5:7].flatten(1), k) and torch.equal(values[5:7].flatten(1), v)
    assert not keys[:5].any() and not keys[7:].any() and not values[:5].any() and not values[7:].any()


def test_a_delta_net_writes_over_its_state_only_when_told():
    tokens = (torch.randn(3, 2 * 8 + 2 * 4), torch.randn(3, 8), torch.randn(3, 2), torch.randn(3, 2))
    weights = (torch.randn(24, 4), -torch.rand(2), torch.randn(2), torch.ones(4), 1e-6)
    past, state = torch.randn(3, 24), torch.randn(2, 8, 4)
    before = state.clone()
    out, _, new = gated_delta_net(*tokens, *weights, past, state, 0, False, False)
    assert torch.equal(state, before) and not torch.equal(new, before)
    again, _, same = gated_delta_net(*tokens, *weights, past, state, 0, False, False, in_place=True)
    assert same is state and torch.equal(state, new) and torch.equal(again, out)
