"""Activations of feed-forward layers."""

import torch


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, float32 of any equal shapes (Shazeer 2020, arXiv 2002.05202)."""
    return torch.nn.functional.silu(gate) * up
