"""The native delta net against torch's; a token's bits wherever a prompt is cut."""

import pytest
import torch

from strata.native import ops
from strata.ops.convolution import causal_convolution
from strata.ops.delta_rule import delta_rule, delta_rule_recurrent
from strata.ops.gated_delta_net import gated_delta_net

KEY_HEADS, HEADS, KERNEL, EPSILON = 2, 6, 4, 1e-6
CUTS = [(0, 1), (1, 2), (2, 64), (64, 66), (66, 130)]
N = CUTS[-1][1]


def randoms(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("kernel", "dilation"), [(4, 1), (4, 3), (3, 2), (1, 1)])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_convolution_is_torch_in_bits(kernel: int, dilation: int, n: int, isa, threads):
    channels = 1100  # two blocks and a bit
    wide, weight, past = randoms((n, channels + 8), (channels, kernel), ((kernel - 1) * dilation, channels))
    x = wide[:, 8:]
    got, want = (
        ops.causal_convolution(x, weight, past, dilation),
        causal_convolution(x, weight, past, dilation),
    )
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def rule_inputs(n: int, key_dim: int, value_dim: int, decay: float) -> tuple[torch.Tensor, ...]:
    q, k, v, state = randoms((n, 3, key_dim), (n, 3, key_dim), (n, 3, value_dim), (3, key_dim, value_dim))
    log_decay, beta = randoms((n, 3), (n, 3), seed=1)
    unit = torch.nn.functional.normalize
    return unit(q, dim=-1), unit(k, dim=-1), v, -decay * log_decay.abs(), beta.sigmoid(), state


@pytest.mark.parametrize(("key_dim", "value_dim"), [(128, 128), (16, 8), (5, 37), (256, 16)])
@pytest.mark.parametrize("decay", [0.0, 1.0, 60.0])
def test_delta_rule_is_the_recurrence(key_dim: int, value_dim: int, decay: float, isa, threads):
    *inputs, state = rule_inputs(20, key_dim, value_dim, decay)
    before = state.clone()
    got, want = ops.delta_rule(*inputs, state, 7), delta_rule_recurrent(*inputs, state)
    close(got[0], want[0])
    close(got[1], want[1])
    assert torch.equal(state, before)  # it may be a checkpoint


def test_delta_rule_agrees_with_chunks():
    *inputs, state = rule_inputs(200, 64, 64, 0.1)
    for got, want in zip(ops.delta_rule(*inputs, state, 0), delta_rule(*inputs, state, 0), strict=True):
        close(got, want)


def test_delta_rule_may_be_cut_anywhere(isa, threads):
    *inputs, state = rule_inputs(N, 32, 24, 0.1)
    whole, last = ops.delta_rule(*inputs, state, 0)
    for begin, end in CUTS:
        out, state = ops.delta_rule(*(x[begin:end] for x in inputs), state, begin)
        assert torch.equal(out, whole[begin:end])
    assert torch.equal(state, last)


def net_inputs(key_dim: int, value_dim: int):
    """Projections of N tokens; weights; past and state."""
    channels = 2 * KEY_HEADS * key_dim + HEADS * value_dim
    tokens = randoms((N, channels), (N, HEADS * value_dim), (N, HEADS), (N, HEADS))
    conv, a, dt, norm = randoms((channels, KERNEL), (HEADS,), (HEADS,), (value_dim,), seed=1)
    past, state = randoms((KERNEL - 1, channels), (HEADS, key_dim, value_dim), seed=2)
    return tokens, (conv, -a.abs(), dt * 10, norm, EPSILON), past, state


@pytest.mark.parametrize(("key_dim", "value_dim"), [(32, 32), (12, 20)])
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("sigmoid_gate", [False, True])
def test_one_step_is_its_parts_and_may_be_cut_anywhere(key_dim, value_dim, tiled, sigmoid_gate, isa, threads):
    tokens, weights, past, state = net_inputs(key_dim, value_dim)
    want = gated_delta_net(*tokens, *weights, past, state, 0, tiled, sigmoid_gate)
    whole, last_past, last_state = ops.gated_delta_net(*tokens, *weights, past, state, 0, tiled, sigmoid_gate)
    close(whole, want[0])
    assert torch.equal(last_past, want[1])
    close(last_state, want[2])
    for begin, end in CUTS:
        part = [x[begin:end] for x in tokens]
        out, past, state = ops.gated_delta_net(*part, *weights, past, state, begin, tiled, sigmoid_gate)
        assert torch.equal(out, whole[begin:end])
    assert torch.equal(past, last_past) and torch.equal(state, last_state)


def test_a_state_may_be_written_over(threads):
    tokens, weights, past, state = net_inputs(32, 32)
    want = ops.gated_delta_net(*tokens, *weights, past, state, 0, True, False)
    got = ops.gated_delta_net(*tokens, *weights, past, state, 0, True, False, in_place=True)
    assert got[2] is state
    assert torch.equal(state, want[2]) and torch.equal(got[0], want[0])


def test_what_does_not_fit_is_refused():
    (qkv, z, beta, alpha), weights, past, state = net_inputs(32, 32)
    with pytest.raises(ValueError, match="does not hold the heads"):
        ops.gated_delta_net(
            qkv[:, :-8], z, beta, alpha, weights[0][:-8], *weights[1:], past[:, :-8], state, 0, True, True
        )
    with pytest.raises(ValueError, match=r"z has shape \[129, 192\], expected \[130, 192\]"):
        ops.gated_delta_net(qkv, z[1:], beta, alpha, *weights, past, state, 0, True, True)
    with pytest.raises(TypeError, match="state must be"):
        ops.gated_delta_net(qkv, z, beta, alpha, *weights, past, state.double(), 0, True, True)
    with pytest.raises(ValueError, match="past has shape"):
        ops.causal_convolution(qkv, weights[0], past[1:])
    *inputs, state = rule_inputs(4, 8, 8, 0.1)
    with pytest.raises(ValueError, match="state must be contiguous"):
        ops.delta_rule(*inputs, torch.randn(3, 8, 16)[..., 8:], 0)
