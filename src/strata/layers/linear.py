"""Products with a weight matrix: the one place where an activation meets a weight."""

import torch

from strata.layers.weights import Weights


class Linear:
    """`y = x @ W.T` for the matrix `name` of shape `[num_out, num_in]`; float32 in and out."""

    def __init__(self, weights: Weights, name: str, num_out: int, num_in: int):
        self.weights = weights
        self.name = weights.require(name, num_out, num_in)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x` float32 `[..., num_in]` -> float32 `[..., num_out]`."""
        return x @ self.weights.get(self.name).T


class Embedding:
    """Rows of a table `[num_rows, width]`, decoded one by one; the table itself stays on disk."""

    def __init__(self, weights: Weights, name: str, num_rows: int, width: int):
        self.weights = weights
        self.name = weights.require(name, num_rows, width)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """`ids` int64 `[n]` -> float32 `[n, width]`."""
        return self.weights.rows(self.name, ids)
