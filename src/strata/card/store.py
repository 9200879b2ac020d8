"""The experts in host memory: all of them, where the processor computes them and the card reads them."""

import mmap
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from strata.card.device import Card

_PAGE = mmap.PAGESIZE


class ExpertStore:
    """One record of bytes for each expert: the planes of gate, up and down, one after the other.

    Registration with the driver takes about as long as reading, so it runs beside it: `fill` is to be called
    as soon as a layer is written.

    Args:
        card: whose kernels are to read the records.
        record_bytes: of an expert of each layer; multiples of 64.
        experts: how many each layer has.

    Attributes:
        addresses: int64 `[layers, experts]`, of the records; the same for the processor and for the card.
    """

    def __init__(self, card: Card, record_bytes: list[int], experts: int):
        self.record_bytes = record_bytes
        self._card = card
        sizes = [-(-experts * size // _PAGE) * _PAGE for size in record_bytes]
        self._map = mmap.mmap(-1, max(sum(sizes), _PAGE))  # a dense model has none
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(self._map, dtype=np.uint8)
        ends = np.cumsum(sizes)
        self._layers = [memory[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        self._records = [
            layer[: experts * size].reshape(experts, size)
            for layer, size in zip(self._layers, record_bytes, strict=True)
        ]
        starts = np.array([layer.ctypes.data for layer in self._layers], dtype=np.int64)
        self.addresses = starts[:, None] + np.arange(experts) * np.array(record_bytes, np.int64)[:, None]
        self._registrar = ThreadPoolExecutor(1, "strata-register")
        self._registered: dict[int, Future[None]] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of all records."""
        return sum(layer.nbytes for layer in self._layers)

    def records(self, layer: int) -> np.ndarray:
        """uint8 `[experts, record bytes]`, to be written before `fill`."""
        return self._records[layer]

    def fill(self, layer: int) -> None:
        """The records of a layer are written: hand them to the card, without waiting.

        Raises:
            CardError: an earlier layer was refused, which need not wait until all are read.
        """
        for future in self._registered.values():
            if future.done():
                future.result()
        self._registered[layer] = self._registrar.submit(self._card.register, self._layers[layer])

    def wait(self) -> None:
        """Return when the card can read all that was filled; raises CardError."""
        for future in self._registered.values():
            future.result()

    def close(self) -> None:
        """Take the memory from the card again; no kernel may read it any more."""
        self._registrar.shutdown()
        for layer, future in self._registered.items():
            if future.exception() is None:
                self._card.unregister(self._layers[layer])
        self._registered.clear()
