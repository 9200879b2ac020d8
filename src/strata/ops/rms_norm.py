"""Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv 1910.07467)."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + epsilon) * weight` over the last dimension.

    Args:
        x: float32 `[..., width]`.
        weight: float32 `[width]`, or any shape that broadcasts against `x`.
        epsilon: added to the mean square.
    """
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight
