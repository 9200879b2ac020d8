"""Normalisation layers."""

import torch

from strata.layers.weights import Weights


class RMSNorm:
    """RMS normalisation with the weight vector `name` of `width` values.

    GGUF stores the factor itself: where a checkpoint is zero-centred (`1 + w`), the 1 is already added.
    """

    def __init__(self, weights: Weights, name: str, width: int, epsilon: float):
        self.weights = weights
        self.name = weights.require(name, width)
        self.epsilon = epsilon

    @property
    def weight(self) -> torch.Tensor:
        """float32 `[width]`."""
        return self.weights.get(self.name)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 `[..., width]` -> the same shape."""
        return self.weights.ops.rms_norm(x, self.weight, self.epsilon)
