"""Memory that launches share, one after the other."""

import torch

from strata.ops.triton.sorted_rows import SortedRows, rows_in_order


class Workspace:
    """Memory in which programs of one launch leave sums for the last of them; one for each stream of work.

    Args:
        device: of the tensors that it works for.
        sums: float32 elements; `workspace_size` says how many a product needs.
        tiles: tiles of outputs of the largest product.

    Attributes:
        unpacked: int8, room in which prompts may unpack weights, see `grouped_matmul`.
    """

    def __init__(self, device: torch.device | str, sums: int, tiles: int):
        self.unpacked = torch.empty(0, dtype=torch.int8, device=device)
        self.sums = torch.empty(sums, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(tiles, dtype=torch.int32, device=device)  # every launch leaves zeros
        self._in_order: dict[int, SortedRows] = {}  # of one length, and of those that graphs have
        self._kept: dict[int, SortedRows] = {}
        self._prompt_arrived = [self.arrived[:0]]

    def reserve(self, sums: int, tiles: int) -> None:
        """Make it at least this large, before anything works with it."""
        if sums > self.sums.numel():
            self.sums = self.sums.new_empty(sums)
        if tiles > self.arrived.numel():
            self.arrived = self.arrived.new_zeros(tiles)

    def make_room(self, unpacked: int) -> None:
        """Have room for so many bytes of unpacked weights."""
        self.unpacked = self.unpacked.new_empty(unpacked)

    def prompt_arrived(self, tiles: int) -> torch.Tensor:
        """As `arrived`, for launches of prompts; it grows, and graphs may have what it was before."""
        if tiles > self._prompt_arrived[-1].numel():
            self._prompt_arrived.append(self.arrived.new_zeros(tiles))
        return self._prompt_arrived[-1]

    def in_order(self, rows: int) -> SortedRows:
        """`rows_in_order`, which all matrices of a chunk share."""
        if rows not in self._in_order:
            self._in_order = self._kept | {rows: rows_in_order(rows, self.unpacked.device)}
        return self._in_order[rows]

    def keep_in_order(self, rows: int) -> None:
        """Make what `in_order` gives for so many rows, and keep it for a graph."""
        self._kept[rows] = self.in_order(rows)

    def require(self, sums: int, tiles: int) -> None:
        """Raise ValueError where the workspace is smaller than this."""
        if sums > self.sums.numel() or tiles > self.arrived.numel():
            raise ValueError(
                f"the workspace holds {self.sums.numel()} sums and {self.arrived.numel()} tiles, "
                f"this product needs {sums} and {tiles}"
            )
