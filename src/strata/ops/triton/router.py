"""Which experts a row goes to (see `ops/router.py`), and how often each was asked for."""

import torch
import triton
import triton.language as tl

from strata.ops.triton.arithmetic import sigmoid
from strata.ops.triton.dependent_launch import launch_dependents, prefetch, step_launch, wait_for_earlier
from strata.ops.triton.kernel import kernel

_COLUMNS = tl.constexpr(512)  # of the shared expert's gate that are multiplied at once


@triton.jit
def _gate_of(x, gate, WIDTH: tl.constexpr):
    """The sigmoid of the product of a row with a vector."""
    total = tl.zeros([_COLUMNS], tl.float32)
    for start in tl.static_range(0, WIDTH, _COLUMNS):
        column = start + tl.arange(0, _COLUMNS)
        w = tl.load(gate + column, column < WIDTH, other=0.0).to(tl.float32)
        total += tl.load(x + column, column < WIDTH, other=0.0) * w
    return sigmoid(tl.sum(total, 0))


@triton.jit
def _best(share, expert, USED: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    """The USED largest shares, largest first, equal ones by their index: int32 and float32 `[SLOTS]`."""
    slot = tl.arange(0, SLOTS)
    chosen, shares = tl.zeros([SLOTS], tl.int32), tl.zeros([SLOTS], tl.float32)
    key = share.to(tl.int32, bitcast=True)  # shares are positive, so their bits are ordered as they are
    for index in range(USED):
        best = tl.max(key, 0)
        found = tl.min(tl.where(key == best, expert, BLOCK), 0)
        chosen = tl.where(slot == index, found, chosen)
        shares = tl.where(slot == index, best.to(tl.float32, bitcast=True), shares)
        key = tl.where(expert == found, -1, key)
    return chosen, shares


@triton.jit
def _forced(share, expert, forced, USED: tl.constexpr, SLOTS: tl.constexpr):
    """The USED experts that `forced` names, and their shares, as `_best`."""
    slot = tl.arange(0, SLOTS)
    chosen, shares = tl.zeros([SLOTS], tl.int32), tl.zeros([SLOTS], tl.float32)
    for index in range(USED):
        found = tl.load(forced + index).to(tl.int32)
        chosen = tl.where(slot == index, found, chosen)
        shares = tl.where(slot == index, tl.sum(tl.where(expert == found, share, 0.0), 0), shares)
    return chosen, shares


@kernel
def _route(logits, lane, position, forced, num_forced, ids, weights, shared, counts, x, gate, logits_stride,
           x_stride, EXPERTS: tl.constexpr, USED: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
           NORMALIZE: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """A program is a row; with WIDTH there is a shared expert, and a row's second program is its gate."""
    launch_dependents()
    row = tl.program_id(0)
    if WIDTH and tl.program_id(1) == 1:
        prefetch(gate, WIDTH)
        wait_for_earlier()
        tl.store(shared + row, _gate_of(x + row * x_stride, gate, WIDTH))
    else:
        wait_for_earlier()
        expert, slot = tl.arange(0, BLOCK), tl.arange(0, SLOTS)
        # A row of nobody is computed too: whoever asked first would wait twice.
        is_somebody = tl.load(lane + row) >= 0
        logit = tl.load(logits + row * logits_stride + expert, expert < EXPERTS, other=float("-inf"))
        share = tl.exp(logit - tl.max(logit, 0))
        share = share / tl.sum(share, 0)
        share = tl.where(share == share, share, 0.0)  # NaNs choose the first experts, not memory anywhere
        if forced is None:
            chosen, shares = _best(share, expert, USED, SLOTS, BLOCK)
        else:
            at = tl.where(is_somebody, tl.load(position + row), 0) % num_forced
            chosen, shares = _forced(share, expert, forced + at.to(tl.int64) * USED, USED, SLOTS)
        if NORMALIZE:
            shares = shares / tl.sum(shares, 0)
        is_slot = slot < USED
        tl.store(ids + row * USED + slot, tl.where(is_somebody, chosen, -1), is_slot)
        tl.store(weights + row * USED + slot, shares, is_slot)
        tl.atomic_add(counts + chosen, 1, slot < tl.where(is_somebody, USED, 0), sem="relaxed")


def route(
    logits: torch.Tensor,
    num_used: int,
    normalize: bool,
    lane: torch.Tensor,
    counts: torch.Tensor,
    position: torch.Tensor | None = None,
    forced: torch.Tensor | None = None,
    shared_gate: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The `num_used` most probable experts of each row, most probable first, equal ones by their index.

    Args:
        logits: float32 `[rows, experts]`; rows may lie apart.
        num_used: experts of a row.
        normalize: divide the chosen probabilities by their sum.
        lane: int32 `[rows]`; rows of lane -1 go nowhere: their experts are -1, their weights anything.
        counts: int32 `[experts]` of the layer, to which the choices of all rows are added.
        position: int32 `[rows]`, only with `forced`.
        forced: int16 `[tokens, num_used]`: experts by position, from the start again at the end, in place of
            the most probable ones (`engine/routing.py`).
        shared_gate: rows float32 `[rows, width]`, and what they are multiplied with for the share of a shared
            expert, floats `[1, width]`.

    Returns:
        experts int32 `[rows, num_used]`, weights float32 `[rows, num_used]`, and the sigmoid of the shared
        expert's logit float32 `[rows]`, if there is one. A NaN gives NaN weights and experts that exist.
    """
    num_rows, num_experts = logits.shape
    ids = torch.empty(num_rows, num_used, dtype=torch.int32, device=logits.device)
    weights = logits.new_empty(num_rows, num_used)
    shared = None if shared_gate is None else logits.new_empty(num_rows)
    x, gate = shared_gate or (logits, logits)
    num_forced = 0 if forced is None else forced.shape[0]
    _route[(num_rows, 1 if shared is None else 2)](
        logits, lane, position, forced, num_forced, ids, weights, shared, counts, x, gate, logits.stride(0),
        x.stride(0), EXPERTS=num_experts, USED=num_used, BLOCK=triton.next_power_of_2(num_experts),
        SLOTS=triton.next_power_of_2(num_used), NORMALIZE=normalize,
        WIDTH=0 if shared is None else gate.shape[1], num_warps=1, **step_launch(),
    )  # fmt: skip
    return ids, weights, shared
