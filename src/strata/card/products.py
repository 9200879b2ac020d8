"""Products of a step's rows with the matrices on a card."""

from collections.abc import Sequence

import torch

from strata.card.weights import CardWeights
from strata.layers.linear import Linear
from strata.ops.triton.float_matmul import float_matmul, workspace_size
from strata.ops.triton.quantize import quantize_activations
from strata.ops.triton.quantized_matmul import PlaneMatrix, quantized_matmuls
from strata.ops.triton.workspace import Workspace

Quantized = tuple[torch.Tensor, torch.Tensor]  # int8 codes [rows, width], float32 scales


def empty_quantized(x: torch.Tensor) -> Quantized:
    """Room for the codes and scales of float32 `[rows, width]`."""
    rows, width = x.shape
    codes = torch.empty(rows, width, dtype=torch.int8, device=x.device)
    return codes, torch.empty(rows, -(-width // 128), dtype=torch.float32, device=x.device)


class Activations:
    """Rows of activations, quantised once for all matrices that want them so.

    Args:
        x: float32 `[rows, width]`.
        quantized: where the kernel that made `x` has quantised it.
    """

    def __init__(self, x: torch.Tensor, quantized: Quantized | None = None):
        self.x = x
        self._quantized = quantized

    @property
    def quantized(self) -> Quantized:
        if self._quantized is None:
            self._quantized = quantize_activations(self.x)
        return self._quantized


class Product:
    """Linear layers that multiply the same rows, in one launch for each format or two quantised ones.

    Args:
        weights: the model's.
        workspace: shared by all products of a stream of work; see `requirement`.
        linears: whose matrices are `[num_out, num_in]` with one `num_in`.
    """

    def __init__(self, weights: CardWeights, workspace: Workspace, linears: Sequence[Linear]):
        self._workspace = workspace
        self._stacks = weights.stack(linears)
        self._places = [
            next((i, *s.rows[linear.name]) for i, s in enumerate(self._stacks) if linear.name in s.rows)
            for linear in linears
        ]
        self._biases = [weights.bias(linear) for linear in linears]
        factors = [weights.scale(linear.name) for linear in linears]
        self._factors = [None if factor is None else factor.item() for factor in factors]
        for stack in self._stacks:
            if isinstance(stack.matrix, torch.Tensor):
                workspace.reserve(*workspace_size(*stack.matrix.shape))

    @property
    def wants_quantized(self) -> bool:
        """Whether a matrix among them takes quantised activations."""
        return any(not isinstance(stack.matrix, torch.Tensor) for stack in self._stacks)

    @property
    def only_matrix(self) -> PlaneMatrix | None:
        """The layers' matrices one below the other, if there is nothing else to multiply with."""
        others = (*self._biases, *self._factors)
        matrix = self._stacks[0].matrix
        if len(self._stacks) > 1 or isinstance(matrix, torch.Tensor) or any(o is not None for o in others):
            return None
        return matrix

    def __call__(self, rows: Activations) -> list[torch.Tensor]:
        """float32 `[rows, num_out]` for each layer; rows may lie apart."""
        products = self._multiply(rows)
        results = []
        for (index, first, count), factor, bias in zip(
            self._places, self._factors, self._biases, strict=True
        ):
            y = products[index][:, first : first + count]
            if factor is not None:
                y *= factor
            results.append(y if bias is None else y + bias)
        return results

    def _multiply(self, rows: Activations) -> list[torch.Tensor]:
        """The product of each stack: of floats first, so that others begin to be loaded beside them."""
        matrices = dict(enumerate(stack.matrix for stack in self._stacks))
        floats = {i: matrix for i, matrix in matrices.items() if isinstance(matrix, torch.Tensor)}
        planes = {i: matrix for i, matrix in matrices.items() if isinstance(matrix, PlaneMatrix)}
        outs = {i: float_matmul(rows.x, matrix, self._workspace) for i, matrix in floats.items()}
        if planes:
            products = quantized_matmuls(list(planes.values()), *rows.quantized, self._workspace)
            outs |= zip(planes, products, strict=True)
        return [outs[i] for i in matrices]
