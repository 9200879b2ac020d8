"""Which missed experts the processor computes: decided on the card, where a window needs no host for it."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel, step_launch

_COMPARED = tl.constexpr(32)  # entries that all others are compared with at once


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


@triton.jit
def _is_missed(ids, addresses, begin, end, e, num_entries):
    """An entry's expert, -1 where it has none, and whether that lies outside the card's slots."""
    expert = tl.load(ids + e, mask=e < num_entries, other=-1).to(tl.int32)
    address = tl.load(addresses + tl.maximum(expert, 0), mask=expert >= 0, other=0)
    return expert, (expert >= 0) & ((address < begin) | (address >= end))


@triton.jit
def _place_kernel(
    ids, weights, addresses, slots, take, host_entry, num_host, host_experts, host_rows, host_weights,
    num_entries, SLOTS: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    begin_kernel()
    begin, end = tl.load(slots), tl.load(slots + 1)
    e = tl.arange(0, E)
    expert, missed = _is_missed(ids, addresses, begin, end, e, num_entries)
    first = tl.full((E,), E, tl.int32)  # entry that names the same expert first
    count = tl.zeros((E,), tl.int32)  # of the entries that name it
    for start in range(0, E, _COMPARED):
        o = start + tl.arange(0, _COMPARED)
        other, other_missed = _is_missed(ids, addresses, begin, end, o, num_entries)
        same = (expert[:, None] == other[None, :]) & missed[:, None] & other_missed[None, :]
        first = tl.minimum(first, tl.min(tl.where(same, o[None, :], E), axis=1))
        count += tl.sum(same.to(tl.int32), axis=1)
    taken_experts = tl.load(take + tl.sum((missed & (first == e)).to(tl.int32), axis=0))
    # An expert's place in the order of the rows that use it, and then of its first entry.
    key = count * E + first
    rank = tl.zeros((E,), tl.int32)
    for start in range(0, E, _COMPARED):
        o = start + tl.arange(0, _COMPARED)
        other, other_missed = _is_missed(ids, addresses, begin, end, o, num_entries)
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


def place_misses(
    ids: torch.Tensor,
    weights: torch.Tensor,
    addresses: torch.Tensor,
    slots: torch.Tensor,
    take: torch.Tensor,
    share: HostShare,
) -> None:
    """Give the processor `take[misses]` of the missed experts, those first that the fewest rows use.

    Args:
        ids: int32 or int64 `[rows, slots]`; an unused row has -1.
        weights: float32 `[rows, slots]`.
        addresses: int64 `[experts]`.
        slots: int64 `[2]`, first address of the card's slots and the first behind them: an expert elsewhere
            is missed.
        take: int32 `[rows * slots + 1]`.
        share: written.
    """
    entries = ids.numel()
    padded = max(_COMPARED.value, triton.next_power_of_2(entries))
    _place_kernel[(1,)](
        ids, weights, addresses, slots, take, share.host_entry, share.num_entries, share.experts,
        share.rows, share.weights, entries, SLOTS=ids.shape[1],
        E=padded, num_warps=4 if padded == _COMPARED.value else 8, **step_launch(),
    )  # fmt: skip
