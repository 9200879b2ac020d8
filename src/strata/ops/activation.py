"""Activation functions; float32 of any shape, each value by itself."""

import torch
import torch.nn.functional as F


def silu(x: torch.Tensor) -> torch.Tensor:
    """`x / (1 + exp(-x))`."""
    return F.silu(x)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """`1 / (1 + exp(-x))`."""
    return x.sigmoid()


def softplus(x: torch.Tensor) -> torch.Tensor:
    """`log(1 + exp(x))`; beyond 20, `x`."""
    return F.softplus(x)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, of equal shapes (Shazeer 2020, arXiv 2002.05202)."""
    return silu(gate) * up
