"""The rows that a step computes, as the card's kernels read them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from strata.card.prompt_share import PromptShare
from strata.ops.triton.rotary import angles


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the host gives a step beside its `Rows`, on the card.

    Args:
        embedding: float32 `[rows, width]`, of the tokens.
        ngrams: float32 `[rows, table width]`, what the n-gram table has for them; None without one.
    """

    embedding: torch.Tensor
    ngrams: torch.Tensor | None


@dataclass(slots=True)
class Rows:
    """What all layers of a step share, at addresses that a captured graph remembers.

    Args:
        lane: int32 `[rows]`, whose a row is; -1: nobody's.
        position: int32 `[rows]`.
        accepted: int32 `[lanes]`, how many of a lane's rows in the window before stand (`ops.triton.lanes`).
        commit: the rows stand, as a prompt's do.
        addresses: int64 `[layers with experts, experts]`, where this step finds each expert.
        inv_freq: float32 `[pairs]`, inverse frequencies of the rotation.
        factor: of cosines and sines.
        block: tokens of a block of sparse attention; 0 where there is none.
        share: how a prompt's missed experts are divided; None: the card reads all of them.
        gate: called with the number of a layer before its experts are read.

    Attributes:
        rope: cosines and sines of the positions, float32 `[rows, pairs]` each.
        block_rope: those of the first token of a block that ends at the row.
    """

    lane: torch.Tensor
    position: torch.Tensor
    accepted: torch.Tensor
    commit: bool
    addresses: torch.Tensor
    inv_freq: torch.Tensor
    factor: float
    block: int = 0
    share: PromptShare | None = None
    gate: Callable[[int], None] = lambda key: None
    rope: tuple[torch.Tensor, torch.Tensor] = field(init=False)
    block_rope: tuple[torch.Tensor, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.rope = self._angles(0)
        self.block_rope = self._angles(self.block - 1) if self.block else self.rope

    def _angles(self, back: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (len(self), self.inv_freq.numel())
        cos, sin = (torch.empty(shape, device=self.lane.device) for _ in range(2))
        angles(self.position, self.inv_freq, self.factor, cos, sin, back)
        return cos, sin

    def __len__(self) -> int:
        return self.lane.numel()
