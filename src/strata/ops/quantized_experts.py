"""Feed-forward experts with quantised matrices: the reference of docs/NUMERICS.md."""

from dataclasses import dataclass

import numpy as np

from strata.formats.quants.integer import IntegerMatrix
from strata.ops.float_matmul import FloatMatrix, float_matmul
from strata.ops.quantized_matmul import quantized_matmul

_F = np.float32
# Cephes' expf: exp(r) = 1 + r + r^2 * P(r) for |r| <= ln(2) / 2, highest power first.
_EXP = tuple(
    _F(c)
    for c in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)
_LN2_HIGH, _LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)
_ROUND = _F(12582912)  # 1.5 * 2^23: adding it leaves an integer in the low bits


def exponential(x: np.ndarray) -> np.ndarray:
    """exp(x) of float32 in multiplications and additions, below 2 ulp off; beyond -87 and 88 as there."""
    x = np.where(x > _F(88), _F(88), np.where(x < _F(-87), _F(-87), x))
    shifted = x * _F(1.44269504) + _ROUND
    n = shifted - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = _EXP[0]
    for c in _EXP[1:]:
        p = p * r + c
    y = (p * (r * r) + r) + _F(1)
    exponent = (shifted.view(np.uint32) - np.uint32(0x4B400000 - 127)) << np.uint32(23)
    return y * exponent.view(np.float32)


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """`silu(gate) * up`, float32, in the contract's order."""
    return gate / (_F(1) + exponential(-gate)) * up


def _matmul(weight: IntegerMatrix | FloatMatrix, x: np.ndarray) -> np.ndarray:
    return float_matmul(weight, x) if isinstance(weight, FloatMatrix) else quantized_matmul(weight, x)


@dataclass(frozen=True, slots=True)
class Expert:
    """One expert: gate and up `[ff, width]`, down `[width, ff]`, and factors of their products."""

    gate: IntegerMatrix | FloatMatrix
    up: IntegerMatrix | FloatMatrix
    down: IntegerMatrix | FloatMatrix
    factors: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """float32 `[rows, width]` -> float32 `[rows, width]`."""
        gate, up, down = (_F(factor) for factor in self.factors)
        hidden = swiglu(_matmul(self.gate, x) * gate, _matmul(self.up, x) * up)
        return _matmul(self.down, hidden) * down


def quantized_experts(
    experts: list[Expert], x: np.ndarray, ids: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Sum over slots, ascending, of `weights[row, slot] * experts[ids[row, slot]](x[row])`.

    Args:
        experts: of one layer.
        x: float32 `[rows, width]`.
        ids: integers `[rows, slots]`.
        weights: float32 `[rows, slots]`.
    """
    out = np.zeros_like(x)
    for slot in range(ids.shape[1]):
        for expert in np.unique(ids[:, slot]):
            rows = ids[:, slot] == expert
            out[rows] = out[rows] + weights[rows, slot, None] * experts[expert](x[rows])
    return out
