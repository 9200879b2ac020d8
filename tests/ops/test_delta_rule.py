"""The chunked delta rule is the recurrence, and chunks lie at absolute positions."""

import itertools

import pytest
import torch

from strata.ops.delta_rule import CHUNK, delta_rule, delta_rule_chunk, delta_rule_recurrent

HEADS, KEY, VALUE = 3, 16, 8


def inputs(num_tokens: int, decay: float = 1.0) -> tuple[torch.Tensor, ...]:
    """Normalised keys and queries, decays up to `exp(-decay)` and beyond, any write strength."""
    generator = torch.Generator().manual_seed(num_tokens)
    q, k = torch.randn(2, num_tokens, HEADS, KEY, generator=generator)
    v = torch.randn(num_tokens, HEADS, VALUE, generator=generator)
    log_decay = -decay * torch.rand(num_tokens, HEADS, generator=generator)
    beta = torch.rand(num_tokens, HEADS, generator=generator)
    unit = torch.nn.functional.normalize
    return unit(q, dim=-1), unit(k, dim=-1), v, log_decay, beta


def random_state() -> torch.Tensor:
    return torch.randn(HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(7))


def by_definition(q, k, v, log_decay, beta, state):
    """The three equations, head by head, in float64."""
    out = torch.empty(v.shape, dtype=torch.float64)
    state = state.double().clone()
    for t, h in itertools.product(range(len(q)), range(HEADS)):
        s = state[h] * log_decay[t, h].double().exp()
        s = s + torch.outer(
            k[t, h].double(), beta[t, h].double() * (v[t, h].double() - s.T @ k[t, h].double())
        )
        state[h] = s
        out[t, h] = s.T @ q[t, h].double()
    return out, state


@pytest.mark.parametrize("rule", [delta_rule_recurrent, delta_rule_chunk])
@pytest.mark.parametrize("decay", [0.0, 1.0, 30.0])
def test_both_forms_are_the_definition(rule, decay: float):
    """Decays of 30 per token underflow to zero over a chunk, and must not give NaN on the way."""
    tokens = inputs(CHUNK, decay)
    out, state = rule(*tokens, random_state())
    expected_out, expected_state = by_definition(*tokens, random_state())
    torch.testing.assert_close(out.double(), expected_out, rtol=0, atol=2e-5)
    torch.testing.assert_close(state.double(), expected_state, rtol=0, atol=2e-5)


@pytest.mark.parametrize("position", [0, 1, 63, 64, 100])
@pytest.mark.parametrize("num_tokens", [1, 27, 64, 65, 130, 200])
def test_any_start(position: int, num_tokens: int):
    tokens = inputs(num_tokens)
    before = random_state()
    out, state = delta_rule(*tokens, before, position)
    expected_out, expected_state = delta_rule_recurrent(*tokens, random_state())
    torch.testing.assert_close(out, expected_out, rtol=0, atol=2e-5)
    torch.testing.assert_close(state, expected_state, rtol=0, atol=2e-5)
    assert torch.equal(before, random_state())  # the state handed in may be a checkpoint


def test_cuts_at_chunk_boundaries_change_no_bit():
    tokens = inputs(200)
    out, state = delta_rule(*tokens, random_state(), 0)
    pieces, piece_state = [], random_state()
    for begin, end in [(0, 64), (64, 192), (192, 195), (195, 200)]:
        piece, piece_state = delta_rule(*(x[begin:end] for x in tokens), piece_state, begin)
        pieces.append(piece)
    assert torch.equal(torch.cat(pieces), out)
    assert torch.equal(piece_state, state)
