"""Product of activations with a matrix that is not quantised: the reference of docs/NUMERICS.md."""

from dataclasses import dataclass

import numpy as np

SCALE_BLOCK = 128


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """Weights as they are stored, widened to float32, which is exact.

    Args:
        weights: float32 `[num_out, num_in]`.
        scales: float32 `[num_out, ceil(num_in / 128)]`, one for 128 weights of a row (F8_E4M3), or None.
    """

    weights: np.ndarray
    scales: np.ndarray | None = None


def float_matmul(weight: FloatMatrix, x: np.ndarray) -> np.ndarray:
    """`x` float32 `[rows, num_in]` -> float32 `[rows, num_out]`, in bits what every kernel returns.

    One sum for each output, in ascending order; every product and every sum is rounded to float32.
    """
    num_out, num_in = weight.weights.shape
    columns, activations = weight.weights.T.copy(), x.T[:, :, None]
    total = np.zeros((len(x), num_out), dtype=np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, num_in, SCALE_BLOCK):
            part = total if weight.scales is None else np.zeros_like(total)
            for k in range(start, min(start + SCALE_BLOCK, num_in)):
                part = part + columns[k] * activations[k]
            total = part if weight.scales is None else total + part * weight.scales[:, start // SCALE_BLOCK]
    return total
