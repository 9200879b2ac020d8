"""How often the experts of a layer are chosen, for who decides where they live and for the heat map."""

import torch

HALF_LIFE_TOKENS = 1024  # after as many tokens a choice weighs half in `recent`
BATCH_TOKENS = 256  # are counted at once


class ExpertCounts:
    """Choices of one layer's experts.

    Ids are kept and counted a batch at a time, because a decode step has one row per layer: that is 0.4 us a
    row on a Zen 3 core, and 6 us if each row is counted by itself.

    Args:
        num_experts: of the layer.

    Attributes:
        total: int64 `[experts]`, since the model was loaded.
        recent: float32 `[experts]`; a choice weighs half after `HALF_LIFE_TOKENS`, to within a batch.
    """

    def __init__(self, num_experts: int):
        self.total = torch.zeros(num_experts, dtype=torch.int64)
        self.recent = torch.zeros(num_experts)
        self._ids: list[torch.Tensor] = []
        self._num_tokens = 0  # in `_ids`

    def note(self, ids: torch.Tensor) -> None:
        """Note the experts of some tokens: int64 `[n, slots]`, which must not change any more."""
        self._ids.append(ids)
        self._num_tokens += ids.shape[0]  # a third of what `len` takes
        if self._num_tokens >= BATCH_TOKENS:
            self.settle()

    def settle(self) -> None:
        """Count all that was noted."""
        if not self._ids:
            return
        chosen = torch.bincount(torch.cat(self._ids).flatten(), minlength=len(self.total))
        num_tokens, self._ids, self._num_tokens = self._num_tokens, [], 0
        self.add(chosen, num_tokens)

    def add(self, chosen: torch.Tensor, num_tokens: int) -> None:
        """Add the choices of some tokens, counted elsewhere: integers `[experts]`."""
        self.total += chosen
        self.recent *= 0.5 ** (num_tokens / HALF_LIFE_TOKENS)
        self.recent += chosen
