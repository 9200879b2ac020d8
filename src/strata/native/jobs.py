"""Jobs for a layer's experts through shared memory: the server, and a client as a GPU's kernels will be one.

docs/JOBS.md is the format. A GPU writes the same words; the client here is the reference, and the tests'.
"""

import enum
import time
from collections.abc import Sequence

import numpy as np

from strata.hardware.cpu import usable_cpus
from strata.native import _core
from strata.native.experts import Experts
from strata.native.matrix import empty_planes

# Words of a job's header.
_MAGIC, _VERSION, _LAYER, _NUM_ROWS, _NUM_ENTRIES, _DOORBELL, _DONE, _STATUS, _DETAIL, _NANOSECONDS = (
    *range(5),
    *range(15, 20),
)
_HEADER_BYTES = 128


class JobStatus(enum.IntEnum):
    """What the server says about a job."""

    DONE = 0
    BAD_MAGIC = 1
    BAD_LAYER = 2
    BAD_ROWS = 3
    BAD_ENTRIES = 4
    BAD_EXPERT = 5
    BAD_ROW = 6
    FAILED = 7


class JobError(Exception):
    """The server refused a job.

    Args:
        status: why.
        detail: the number that was out of range; for `BAD_EXPERT` and `BAD_ROW`, the entry that holds it.
    """

    def __init__(self, status: JobStatus, detail: int):
        super().__init__(f"{status.name} ({detail})")
        self.status = status
        self.detail = detail


class Job:
    """A client's view of the place of one job.

    Attributes:
        experts: int32 `[max_entries]`.
        rows: int32 `[max_entries]`, which row of `x` an entry computes.
        weights: float32 `[max_entries]`, for whoever combines; the server does not read them.
        x: float32 `[max_rows, width]`.
        out: float32 `[max_entries, width]`, the server's results, not weighed.
    """

    def __init__(self, memory: np.ndarray, layout: _core.JobLayout, epoch: int):
        def part(start: int, dtype: type, *shape: int) -> np.ndarray:
            size = int(np.prod(shape)) * 4
            return memory[start : start + size].view(dtype).reshape(shape)

        self.words = part(0, np.uint32, _HEADER_BYTES // 4)
        self.experts = part(layout.experts, np.int32, layout.max_entries)
        self.rows = part(layout.rows, np.int32, layout.max_entries)
        self.weights = part(layout.weights, np.float32, layout.max_entries)
        self.x = part(layout.x, np.float32, layout.max_rows, layout.width)
        self.out = part(layout.out, np.float32, layout.max_entries, layout.width)
        self.epoch = epoch
        self.words[:] = 0
        self.words[[_MAGIC, _VERSION]] = _core.JOB_MAGIC, _core.JOB_VERSION
        self.words[[_DOORBELL, _DONE]] = epoch

    def submit(self, layer: int, num_rows: int, num_entries: int) -> None:
        """Ring the doorbell for what the lists and `x` hold. The job before must be done."""
        counts = np.array([layer, num_rows, num_entries], dtype=np.int32)
        self.words[_LAYER : _NUM_ENTRIES + 1] = counts.view(np.uint32)
        self.epoch = (self.epoch + 1) % 2**32
        _core.store_release(self.words, _DOORBELL, self.epoch)

    def done(self) -> bool:
        """Whether the results of the job submitted last are there."""
        return _core.load_acquire(self.words, _DONE) == self.epoch

    def wait(self, timeout_s: float = 60.0) -> None:
        """Return when the job is done; Ctrl+C interrupts.

        Raises:
            JobError: it was refused.
            TimeoutError: it is not done in time.
        """
        deadline = time.monotonic() + timeout_s
        polls = 0
        while not self.done():
            polls += 1
            if polls > 100:
                time.sleep(0)  # the server may need this CPU
                if time.monotonic() > deadline:
                    raise TimeoutError(f"job {self.epoch} is not done after {timeout_s} s")
        status, detail = self.words[_STATUS : _DETAIL + 1].view(np.int32)
        if status != JobStatus.DONE:
            raise JobError(JobStatus(status), int(detail))

    def seconds(self) -> float:
        """Time that the server spent on the job done last."""
        return int(self.words[_NANOSECONDS]) / 1e9

    def combined(self) -> np.ndarray:
        """The weighed sum of each row's entries, in their order: float32 `[num_rows, width]`."""
        num_rows, num_entries = (int(n) for n in self.words[_NUM_ROWS : _NUM_ENTRIES + 1])
        y = np.zeros((num_rows, self.x.shape[1]), dtype=np.float32)
        for row, weight, out in zip(
            self.rows[:num_entries], self.weights[:num_entries], self.out, strict=False
        ):
            y[row] = y[row] + weight * out
        return y


class JobMemory:
    """Memory for jobs, 64-byte aligned, and a client's view of each.

    Args:
        width: of the layers, and of a row.
        max_rows: of a job.
        max_entries: of a job, an entry being one expert for one row.
        count: jobs that may be under way at the same time.
        epoch: of the job before the first; any number.
        memory: uint8, of `count` times `layout.bytes`; new memory when not given.
    """

    def __init__(
        self,
        width: int,
        max_rows: int,
        max_entries: int,
        count: int = 2,
        epoch: int = 0,
        memory: np.ndarray | None = None,
    ):
        self.layout = _core.JobLayout(width, max_rows, max_entries)
        size = self.layout.bytes
        self.memory = empty_planes(size * count) if memory is None else memory
        self.jobs = [Job(self.memory[i * size : (i + 1) * size], self.layout, epoch) for i in range(count)]


class JobServer:
    """Computes jobs on threads of its own, which neither Python nor a lock holds up, until it is closed.

    Args:
        layers: their experts, all as wide as the memory's rows; a job names one by its index.
        memory: of the jobs; nobody may have rung yet.
        num_threads: the thread that waits for jobs among them; the usable cores when not given.
    """

    def __init__(self, layers: Sequence[Experts], memory: JobMemory, num_threads: int | None = None):
        cores = usable_cpus()
        self._core: _core.JobServer | None = _core.JobServer(
            tuple(layer.core for layer in layers),  # a tuple: the native server keeps it alive
            memory.memory,
            memory.layout,
            num_threads or len(cores),
            [(core.cpus, core.speed) for core in cores],
        )

    def close(self) -> None:
        """End after the job at hand."""
        self._core = None

    def __enter__(self) -> "JobServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
