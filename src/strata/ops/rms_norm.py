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


def add_rms_norm(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x + y`, and `rms_norm` of it: how a block hands the residual on to its next part."""
    total = x + y
    return total, rms_norm(total, weight, epsilon)
