"""Products with a weight matrix: the one place where an activation meets a weight."""

import torch

from strata.layers.weights import Weights


class Linear:
    """`y = x @ W.T` for the matrix `name` of shape `[num_out, num_in]`; float32 in and out.

    Where the checkpoint has a bias for it (`X.bias` beside `X.weight`), the bias is added.
    """

    def __init__(self, weights: Weights, name: str, num_out: int, num_in: int):
        self.weights = weights
        self.name = weights.require_matrix(name, num_out, num_in)
        bias = name.removesuffix(".weight") + ".bias"
        self.bias = weights.require(bias, num_out) if bias in weights else None

    @property
    def matrix(self):
        """What `weights.ops` multiplies with."""
        return self.weights.matrix(self.name)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x` float32 `[..., num_in]` -> float32 `[..., num_out]`."""
        return self._biased(self.weights.ops.matmul(x, self.matrix))

    def _biased(self, y: torch.Tensor) -> torch.Tensor:
        return y if self.bias is None else y + self.weights.get(self.bias)


def apply_all(x: torch.Tensor, *linears: Linear) -> list[torch.Tensor]:
    """Each of `linears` on the same rows, which are quantised once where the ops quantise."""
    products = linears[0].weights.ops.matmul_all(x, [linear.matrix for linear in linears])
    return [linear._biased(y) for linear, y in zip(linears, products, strict=True)]


class Embedding:
    """Rows of a table `[num_rows, width]`, decoded one by one; the table itself stays on disk."""

    def __init__(self, weights: Weights, name: str, num_rows: int, width: int):
        self.weights = weights
        self.name = weights.require_table(name, num_rows, width)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """`ids` int64 `[n]` -> float32 `[n, width]`."""
        return self.weights.rows(self.name, ids)
