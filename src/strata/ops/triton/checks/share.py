"""The processor's share of a prompt's missed experts, against `experts.split` and a plain loop."""

from collections.abc import Iterator

import numpy as np
import torch

from strata.experts.split import Costs, num_taken
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.share import cost_table, share_experts

# Sums of such numbers are exact in any order, so that equal times are equal here and there.
_COSTS = Costs(handshake=0.25, cpu=0.5, cpu_row=0.125, link=1.0, host=0.25, card=2.0)
_BUSY = (0.0, 6.0)  # of two layers
# Rows, slots, experts, experts that are held, and entries of the lists.
_CASES = (
    (40, 3, 12, 0, 200),
    (40, 3, 12, 12, 200),
    (40, 3, 12, 5, 17),  # too short for some
    (40, 3, 12, 5, 2),  # too short for any
    (300, 10, 160, 60, 3000),  # not a power of two, and entries that are listed in two turns
    (5, 4, 1024, 0, 20),
    (250, 10, 512, 0, 1000),
    (20, 1, 1, 0, 40),  # one expert
)


def _ids(rows: int, slots: int, experts: int, generator: torch.Generator) -> torch.Tensor:
    """int32 `[rows, slots]`, of which some experts get more than others; every seventh row is unused."""
    liked = torch.randn(rows, experts, generator=generator) + torch.linspace(0, 2, experts)
    ids = liked.argsort(1)[:, :slots].int()
    ids[3::7] = -1
    return ids


def _taken(ids: torch.Tensor, missed: range, max_entries: int, busy: float, share: float | None) -> set[int]:
    """The processor's experts."""
    used = np.bincount(ids[ids >= 0].numpy(), minlength=missed.stop)
    order = sorted((e for e in missed if used[e]), key=lambda e: used[e])  # stable
    rows = used[order].astype(np.int64)
    room = int((np.cumsum(rows) <= max_entries).sum())
    if share is not None:
        return set(order[: min(room, round(share * len(order)))])
    costs = Costs(*(getattr(_COSTS, name) for name in ("handshake", "cpu", "cpu_row", "link", "host")), busy)
    return set(order[: num_taken(rows, costs, room)])


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for rows, slots, experts, held, max_entries in _CASES:
        ids, weights = _ids(rows, slots, experts, generator), torch.rand(rows, slots, generator=generator)
        home = torch.arange(2 * experts).view(2, experts) * 64 + (1 << 40)
        addresses = home[1].clone()
        addresses[:held] += 1 << 41
        on_card = [x.to(device) for x in (ids, weights, addresses, home)]
        ways = ((1, None), (0, None), (1, 0.5), (1, 0.0), (1, 1.0))
        for layer, share in ways if rows == 40 else ways[:3:2]:
            table = cost_table(_COSTS, _BUSY, share, device)
            missed = range(held if layer else experts, experts)  # nobody is at home in the other layer
            taken = _taken(ids, missed, max_entries, _COSTS.card + _BUSY[layer], share)
            listed = [(i, e) for i, e in enumerate(ids.flatten().tolist()) if e in taken]
            entries = torch.tensor([i for i, _ in listed], dtype=torch.int64)
            host_entry = torch.full((ids.numel(),), -1, dtype=torch.int32)
            host_entry[entries] = torch.arange(len(listed), dtype=torch.int32)
            got = share_experts(*on_card, table, layer, max_entries)
            case = f"{rows} x {slots}, {held} of {experts} held, room for {max_entries}, {layer} {share}"
            n = len(listed)
            yield case, got.host_entry, host_entry.view(rows, slots)
            yield f"{case}, number", got.num_entries, torch.tensor([n], dtype=torch.int32)
            yield f"{case}, experts", got.experts[:n], torch.tensor([e for _, e in listed], dtype=torch.int32)
            yield f"{case}, rows", got.rows[:n], (entries // slots).int()
            yield f"{case}, weights", got.weights[:n], weights.flatten()[entries]


def _launch(rows: int) -> None:
    ids, addresses = meta(rows, 10, dtype=torch.int32), meta(512, dtype=torch.int64)
    home, costs = meta(48, 512, dtype=torch.int64), meta(48, 7, dtype=torch.float64)
    share_experts(ids, meta(rows, 10), addresses, home, costs, 1, rows * 10)


CHECKS = [Check("share experts", _compare)]
LAUNCHES = [Launch(f"share experts {rows} x 10", lambda rows=rows: _launch(rows)) for rows in (512, 4096)]
