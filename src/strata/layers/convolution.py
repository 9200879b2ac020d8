"""Causal depthwise convolution with its weight."""

import torch

from strata.layers.weights import Weights


class CausalConvolution:
    """Depthwise convolution over the last `kernel` tokens that lie `dilation` apart.

    Args:
        weights: the checkpoint's weights.
        name: tensor `[channels, kernel]`; its last column multiplies the current token.
        channels: width.
        kernel: taps.
        dilation: distance of two taps in tokens.
    """

    def __init__(self, weights: Weights, name: str, channels: int, kernel: int, dilation: int = 1):
        self.weights = weights
        self.name = weights.require(name, channels, kernel)
        self.dilation = dilation
        self.past_shape = ((kernel - 1) * dilation, channels)

    def new_past(self) -> torch.Tensor:
        """The rows before a sequence begins: float32 zeros `[(kernel - 1) * dilation, channels]`."""
        return torch.zeros(self.past_shape)

    def __call__(self, x: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 `[n, channels]` and the rows before -> the same shape, and the rows for the next call."""
        return self.weights.ops.causal_convolution(x, self.weights.get(self.name), past, self.dilation)
