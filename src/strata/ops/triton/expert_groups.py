"""Which rows of a window an expert computes: entries sorted by expert on the card."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import kernel

_COMPARED = tl.constexpr(32)  # entries that all others are compared with at once


@dataclass(frozen=True, slots=True)
class Groups:
    """Entries (row * slots + slot) of a window, sorted by expert. Tensors are int32 `[rows * slots]`.

    Args:
        order: entries; those of an expert are neighbours, in ascending order.
        expert: of each group, in order of its first entry.
        start: place in `order` of a group's first entry.
        count: entries of a group; 0 behind the last group.
    """

    order: torch.Tensor
    expert: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor


@kernel
def _group_kernel(ids, host_entry, order, expert, start, count, num_entries, E: tl.constexpr):
    begin_kernel()
    e = tl.arange(0, E)
    mine = e < num_entries
    key = tl.load(ids + e, mask=mine, other=-1).to(tl.int32)
    key = tl.where(tl.load(host_entry + e, mask=mine, other=0) < 0, key, -1)
    first = tl.full((E,), E, tl.int32)  # entry of the same expert that comes first
    for begin in range(0, E, _COMPARED):
        other = begin + tl.arange(0, _COMPARED)
        theirs = tl.load(ids + other, mask=other < num_entries, other=-1).to(tl.int32)
        theirs = tl.where(tl.load(host_entry + other, mask=other < num_entries, other=0) < 0, theirs, -1)
        same = (key[:, None] == theirs[None, :]) & (key[:, None] >= 0)
        first = tl.minimum(first, tl.min(tl.where(same, other[None, :], E), axis=1))
    place = tl.zeros((E,), tl.int32)
    group = tl.zeros((E,), tl.int32)
    members = tl.zeros((E,), tl.int32)
    groups = 0
    for begin in range(0, E, _COMPARED):
        other = begin + tl.arange(0, _COMPARED)
        theirs = tl.load(ids + other, mask=other < num_entries, other=-1).to(tl.int32)
        theirs = tl.where(tl.load(host_entry + other, mask=other < num_entries, other=0) < 0, theirs, -1)
        same = (key[:, None] == theirs[None, :]) & (key[:, None] >= 0)
        their_first = tl.min(tl.where(same, e[:, None], E), axis=0)
        before = their_first[None, :] < first[:, None]
        leads = their_first == other
        place += tl.sum((before | (same & (other[None, :] < e[:, None]))).to(tl.int32), axis=1)
        group += tl.sum((before & leads[None, :]).to(tl.int32), axis=1)
        members += tl.sum(same.to(tl.int32), axis=1)
        groups += tl.sum(leads.to(tl.int32), axis=0)
    tl.store(order + place, e, mask=key >= 0)
    leader = first == e
    tl.store(expert + group, key, mask=leader)
    tl.store(start + group, place, mask=leader)
    tl.store(count + group, members, mask=leader)
    tl.store(count + e, tl.zeros((E,), tl.int32), mask=mine & (e >= groups))


def group_entries(ids: torch.Tensor, host_entry: torch.Tensor, out: Groups | None = None) -> Groups:
    """Sort the entries that this card computes by their expert.

    Args:
        ids: int32 or int64 `[rows, slots]`; an unused row has -1.
        host_entry: int32 `[rows, slots]`; negative where this card computes the entry.
    """
    num_entries = ids.numel()
    if out is None:
        out = Groups(*torch.empty(4, num_entries, dtype=torch.int32, device=ids.device))
    padded = max(_COMPARED.value, triton.next_power_of_2(num_entries))
    _group_kernel[(1,)](
        ids, host_entry, out.order, out.expert, out.start, out.count, num_entries,
        E=padded, num_warps=4 if padded == _COMPARED.value else 8, **step_launch(),
    )  # fmt: skip
    return out
