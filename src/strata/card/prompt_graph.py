"""Short pieces of prompts as graphs, recorded once and replayed without Python inside.

To launch the hundreds of kernels of a short piece takes the host longer than the card to execute them. A
piece is filled up to the next of a few lengths with rows that are nobody's.
"""

import torch

from strata.card.model import CardModel
from strata.card.prompt_share import PromptShare
from strata.card.rows import Inputs
from strata.prompt_memory import SHORT

_STEP = 128  # rows from a length to the next


def graph_lengths(most: int) -> list[int]:
    """Rows of the graphs for pieces of up to `most` rows (and `SHORT`), descending."""
    longest = -(-min(most, SHORT) // _STEP) * _STEP
    return list(range(longest, 0, -_STEP))


class ShortPrompts:
    """Reads pieces of up to `most` rows of any lane, one at a time.

    Args:
        model: whose state is advanced.
        most: rows.
        share: how missed experts are divided, for all pieces; as of `Rows`.
    """

    def __init__(self, model: CardModel, most: int, share: PromptShare | None):
        self._model, self._share, self._lengths = model, share, graph_lengths(most)
        device, rows = model.weights.card.device, self._lengths[0]
        self._embedding = torch.zeros(rows, model.tokens.row_bytes, dtype=torch.uint8, device=device)
        self._ngrams = None
        if model.ngrams is not None:
            self._ngrams = torch.zeros(rows, model.ngrams.row_bytes, dtype=torch.uint8, device=device)
        self._lane = torch.full((rows,), -1, dtype=torch.int32, device=device)
        self._position = torch.zeros(rows, dtype=torch.int32, device=device)
        self._accepted = torch.zeros(model.lanes, dtype=torch.int32, device=device)
        self._last = torch.zeros(1, dtype=torch.int64, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._logits: dict[int, torch.Tensor] = {}

    def capture(self) -> "ShortPrompts":
        """Record all lengths, the longest first, whose memory the others share; returns itself."""
        device, pool = self._lane.device, torch.cuda.graph_pool_handle()
        for rows in self._lengths:
            self._model.memory.workspace.keep_in_order(rows)
            side = torch.cuda.Stream(device)  # a capture must not be a kernel's first run
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                self.step(rows)
            torch.cuda.current_stream(device).wait_stream(side)
            self._graphs[rows] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graphs[rows], pool=pool, capture_error_mode="thread_local"):
                self._logits[rows] = self.step(rows)
        return self

    def read(
        self,
        lane: int,
        first: int,
        embedding: torch.Tensor,
        ngrams: torch.Tensor | None,
        accepted: torch.Tensor,
    ) -> torch.Tensor:
        """Queue the computation of a piece; arguments and result are as of `PromptReader.read`.

        The logits are of the next piece when that is read.
        """
        rows = self.fill(lane, first, embedding, ngrams, accepted)
        self._graphs[rows].replay()
        return self._logits[rows]

    def fill(
        self,
        lane: int,
        first: int,
        embedding: torch.Tensor,
        ngrams: torch.Tensor | None,
        accepted: torch.Tensor,
    ) -> int:
        """Set what `step` reads to a piece; returns the length to take."""
        count = len(embedding)
        rows = min(length for length in self._lengths if length >= count)
        self._embedding[:count].copy_(embedding)
        if self._ngrams is not None:
            self._ngrams[:count].copy_(ngrams)
        self._lane.fill_(-1)
        self._lane[:count].fill_(lane)
        torch.arange(first, first + rows, dtype=torch.int32, out=self._position[:rows])
        self._accepted.copy_(accepted)
        self._last.fill_(count - 1)
        return rows

    def step(self, rows: int) -> torch.Tensor:
        """Queue the computation of so many rows of what `fill` has set; returns the last one's logits."""
        model, ngrams = self._model, None if self._ngrams is None else self._ngrams[:rows]
        inputs: Inputs = model.inputs(self._embedding[:rows], ngrams)
        at = (self._lane[:rows], self._position[:rows], self._accepted)
        return model.step(inputs, model.rows(*at, commit=True, share=self._share), self._last)
