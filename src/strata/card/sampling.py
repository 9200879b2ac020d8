"""The choice of tokens on a card, for the lanes of an engine: settings, histories, and what is pending."""

import numpy as np
import torch

from strata.ops.triton.float_matmul import WINDOW_ROWS
from strata.ops.triton.sampling import PROMPT, Lanes, Scratch, count_tokens, sample


class CardSampler:
    """Chooses as `engine.sampling.Sampler` does, from the same seed the same tokens.

    A row's own token counts in the penalties of what follows it. The rows of a step are remembered until the
    next step says which of them stand, and then belong to their lanes' histories.

    Args:
        lanes: that are sampled for.
        vocab: length of the logits.
        device: the card's.
    """

    def __init__(self, lanes: int, vocab: int, device: torch.device):
        self._lanes = Lanes.new(lanes, vocab, device)
        self._scratch = Scratch.new(WINDOW_ROWS, vocab, device)
        self._pending = [torch.zeros(WINDOW_ROWS, dtype=torch.int32, device=device) for _ in range(3)]
        self._pending[0].fill_(-1)

    def begin(
        self,
        lane: int,
        numbers: list[float],
        top_k: int,
        seed: int,
        bias: dict[int, float],
        prompt: list[int],
    ) -> None:
        """A request begins in a lane; the token that is chosen next follows its prompt.

        Args:
            lane: whose.
            numbers: of `ops.triton.sampling.settings`.
            top_k: 0 or less for none.
            seed: 64 bits.
            bias: added to the logits of tokens.
            prompt: its ids.
        """
        lanes, device = self._lanes, self._lanes.history.device
        lanes.numbers[lane] = torch.tensor(numbers, dtype=torch.float64).to(device)
        signed = seed - (seed >> 63 << 64)
        lanes.whole[lane] = torch.tensor([signed, max(top_k, 0), int(bool(bias))]).to(device)
        lanes.history[lane].zero_()
        lanes.history[lane, torch.from_numpy(np.unique(prompt)).to(device)] = PROMPT
        if bias:
            lanes.bias[lane].zero_()
            values = torch.tensor(list(bias.values()), dtype=torch.float64).to(device)
            lanes.bias[lane, torch.tensor(list(bias)).to(device)] = values
        pending = self._pending[0]
        pending.masked_fill_(pending == lane, -1)  # rows of the request before

    def commit(self, accepted: torch.Tensor) -> None:
        """Add the pending rows that stand, by int32 `[lanes]`, to their lanes' histories; forget the rest."""
        count_tokens(*self._pending, self._lanes, accepted)
        self._pending[0].fill_(-1)

    def choose_next(
        self, logits: torch.Tensor, lane: int, position: int, token: int, mask: np.ndarray | None
    ) -> torch.Tensor:
        """Choose what follows a prompt's last token; int32 `[1]`.

        Args:
            logits: float32 `[1, vocab]`.
            lane: whose.
            position: of the last token in its sequence.
            token: its id.
            mask: as of `window.Row`.
        """
        device = logits.device
        integers = torch.tensor([[lane], [position], [token], [0]], dtype=torch.int32).to(device)
        if mask is None:
            mask = np.full(-(-logits.shape[1] // 32), -1, np.int32)
        chosen = torch.empty(1, dtype=torch.int32, device=device)
        self.choose(logits, *integers, torch.from_numpy(mask)[None].to(device), chosen)
        return chosen

    def choose(
        self,
        logits: torch.Tensor,
        lane: torch.Tensor,
        position: torch.Tensor,
        tokens: torch.Tensor,
        is_answer: torch.Tensor,
        mask: torch.Tensor,
        chosen: torch.Tensor,
    ) -> None:
        """Choose what follows each row, and leave the rows pending; arguments as of `ops.triton.sampling`."""
        sample(logits, lane, position, tokens, is_answer, mask, self._lanes, self._scratch, chosen)
        for pending, rows in zip(self._pending, (lane, tokens, is_answer), strict=True):
            pending[: len(rows)].copy_(rows)
