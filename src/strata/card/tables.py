"""Tables of which a token needs a few rows: they stay in the mapped file, and the card decodes the rows."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from strata.layers.linear import Embedding
from strata.ops.triton.embedding import FLOATS, QUANTS, EmbeddingTable, codebook, embed

_THREADS = 32  # fetch rows side by side, as each may wait for the disk,
_EACH = 64  # so many a thread at least: to begin with one takes as long as many rows that are in memory


class CardTable:
    """Rows of an embedding, or of an n-gram table.

    What has no decoder on the card is decoded on the host, and sent as float32.

    Args:
        layer: the table.
        rows: of it, that belong to one token.
        device: of the card.

    Attributes:
        row_bytes: that are sent for a token.
        width: float32 values of a token.
    """

    def __init__(self, layer: Embedding, rows: int, device: torch.device):
        weights, self._layer, self._per_token = layer.weights, layer, rows
        info = weights.checkpoint.tensors[layer.name]
        raw = weights.checkpoint.raw(layer.name) if info.format in (*FLOATS, *QUANTS) else None
        is_decoded = raw is None or weights.scale(layer.name) is not None
        self._raw = None if raw is None or is_decoded else raw.reshape(info.shape[0], -1)
        self._format = "F32" if self._raw is None else info.format
        self._row_width = info.shape[1]
        self.width = rows * self._row_width
        self.row_bytes = 4 * self.width if self._raw is None else rows * self._raw.shape[1]
        self._codebook = codebook(self._format, device)
        self._threads = ThreadPoolExecutor(_THREADS, "table")

    def fetch(self, ids: torch.Tensor) -> torch.Tensor:
        """uint8 `[tokens, row_bytes]` in host memory, of int64 `[tokens * rows]`."""
        tokens = len(ids) // self._per_token
        if self._raw is None:
            return self._layer(ids).view(tokens, -1).view(torch.uint8)
        found = np.empty((len(ids), self._raw.shape[1]), np.uint8)
        numbers = ids.numpy()
        if (threads := min(len(numbers) // _EACH, _THREADS)) < 2:
            np.take(self._raw, numbers, axis=0, out=found, mode="clip")  # "raise" would copy once more
        else:
            parts = zip(np.array_split(numbers, threads), np.array_split(found, threads), strict=True)
            list(self._threads.map(lambda p: np.take(self._raw, p[0], axis=0, out=p[1], mode="clip"), parts))
        return torch.from_numpy(found).view(tokens, self.row_bytes)

    def decode(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 `[tokens, width]` on the card, of uint8 `[tokens, row_bytes]` there."""
        tokens = len(rows)
        ids = torch.arange(tokens * self._per_token, dtype=torch.int32, device=rows.device)
        blocks = rows.reshape(len(ids), -1)
        if self._format in FLOATS:
            blocks = blocks.view(FLOATS[self._format])
        table = EmbeddingTable(self._format, blocks, self._row_width, self._codebook)
        return embed(ids, table).view(tokens, self.width)
