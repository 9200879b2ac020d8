"""A card asks the processor for experts, from inside a graph: docs/JOBS.md from the card's side.

Per layer: `place.place_misses` or `publish_entries`, which write a job's rows; `place.fetch_experts` or
`ring`; the card's own share; `wait`. After it, kernels read the results in `JobPlace.out`. Nothing here knows
the epoch but a counter on the card, so that a captured graph can be replayed.

The memory is pinned, which CUDA and HIP map for the card at the address that the processor uses. The doorbell
is rung by a store and the flag watched by loads, never by read-modify-write, which over PCIe is not possible
everywhere. Triton before 3.9 has no atomic loads and stores; so the release is an atomic on the card's own
counter with the scope of the system, which comes after the stores of this and earlier kernels, and gives the
epoch to store. `intrinsics.watch` says why the flag is not watched by a volatile load alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel, step_launch, wait_for_earlier
from strata.ops.triton.intrinsics import watch
from strata.ops.triton.kernel import cdiv, kernel

if TYPE_CHECKING:
    from strata.native._core import JobLayout

TIMED_OUT = -1  # an error besides the server's statuses, which are positive
MAX_POLLS = 1_000_000  # a poll over PCIe takes about a microsecond; Windows ends a kernel after two seconds

_COLUMNS = 1024  # of x that a program copies
# Words of a job's header.
_LAYER, _NUM_ROWS, _NUM_ENTRIES, _DOORBELL = (tl.constexpr(word) for word in (2, 3, 4, 15))
_DONE = 16
_VOID = tl.constexpr(TIMED_OUT)


@dataclass(frozen=True, slots=True)
class JobPlace:
    """The place of a job, as the card sees it.

    Attributes:
        words: int32 `[32]`, its header.
        experts, rows: int32 `[max_entries]`.
        weights: float32 `[max_entries]`.
        x: float32 `[max_rows, width]`.
        out: float32 `[max_entries, width]`, the server's results, not weighed.
        epoch: int32 `[1]` on the card, of the job rung last; no other place's.

    All but `epoch` are views of mapped host memory.
    """

    words: torch.Tensor
    experts: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor
    x: torch.Tensor
    out: torch.Tensor
    epoch: torch.Tensor


def job_place(memory: torch.Tensor, layout: "JobLayout", epoch: torch.Tensor) -> JobPlace:
    """The views of a job's place.

    Args:
        memory: uint8 `[layout.bytes]`, pinned, with the header that `strata.native.JobMemory` writes.
        layout: of the job's parts.
        epoch: see `JobPlace`; holds the header's.
    """

    def part(start: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        size = 4 * torch.Size(shape).numel()
        return memory[start : start + size].view(dtype).view(shape)

    return JobPlace(
        part(0, torch.int32, 32),
        part(layout.experts, torch.int32, layout.max_entries),
        part(layout.rows, torch.int32, layout.max_entries),
        part(layout.weights, torch.float32, layout.max_entries),
        part(layout.x, torch.float32, layout.max_rows, layout.width),
        part(layout.out, torch.float32, layout.max_entries, layout.width),
        epoch,
    )


def publish_entries(place: JobPlace, x: torch.Tensor, rows: torch.Tensor, num_entries: torch.Tensor) -> None:
    """Write a row for each entry of a job, where a few of many rows are the processor's.

    The job before in this place must be done: its `wait` was launched before on this stream.

    Args:
        x: float32 `[any rows, width]`.
        rows: int32 `[max_entries]` on the card, the row of x that is row i of the job.
        num_entries: of `ring`.
    """
    width = x.shape[1]
    _publish_entries_kernel[(rows.numel(), cdiv(width, _COLUMNS))](
        x, place.x, rows, num_entries, width, BLOCK=_COLUMNS, num_warps=4, enable_fp_fusion=False
    )


def ring(
    place: JobPlace,
    layer: int,
    num_rows: int,
    num_entries: torch.Tensor,
    experts: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
) -> None:
    """Write the lists of a job and ring; does nothing where there are no entries.

    Args:
        layer: the server's index of the layer.
        num_rows: of `JobPlace.x` that were written.
        num_entries: int32 `[1]` on the card, at most `max_entries`.
        experts, rows: int32, and weights: float32 `[max_entries or fewer]`, on the card; see docs/JOBS.md.
    """
    block = triton.next_power_of_2(experts.numel())
    # One warp: where there are more, gfx9 does not make them wait for each other's stores before the release.
    _ring_kernel[(1,)](
        place.words, place.experts, place.rows, place.weights, place.epoch, layer, num_rows,
        num_entries, experts, rows, weights, BLOCK=block, num_warps=1, **step_launch(),
    )  # fmt: skip


def wait(place: JobPlace, num_entries: torch.Tensor, error: torch.Tensor, max_polls: int = MAX_POLLS) -> None:
    """Hold the stream until the job that was rung last is done; kernels after it may read `place.out`.

    Args:
        num_entries: as it was given to `ring`: without entries nothing was rung.
        error: int32 `[1]` on the card. Gets `TIMED_OUT` or the server's status when the job failed, and stays
            so; as long as it is not 0, nobody waits. Results are then void.
        max_polls: looks at the flag before giving up.
    """
    done = place.words.view(torch.int64)[_DONE // 2 :]
    _wait_kernel[(1,)](done, place.epoch, num_entries, error, max_polls, num_warps=1, **step_launch())


@kernel
def _publish_entries_kernel(x, mapped, rows, num_entries, width, BLOCK: tl.constexpr):
    entry = tl.program_id(0)
    if entry < tl.load(num_entries):
        row = tl.load(rows + entry).to(tl.int64)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + row * width + column, mask=column < width)
        tl.store(mapped + entry * width + column, value, mask=column < width)


@triton.jit
def ring_job(
    words, mapped_experts, mapped_rows, mapped_weights, epoch, layer, num_rows,
    num_entries, experts, rows, weights, BLOCK: tl.constexpr,
):  # fmt: skip
    """`ring` by a program of one warp: a barrier of several does not wait for their stores everywhere."""
    count = tl.load(num_entries)
    if count > 0:
        i = tl.arange(0, BLOCK)
        listed = i < count
        tl.store(mapped_experts + i, tl.load(experts + i, mask=listed), mask=listed)
        tl.store(mapped_rows + i, tl.load(rows + i, mask=listed), mask=listed)
        tl.store(mapped_weights + i, tl.load(weights + i, mask=listed), mask=listed)
        tl.store(words + _LAYER, layer)
        tl.store(words + _NUM_ROWS, num_rows)
        tl.store(words + _NUM_ENTRIES, count)
        tl.debug_barrier()  # the other lanes' stores come before this lane's release
        rung = tl.atomic_add(epoch, 1, sem="acq_rel", scope="sys") + 1
        tl.store(words + _DOORBELL, rung, cache_modifier=".wt")


# One kernel for all layers and counts: small numbers are not worth code of their own.
@kernel(do_not_specialize=["layer", "num_rows"])
def _ring_kernel(
    words, mapped_experts, mapped_rows, mapped_weights, epoch, layer, num_rows,
    num_entries, experts, rows, weights, BLOCK: tl.constexpr,
):  # fmt: skip
    begin_kernel()
    ring_job(
        words, mapped_experts, mapped_rows, mapped_weights, epoch, layer, num_rows,
        num_entries, experts, rows, weights, BLOCK,
    )  # fmt: skip


@kernel(do_not_specialize=["max_polls"])
def _wait_kernel(done, epoch, num_entries, error, max_polls):
    wait_for_earlier()  # but let no other kernel begin before the processor has written what that may read
    if (tl.load(num_entries) > 0) & (tl.load(error) == 0):
        rung = tl.load(epoch)
        # `done` and the status beside it come with one load: the server writes the status first.
        word = watch(done)
        polls = 0
        while (word.to(tl.int32) != rung) & (polls < max_polls):
            word = watch(done)
            polls += 1
        # Triton 3.6 leaves out an atomic whose result nobody reads, and with it the acquire.
        rung = tl.atomic_add(epoch, 0, sem="acquire", scope="sys")
        if word.to(tl.int32) != rung:
            tl.store(error, _VOID)
        else:
            status = (word >> 32).to(tl.int32)
            if status != 0:
                tl.store(error, status)
