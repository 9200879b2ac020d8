"""The processor's share of missed experts: its pool, as a window's kernels ask it and wait for it."""

from collections.abc import Sequence

import torch

from strata.card.device import Card, CardError
from strata.native import Experts, JobMemory, JobServer
from strata.native.jobs import JobStatus
from strata.ops.triton.doorbell import TIMED_OUT, JobPlace, job_place

PLACES = 2  # one can be written while the other is read
PROMPT_ENTRIES = 1024  # of a prompt's job; few rows of many experts


class JobPlaces:
    """Where kernels write jobs (docs/JOBS.md), and find what came of them.

    Args:
        card: whose kernels ring.
        width: of a row.
        max_rows: of a window.
        slots: experts of a row.

    Attributes:
        places: of jobs, used in turns by the layers.
        error: int32 `[1]` on the card; see `HostExperts.check`.
    """

    def __init__(self, card: Card, width: int, max_rows: int, slots: int):
        entries = max(max_rows * slots, PROMPT_ENTRIES)
        self._sizes = width, entries, entries  # a prompt's job has a row for each entry
        layout = JobMemory(*self._sizes, count=1).layout
        size = layout.bytes
        self._pinned = card.pinned(PLACES * size, dtype=torch.uint8)
        self._epochs = torch.zeros(PLACES, dtype=torch.int32, device=card.device)
        self.places: list[JobPlace] = [
            job_place(self._pinned[i * size : (i + 1) * size], layout, self._epochs[i : i + 1])
            for i in range(PLACES)
        ]
        self.error = torch.zeros(1, dtype=torch.int32, device=card.device)


class HostExperts(JobPlaces):
    """A pool of threads that computes the jobs.

    Args:
        card, width, max_rows, slots: of `JobPlaces`.
        layers: all experts, in the order of the card's layers.
        num_threads: of the pool; all usable cores when not given.
    """

    def __init__(
        self,
        card: Card,
        layers: Sequence[Experts],
        width: int,
        max_rows: int,
        slots: int,
        num_threads: int | None = None,
    ):
        super().__init__(card, width, max_rows, slots)
        memory = JobMemory(*self._sizes, PLACES, memory=self._pinned.numpy())
        self._server = JobServer(layers, memory, num_threads)

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
