"""The processor's share of missed experts: its pool, as a window's kernels ask it and wait for it."""

from collections.abc import Sequence

import numpy as np
import torch

from strata.card.device import Card, CardError
from strata.native import Experts, JobMemory, JobServer
from strata.native.jobs import JobStatus
from strata.ops.triton.doorbell import TIMED_OUT, JobPlace, job_place

PLACES = 2  # one can be written while the other is read


class HostExperts:
    """A pool of threads that computes jobs which a card writes (docs/JOBS.md).

    Args:
        card: whose kernels ring.
        layers: all experts, in the order of the card's layers.
        width: of a row.
        max_rows: of a window.
        slots: experts of a row.
        take: how many of 0, 1, ... missed experts of a layer the processor computes, `max_rows * slots + 1`.
        num_threads: of the pool; all usable cores when not given.

    Attributes:
        places: of jobs, used in turns by the layers.
        take: int32 on the card.
        error: int32 `[1]` on the card; see `check`.
    """

    def __init__(
        self,
        card: Card,
        layers: Sequence[Experts],
        width: int,
        max_rows: int,
        slots: int,
        take: Sequence[int],
        num_threads: int | None = None,
    ):
        entries = max_rows * slots
        size = JobMemory(width, max_rows, entries, count=1).layout.bytes
        pinned = card.pinned(PLACES * size, dtype=torch.uint8)
        memory = JobMemory(width, max_rows, entries, PLACES, memory=pinned.numpy())
        self._server = JobServer(layers, memory, num_threads)
        self._epochs = torch.zeros(PLACES, dtype=torch.int32, device=card.device)
        self.places: list[JobPlace] = [
            job_place(pinned[i * size : (i + 1) * size], memory.layout, self._epochs[i : i + 1])
            for i in range(PLACES)
        ]
        self.take = torch.tensor(np.asarray(take, np.int32), device=card.device)
        self.error = torch.zeros(1, dtype=torch.int32, device=card.device)

    @staticmethod
    def check(error: int) -> None:
        """Raise CardError where `error`, as a window left it, says that its results are void."""
        if error == TIMED_OUT:
            raise CardError("the processor did not answer the card; the engine must be started again")
        if error:
            raise CardError(f"the processor refused the card's job: {JobStatus(error).name}")

    def close(self) -> None:
        """End the pool; no kernel may wait for it any more."""
        self._server.close()
