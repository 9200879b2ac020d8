"""Which missed experts the processor computes: decided on the card, where a window needs no host for it.

The card's own are copied into its memory before its products read them. These wait for every few rows of an
expert, which over a link takes longer than a plain copy does: for one of Flash-Next in IQ3_XXS, over PCIe 5 x
16 to an H200, 42 to 47 us in place of 35.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.doorbell import JobPlace, ring_job
from strata.ops.triton.kernel import cdiv, kernel

_COMPARED = tl.constexpr(32)  # entries that all others are compared with at once
_COPIED = 1024  # elements of a row that a program copies for the processor
_PROGRAMS = 512  # that copy: a megabyte on its way; where there is nothing to copy, soon gone
_WORDS = 512  # that a program copies at a time: 16 bytes of a thread four times


@dataclass(frozen=True, slots=True)
class HostShare:
    """The processor's part of a layer in a window of `entries` = rows * slots.

    Attributes:
        host_entry: int32 `[entries]`, an entry's place in the lists below; -1 where the card computes it.
        num_entries: int32 `[1]`.
        experts, rows: int32 `[entries]`.
        weights: float32 `[entries]`.
    """

    host_entry: torch.Tensor
    num_entries: torch.Tensor
    experts: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def allocate(cls, entries: int, device: torch.device) -> "HostShare":
        integers = [
            torch.full((n,), -1, dtype=torch.int32, device=device) for n in (entries, 1, entries, entries)
        ]
        integers[1].zero_()
        return cls(*integers, torch.zeros(entries, device=device))


@dataclass(frozen=True, slots=True)
class Misses:
    """What the layers of all windows share to deal with missed experts, one layer after the other.

    Attributes:
        take: int32 `[most misses + 1]`, how many of 0, 1, ... missed experts of a layer the processor
            computes.
        addresses: int64 `[experts]`, where the window at hand finds those that it uses; of others, anything.
        memory: uint8 `[slots, bytes of the largest record]`, into which missed experts are fetched; if
            there are more, the others are read in place.
        sources: int64 `[slots]`, addresses of what is to be fetched.
        num_fetched: int32 `[1]`.
    """

    take: torch.Tensor
    addresses: torch.Tensor
    memory: torch.Tensor
    sources: torch.Tensor
    num_fetched: torch.Tensor

    @classmethod
    def allocate(
        cls, take: Sequence[int], experts: int, slots: int, record_bytes: int, device: torch.device
    ) -> "Misses":
        """Layers have `experts` experts, of which the largest takes `record_bytes`, a multiple of 64."""
        return cls(
            torch.tensor(take, dtype=torch.int32, device=device),
            torch.zeros(experts, dtype=torch.int64, device=device),
            torch.empty(slots, record_bytes, dtype=torch.uint8, device=device),
            torch.zeros(slots, dtype=torch.int64, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
        )


@triton.jit
def _is_missed(ids, addresses, begin, end, e, num_entries):
    """An entry's expert, -1 where it has none, its address, and whether that is outside the card's slots."""
    expert = tl.load(ids + e, mask=e < num_entries, other=-1).to(tl.int32)
    address = tl.load(addresses + tl.maximum(expert, 0), mask=expert >= 0, other=0)
    return expert, address, (expert >= 0) & ((address < begin) | (address >= end))


@kernel
def _place_kernel(
    ids, weights, addresses, slots, take, host_entry, num_host, host_experts, host_rows, host_weights,
    found, memory, sources, num_fetched, x, mapped, record_stride, num_entries,
    SLOTS: tl.constexpr, E: tl.constexpr, FETCHED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first program decides; with WIDTH the others copy a block of a row of `x` each."""
    begin_kernel()
    if WIDTH and tl.program_id(0) > 0:
        BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
        row, block = (tl.program_id(0) - 1) // BLOCKS, (tl.program_id(0) - 1) % BLOCKS
        column = block * BLOCK + tl.arange(0, BLOCK)
        at = row * WIDTH + column
        tl.store(mapped + at, tl.load(x + at, column < WIDTH), column < WIDTH)
        return
    begin, end = tl.load(slots), tl.load(slots + 1)
    e = tl.arange(0, E)
    expert, address, missed = _is_missed(ids, addresses, begin, end, e, num_entries)
    first = tl.full((E,), E, tl.int32)  # entry that names the same expert first
    count = tl.zeros((E,), tl.int32)  # of the entries that name it
    for start in range(0, E, _COMPARED):
        o = start + tl.arange(0, _COMPARED)
        other, _, other_missed = _is_missed(ids, addresses, begin, end, o, num_entries)
        same = (expert[:, None] == other[None, :]) & missed[:, None] & other_missed[None, :]
        first = tl.minimum(first, tl.min(tl.where(same, o[None, :], E), axis=1))
        count += tl.sum(same.to(tl.int32), axis=1)
    is_first = missed & (first == e)
    num_missed = tl.sum(is_first.to(tl.int32), axis=0)
    taken_experts = tl.load(take + num_missed)
    # An expert's place in the order of the rows that use it, and then of its first entry.
    key = count * E + first
    rank = tl.zeros((E,), tl.int32)
    for start in range(0, E, _COMPARED):
        o = start + tl.arange(0, _COMPARED)
        other, _, other_missed = _is_missed(ids, addresses, begin, end, o, num_entries)
        same = (expert[:, None] == other[None, :]) & missed[:, None] & other_missed[None, :]
        other_key = tl.min(tl.where(same, key[:, None], E * E + E), axis=0)
        other_first = tl.min(tl.where(same, first[:, None], E), axis=0)
        before = (other_key[None, :] < key[:, None]) & (other_missed & (other_first == o))[None, :]
        rank += tl.sum(before.to(tl.int32), axis=1)
    taken = missed & (rank < taken_experts)
    number = tl.cumsum(taken.to(tl.int32), axis=0) - 1
    tl.store(host_entry + e, tl.where(taken, number, -1), mask=e < num_entries)
    tl.store(host_experts + number, expert, mask=taken)
    tl.store(host_rows + number, e // SLOTS, mask=taken)
    tl.store(host_weights + number, tl.load(weights + e, mask=taken, other=0.0), mask=taken)
    tl.store(num_host, tl.sum(taken.to(tl.int32), axis=0))
    # Of the others those are fetched that the most rows use: in place, these would be read most often.
    slot = num_missed - 1 - rank
    fetched = missed & (rank >= taken_experts) & (slot < FETCHED)
    to = memory.to(tl.int64) + slot.to(tl.int64) * record_stride
    tl.store(found + expert, tl.where(fetched, to, address), mask=expert >= 0)
    tl.store(sources + slot, address, mask=fetched & is_first)
    tl.store(num_fetched, tl.sum((fetched & is_first).to(tl.int32), axis=0))


@kernel(do_not_specialize=["layer", "num_rows"])
def _fetch_kernel(
    sources, num_fetched, memory, record_stride, words, job, job_experts, job_rows, job_weights, epoch,
    layer, num_rows, num_entries, experts, rows, weights, BLOCK: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """With ENTRIES the first program rings; the others go through the blocks of all records, in turns."""
    begin_kernel()
    RINGS: tl.constexpr = 1 if ENTRIES else 0
    if RINGS and tl.program_id(0) == 0:
        ring_job(
            job, job_experts, job_rows, job_weights, epoch, layer, num_rows,
            num_entries, experts, rows, weights, ENTRIES,
        )  # fmt: skip
        return
    blocks = (words + BLOCK - 1) // BLOCK
    first, programs = tl.program_id(0) - RINGS, tl.num_programs(0) - RINGS
    for i in range(first, tl.load(num_fetched) * blocks, programs):
        record, block = i // blocks, i % blocks
        source = tl.multiple_of(tl.load(sources + record).to(tl.pointer_type(tl.int32)), 64)
        target = (memory + record.to(tl.int64) * record_stride).to(tl.pointer_type(tl.int32))
        n = block * BLOCK + tl.arange(0, BLOCK)
        tl.store(tl.multiple_of(target, 64) + n, tl.load(source + n, mask=n < words), mask=n < words)


def place_misses(
    ids: torch.Tensor,
    weights: torch.Tensor,
    addresses: torch.Tensor,
    slots: torch.Tensor,
    misses: Misses,
    share: HostShare,
    work: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Give the processor `take[misses]` of the missed experts, those first that the fewest rows use.

    Of the others as many as `misses.memory` has room for are listed for `fetch_experts`, after which all are
    where `misses.addresses` says.

    Args:
        ids: int32 or int64 `[rows, slots]`; an unused row has -1.
        weights: float32 `[rows, slots]`.
        addresses: int64 `[experts]`.
        slots: int64 `[2]`, first address of the card's slots and the first behind them: an expert elsewhere
            is missed.
        misses: `take` is read, with an entry for each number of misses; all but `memory` is written.
        share: written.
        work: float32 `[rows, width]`, and where the processor reads it, `doorbell.JobPlace.x`. The job before
            in that place must be done: its `wait` was launched before on this stream.
    """
    entries = ids.numel()
    padded = max(_COMPARED.value, triton.next_power_of_2(entries))
    x, mapped = work or (weights, weights)
    width = 0 if work is None else x.shape[1]
    _place_kernel[(1 + (0 if work is None else len(x) * cdiv(width, _COPIED)),)](
        ids, weights, addresses, slots, misses.take, share.host_entry, share.num_entries, share.experts,
        share.rows, share.weights, misses.addresses, misses.memory, misses.sources, misses.num_fetched,
        x, mapped, misses.memory.shape[1], entries, SLOTS=ids.shape[1], E=padded,
        FETCHED=len(misses.memory), WIDTH=width, BLOCK=_COPIED,
        num_warps=4 if padded == _COMPARED.value else 8, **step_launch(),
    )  # fmt: skip


def fetch_experts(
    misses: Misses, record_bytes: int, job: tuple[JobPlace, int, int, HostShare] | None = None
) -> None:
    """Copy what `place_misses` has listed into the card's memory; ring for the processor's share at once.

    Args:
        record_bytes: of an expert of the layer, a multiple of 64, at most those of the largest.
        job: place, layer and number of rows, as of `doorbell.ring`, and what `place_misses` wrote.
    """
    if job is None:
        nobody = misses.num_fetched
        ring, entries = (nobody,) * 5 + (0, 0) + (nobody,) * 4, 0
    else:
        place, layer, num_rows, share = job
        lists = share.num_entries, share.experts, share.rows, share.weights
        ring = place.words, place.experts, place.rows, place.weights, place.epoch, layer, num_rows, *lists
        entries = triton.next_power_of_2(share.experts.numel())
    _fetch_kernel[(_PROGRAMS + (job is not None),)](
        misses.sources, misses.num_fetched, misses.memory, misses.memory.shape[1], record_bytes // 4, *ring,
        BLOCK=_WORDS, ENTRIES=entries, num_warps=1, **step_launch(),
    )  # fmt: skip
