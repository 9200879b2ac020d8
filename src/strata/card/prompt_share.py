"""Which of a prompt's missed experts the processor computes while the card reads the others in place.

Both give the same bits, so this decides about time alone, as `experts.split` does; here on the card, which
alone knows what its routers have chosen.
"""

from dataclasses import dataclass, field

import torch

from strata.experts.split import Costs
from strata.ops.triton.share import PromptJob, cost_table, share_experts


@dataclass(slots=True)
class PromptShare:
    """How a chunk's missed experts are divided.

    Args:
        home: int64 `[layers, experts]` on the card, addresses in host memory; who is found there is missed.
        costs: of an expert.
        share: of the missed experts that the processor takes; None: as costs say.
        missed: how many experts of each layer lie in host memory.
        busy: seconds in which the link brings each layer's streamed experts.
    """

    home: torch.Tensor
    costs: Costs
    share: float | None
    missed: list[int]
    busy: list[float]
    _table: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._table = cost_table(self.costs, self.busy, self.share, self.home.device)

    def choose(
        self,
        layer: int,
        ids: torch.Tensor,
        weights: torch.Tensor,
        addresses: torch.Tensor,
        max_entries: int,
    ) -> PromptJob:
        """Give the processor those experts that the fewest rows use, of equal ones the first.

        Args:
            layer: row of the tables.
            ids: int32 `[rows, slots]`; an unused row has -1.
            weights: float32 `[rows, slots]`.
            addresses: int64 `[experts]`, where the card finds each.
            max_entries: of the lists.
        """
        return share_experts(ids, weights, addresses, self.home, self._table, layer, max_entries)
