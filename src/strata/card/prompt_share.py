"""Which of a prompt's missed experts the processor computes while the card reads the others in place.

Both give the same bits, so this decides about time alone, as `experts.split` does; here on the card, which
alone knows what its routers have chosen.
"""

from dataclasses import dataclass

import torch

from strata.experts.split import Costs


@dataclass(frozen=True, slots=True)
class PromptJob:
    """The processor's part of a layer.

    Attributes:
        host_entry: int32 `[rows, slots]`, an entry's place in the lists; -1 where the card computes it.
        num_entries: int32 `[1]`.
        experts, rows: int32 `[max_entries]`.
        weights: float32 `[max_entries]`.
    """

    host_entry: torch.Tensor
    num_entries: torch.Tensor
    experts: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, slots=True)
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
        flat = ids.reshape(-1).long()
        exists, expert = flat >= 0, flat.clamp(min=0)
        rows = torch.zeros_like(addresses).scatter_add_(0, expert, exists.long())
        taken = self._taken(layer, torch.where(addresses == self.home[layer], rows, 0), max_entries)
        mine = taken[expert] & exists
        number = torch.cumsum(mine, 0) - 1
        place = torch.where(mine, number, max_entries)  # the last one is nobody's

        def listed(values: torch.Tensor) -> torch.Tensor:
            return values.new_zeros(max_entries + 1).scatter_(0, place, values)[:max_entries]

        row = torch.arange(flat.numel(), dtype=torch.int32, device=ids.device) // ids.shape[1]
        return PromptJob(
            torch.where(mine, number, -1).int().view(ids.shape),
            mine.sum().int()[None],
            listed(expert.int()),
            listed(row),
            listed(weights.reshape(-1)),
        )

    def _taken(self, layer: int, rows: torch.Tensor, max_entries: int) -> torch.Tensor:
        """bool `[experts]` of int64 rows that use each missed expert, 0 of all others."""
        nobody = torch.iinfo(torch.int64).max
        ordered, order = torch.sort(torch.where(rows > 0, rows, nobody), stable=True)
        is_missed = ordered < nobody
        ordered = torch.where(is_missed, ordered, 0)
        fits = is_missed & (torch.cumsum(ordered, 0) <= max_entries)
        misses = is_missed.sum()
        if self.share is not None:
            count = torch.round(self.share * misses)
        else:
            count = torch.argmin(self.finish_times(layer, ordered, fits, misses))
        number = torch.arange(len(rows), device=rows.device)
        return torch.empty_like(fits).scatter_(0, order, fits & (number < count))

    def finish_times(
        self, layer: int, ordered: torch.Tensor, fits: torch.Tensor, misses: torch.Tensor
    ) -> torch.Tensor:
        """`experts.split.finish_times` on the card, float64 `[experts + 1]`; infinite where lists end.

        Args:
            ordered: int64 `[experts]`, ascending rows of the missed experts, then zeros.
            fits: bool `[experts]`: the lists have room for this one and those before it.
            misses: int64, how many are missed.
        """
        costs = self.costs
        each = torch.where(fits, costs.cpu + costs.cpu_row * (ordered - 1).double(), torch.inf)
        cpu = torch.nn.functional.pad(costs.handshake + torch.cumsum(each, 0), (1, 0))
        left = misses - torch.arange(len(cpu), device=cpu.device)
        card = costs.card + self.busy[layer] + costs.link * left.double()
        return torch.maximum(torch.maximum(cpu, card), costs.host * misses.double())
