"""Rotary positions against transformers' own angles, and both pairings against complex numbers."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from strata.layers.rotary import RopeScaling, Rotary
from strata.ops.rotary import rotate


def test_pairs_turn_as_complex_numbers():
    x = torch.randn(5, 3, 12)
    angle = torch.rand(5, 4)
    turned = rotate(x, angle.cos(), angle.sin())
    expected = torch.complex(x[..., :4], x[..., 4:8]) * torch.exp(1j * angle)[:, None]
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag, x[..., 8:]], -1))
    turned = rotate(x, angle.cos(), angle.sin(), interleaved=True)
    expected = torch.complex(x[..., 0:8:2], x[..., 1:8:2]) * torch.exp(1j * angle)[:, None]
    torch.testing.assert_close(turned, torch.cat([torch.view_as_real(expected).flatten(-2), x[..., 8:]], -1))


def test_angles_at_long_positions():
    """Bit for bit as float32 frequencies times float32 positions, which is how transformers has them."""
    positions = torch.tensor([0, 1, 4095, 131071, 262143])
    rotary = Rotary(64, 1e7)
    inv_freq = 1.0 / (1e7 ** (torch.arange(0, 64, 2, dtype=torch.int64).float() / 64))
    cos, sin = rotary.angles(positions)
    assert torch.equal(cos, (positions.float()[:, None] * inv_freq).cos())
    assert torch.equal(sin, (positions.float()[:, None] * inv_freq).sin())


YARN: dict[str, dict[str, Any]] = {
    "plain": {"factor": 4.0},
    "large": {"factor": 40.0, "beta_fast": 20.0, "beta_slow": 2.0},
}


@pytest.mark.parametrize("case", YARN)
def test_yarn_agrees_with_transformers(case: str):
    fields = YARN[case]
    parameters = {"rope_type": "yarn", "rope_theta": 1e6, "original_max_position_embeddings": 2048, **fields}
    config = LlamaConfig(head_dim=128, rope_parameters=parameters)
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    scaling = RopeScaling(type="yarn", original_context_length=2048, **fields)
    rotary = Rotary(128, 1e6, scaling=scaling)
    torch.testing.assert_close(rotary.inv_freq, inv_freq, rtol=1e-6, atol=0)
    assert rotary.attention_factor == pytest.approx(attention_factor)
