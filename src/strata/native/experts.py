"""The feed-forward experts of a layer as one native call."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from strata.native import _core
from strata.native.matrix import load_codebook


@dataclass(frozen=True, slots=True)
class ExpertPlanes:
    """One matrix of every expert, in planes.

    Args:
        format: ggml's name of the quant format.
        planes: uint8 `[experts, plane bytes]`, kept, not copied; experts may lie a multiple of 64 apart.
        scales: a factor of each expert's products, where the file has them beside the matrices.
    """

    format: str
    planes: np.ndarray
    scales: tuple[float, ...] = ()


class Experts:
    """Experts of one layer: `down(silu(gate(x)) * up(x))`, with quantised activations (docs/NUMERICS.md).

    Args:
        width: length of a row in and out.
        ff: an expert's inner length.
        gate: matrices `[ff, width]`.
        up: matrices `[ff, width]`.
        down: matrices `[width, ff]`.
    """

    def __init__(self, width: int, ff: int, gate: ExpertPlanes, up: ExpertPlanes, down: ExpertPlanes):
        arguments: list[Any] = []
        for matrices in (gate, up, down):
            load_codebook(matrices.format)
            arguments += [matrices.format, matrices.planes, matrices.scales]
        self.core = _core.Experts(width, ff, *arguments)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The weighed sum of each row's experts, in the order of its slots.

        Args:
            x: float32 `[rows, width]`.
            ids: int64 or int32 `[rows, slots]`; ValueError where an expert does not exist.
            weights: float32 `[rows, slots]`.
        """
        return _core.experts(x.contiguous(), ids.long(), weights, self.core)
