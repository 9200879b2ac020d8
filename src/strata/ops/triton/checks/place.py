"""The processor's share of missed experts against a plain loop."""

from collections.abc import Iterator

import torch

from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.place import HostShare, place_misses

_SLOTS = (4096, 8192)
_CASES = ((1, 10, 64, 0), (1, 10, 64, 40), (3, 4, 12, 3), (16, 10, 40, 20), (2, 3, 8, 8))


def _reference(ids: torch.Tensor, missed: set[int], take: list[int]) -> list[tuple[int, int]]:
    """Entries and experts of the processor's share, ascending."""
    entries = list(enumerate(ids.flatten().tolist()))
    experts = [expert for _, expert in entries if expert in missed]
    order = sorted(dict.fromkeys(experts), key=experts.count)  # stable: of equal ones the first
    taken = order[: take[len(order)]]
    return [(entry, expert) for entry, expert in entries if expert in taken]


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for rows, used, experts, held in _CASES:
        ids = torch.stack([torch.randperm(experts, generator=generator)[:used] for _ in range(rows)]).int()
        if rows == 3:
            ids[1] = -1
        weights = torch.rand(rows, used, generator=generator)
        addresses = torch.arange(experts) * 8 + _SLOTS[1]
        addresses[:held] = torch.arange(held) * 8 + _SLOTS[0]
        for share in (0.0, 0.5, 1.0):
            take = [round(share * n) for n in range(ids.numel() + 1)]
            want = _reference(ids, set(range(held, experts)), take)
            got = HostShare.allocate(ids.numel(), device)
            on_card = (x.to(device) for x in (ids, weights, addresses))
            slots = torch.tensor(_SLOTS, device=device)
            place_misses(*on_card, slots, torch.tensor(take, dtype=torch.int32, device=device), got)
            host_entry = torch.full((ids.numel(),), -1, dtype=torch.int32)
            for number, (entry, _) in enumerate(want):
                host_entry[entry] = number
            case = f"{rows} x {used}, {held} of {experts} held, share {share}"
            yield case, got.host_entry, host_entry
            yield f"{case}, number", got.num_entries, torch.tensor([len(want)], dtype=torch.int32)
            n = len(want)
            yield f"{case}, experts", got.experts[:n], torch.tensor([e for _, e in want], dtype=torch.int32)
            yield (
                f"{case}, rows",
                got.rows[:n],
                torch.tensor([e // used for e, _ in want], dtype=torch.int32),
            )
            yield f"{case}, weights", got.weights[:n], weights.flatten()[[e for e, _ in want]]


def _launch(rows: int) -> None:
    share = HostShare(
        *(meta(n, dtype=torch.int32) for n in (rows * 10, 1, rows * 10, rows * 10)), meta(rows * 10)
    )
    take, addresses = meta(rows * 10 + 1, dtype=torch.int32), meta(512, dtype=torch.int64)
    slots = meta(2, dtype=torch.int64)
    place_misses(meta(rows, 10, dtype=torch.int32), meta(rows, 10), addresses, slots, take, share)


CHECKS = [Check("place", _compare)]
LAUNCHES = [Launch(f"place {rows} x 10", lambda rows=rows: _launch(rows)) for rows in (1, 16)]
