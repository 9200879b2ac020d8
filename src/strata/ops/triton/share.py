"""Which of a prompt's missed experts the processor computes: `experts.split` on the card, where alone it is
known what routers have chosen.

The host has to launch this for every layer, and a short prompt waits for that: so there are two kernels, with
operators of torch there were seventy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.experts.split import Costs
from strata.ops.triton.kernel import cdiv, kernel

_COUNTED = 1024  # entries of a program that counts
_LISTED = 2048  # entries that are listed at once
_COLUMNS = tl.constexpr(6)  # of `cost_table`
_NOBODY = tl.constexpr(2**31 - 1)  # comes behind every expert


@dataclass(frozen=True, slots=True)
class PromptJob:
    """The processor's part of a layer.

    Attributes:
        host_entry: int32 `[rows, slots]`, an entry's place in the lists; -1 where the card computes it.
        num_entries: int32 `[1]`.
        experts, rows: int32 `[max_entries]`; behind `num_entries`, anything.
        weights: float32 `[max_entries]`, likewise.
    """

    host_entry: torch.Tensor
    num_entries: torch.Tensor
    experts: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor


def cost_table(
    costs: Costs, busy: Sequence[float], share: float | None, device: torch.device
) -> torch.Tensor:
    """What `share_experts` reads about layers, float64 `[layers, 6]`: a kernel's numbers would be float32.

    Args:
        costs: of an expert.
        busy: seconds in which the link brings each layer's streamed experts.
        share: of the missed experts that the processor takes; None: as costs say.
    """
    each = (costs.handshake, costs.cpu, costs.cpu_row, costs.link)
    forced = -1.0 if share is None else share
    rows = [(*each, costs.card + seconds, forced) for seconds in busy]
    return torch.tensor(rows, dtype=torch.float64, device=device)


def share_experts(
    ids: torch.Tensor,
    weights: torch.Tensor,
    addresses: torch.Tensor,
    home: torch.Tensor,
    costs: torch.Tensor,
    layer: int,
    max_entries: int,
) -> PromptJob:
    """Give the processor those missed experts that the fewest rows use, of equal ones the first.

    It gets as many as `experts.split.num_taken` says, of those that the lists have room for; or the
    share that is forced, rounded, halves to even. Those that the lists have no room for stay with the card.

    Args:
        ids: int32 `[rows, slots]`; an unused row has -1. Entries times experts are below 2**30.
        weights: float32 `[rows, slots]`.
        addresses: int64 `[experts]`, where the card finds each.
        home: int64 `[layers, experts]`, addresses in host memory; who is found there is missed.
        costs: of `cost_table`.
        layer: row of `home` and `costs`.
        max_entries: of the lists.
    """
    entries, num_experts = ids.numel(), addresses.numel()
    counts = torch.zeros(num_experts, dtype=torch.int32, device=ids.device)
    host_entry, num_entries, experts, rows = (
        torch.empty(shape, dtype=torch.int32, device=ids.device)
        for shape in (ids.shape, 1, max_entries, max_entries)
    )
    job = PromptJob(host_entry, num_entries, experts, rows, weights.new_empty(max_entries))
    _count_kernel[(cdiv(entries, _COUNTED),)](ids, counts, entries, BLOCK=_COUNTED, num_warps=4)
    # Fused operations would round times otherwise than the host does.
    _share_kernel[(1,)](
        ids, weights, addresses, home, costs, counts, host_entry, num_entries, experts, rows, job.weights,
        layer, entries, max_entries, num_experts, SLOTS=ids.shape[1],
        EXPERTS=max(32, triton.next_power_of_2(num_experts)), BLOCK=_LISTED, num_warps=8,
        enable_fp_fusion=False,
    )  # fmt: skip
    return job


@kernel(do_not_specialize=["num_entries"])
def _count_kernel(ids, counts, num_entries, BLOCK: tl.constexpr):
    """How many entries each expert has."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(ids + entry, mask=entry < num_entries, other=-1)
    tl.atomic_add(counts + expert, 1, mask=expert >= 0, sem="relaxed")


@kernel(do_not_specialize=["layer", "num_entries", "max_entries"])
def _share_kernel(
    ids, weights, addresses, home, costs, counts, host_entry, num_host, host_experts, host_rows, host_weights,
    layer, num_entries, max_entries, num_experts,
    SLOTS: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The processor takes the experts up to one in the order of `_key`; then their entries are listed."""
    at_home = home + layer * num_experts
    e = tl.arange(0, EXPERTS)
    ordered = tl.sort(_key(addresses, at_home, counts, e, e < num_experts, EXPERTS))
    is_missed = ordered < _NOBODY
    rows = tl.cumsum(tl.where(is_missed, ordered // EXPERTS, 0), axis=0)
    fits = is_missed & (rows <= max_entries)
    misses = tl.sum(is_missed.to(tl.int32), axis=0)
    taken = _num_taken(costs + layer * _COLUMNS, e + 1, rows, fits, misses, EXPERTS)
    last = tl.max(tl.where(fits & (e < taken), ordered, -1), axis=0)
    listed = 0
    for start in range(0, num_entries, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        exists = entry < num_entries
        expert = tl.load(ids + entry, mask=exists, other=-1)
        mine = _key(addresses, at_home, counts, expert, expert >= 0, EXPERTS) <= last
        place = listed + tl.cumsum(mine.to(tl.int32), axis=0) - 1
        tl.store(host_entry + entry, tl.where(mine, place, -1), mask=exists)
        tl.store(host_experts + place, expert, mask=mine)
        tl.store(host_rows + place, entry // SLOTS, mask=mine)
        tl.store(host_weights + place, tl.load(weights + entry, mask=mine, other=0.0), mask=mine)
        listed += tl.sum(mine.to(tl.int32), axis=0)
    tl.store(num_host, listed)


@triton.jit
def _key(addresses, at_home, counts, expert, exists, EXPERTS: tl.constexpr):
    """int32 by which missed experts are in order of the rows that use them, and then of their numbers."""
    rows = tl.load(counts + expert, mask=exists, other=0)
    address = tl.load(addresses + expert, mask=exists, other=0)
    missed = (rows > 0) & (address == tl.load(at_home + expert, mask=exists, other=0))
    return tl.where(missed, rows * EXPERTS + expert, _NOBODY)


@triton.jit
def _num_taken(costs, number, rows, fits, misses, EXPERTS: tl.constexpr):
    """How many experts the processor takes.

    Args:
        costs: the layer's row of `cost_table`.
        number: int32 `[EXPERTS]`: 1, 2, ...
        rows: int32 `[EXPERTS]`, that use so many experts, the first in the order.
        fits: bool `[EXPERTS]`: there are so many missed ones, and the lists have room for them.
        misses: int32.
    """
    handshake, cpu, cpu_row = tl.load(costs), tl.load(costs + 1), tl.load(costs + 2)
    link, card, share = tl.load(costs + 3), tl.load(costs + 4), tl.load(costs + 5)
    on_cpu = handshake + (cpu * number.to(tl.float64) + cpu_row * (rows - number).to(tl.float64))
    on_card = card + link * (misses - number).to(tl.float64)
    time = tl.where(fits, tl.maximum(on_cpu, on_card), float("inf"))
    without = card + link * misses.to(tl.float64)
    soonest = tl.min(time, axis=0)
    first = tl.min(tl.where(time == soonest, number, EXPERTS), axis=0)
    cheapest = tl.where(without <= soonest, 0, first)
    # Rounded, halves to even: Triton has no such function for all cards.
    wanted = share * misses.to(tl.float64)
    below = wanted.to(tl.int32)
    rest = wanted - below.to(tl.float64)
    forced = below + ((rest > 0.5) | ((rest == 0.5) & (below % 2 == 1))).to(tl.int32)
    return tl.where(share < 0, cheapest, forced)
