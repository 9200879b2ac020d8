"""The processor's share of missed experts, and what the card fetches, against a plain loop."""

from collections.abc import Iterator

import torch

from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.doorbell import JobPlace
from strata.ops.triton.place import HostShare, Misses, fetch_experts, place_misses

_SLOTS = (4096, 8192)
_FETCHED = 8
_WIDTH = 1500  # of rows: a block and a piece
_SIZE = 8192 + 8192 + 320  # bytes of a record: two blocks of a copy, and a piece
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
            place_misses(*on_card, slots, Misses.allocate(take, experts, 1, 64, device), got)
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


def _compare_fetched(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """What a window fetches, and where it finds its experts; of records of the largest size, and of less."""
    generator = torch.Generator().manual_seed(0)
    for case, (rows, used, experts, held) in enumerate(_CASES):
        ids = torch.stack([torch.randperm(experts, generator=generator)[:used] for _ in range(rows)]).int()
        if rows == 3:
            ids[1] = -1
        size, taken = ((_SIZE, 0), (_SIZE - 64, 3))[case % 2]
        records = torch.randint(256, (experts, size), dtype=torch.uint8, generator=generator).to(device)
        addresses = records.data_ptr() + torch.arange(experts, device=device) * size
        slots = torch.tensor([records.data_ptr(), records.data_ptr() + held * size], device=device)
        take = [min(n, taken) for n in range(ids.numel() + 1)]
        misses = Misses.allocate(take, experts, _FETCHED, _SIZE, device)
        weights, share = torch.zeros(rows, used, device=device), HostShare.allocate(ids.numel(), device)
        x = torch.randn(rows, _WIDTH, generator=generator)
        work = x.to(device), torch.zeros(rows, _WIDTH, device=device)
        place_misses(ids.to(device), weights, addresses, slots, misses, share, work)
        fetch_experts(misses, size)
        name = f"{rows} x {used}, {held} of {experts} held, {size} bytes, {taken} taken"
        yield f"{name}, rows", work[1], x
        named = ids.flatten().tolist()
        order = [expert for expert in named if expert >= held]
        order = sorted(dict.fromkeys(order), key=order.count)[taken:][::-1][:_FETCHED]
        want = addresses.cpu().clone()
        for slot, expert in enumerate(order):
            want[expert] = misses.memory[slot].data_ptr()
        named = sorted(set(named) - {-1})
        yield f"{name}, addresses", misses.addresses[named], want[named]
        yield f"{name}, number", misses.num_fetched, torch.tensor([len(order)], dtype=torch.int32)
        yield f"{name}, records", misses.memory[: len(order), :size], records[order]


def _misses(entries: int) -> Misses:
    """Of 512 experts, without memory."""
    sizes = (entries + 1, torch.int32), (512, torch.int64)
    take, addresses = (meta(n, dtype=dtype) for n, dtype in sizes)
    memory, sources = meta(_FETCHED, 1 << 20, dtype=torch.uint8), meta(_FETCHED, dtype=torch.int64)
    return Misses(take, addresses, memory, sources, meta(1, dtype=torch.int32))


def _share(entries: int) -> HostShare:
    return HostShare(*(meta(n, dtype=torch.int32) for n in (entries, 1, entries, entries)), meta(entries))


def _launch(rows: int) -> None:
    share = _share(rows * 10)
    addresses, slots = meta(512, dtype=torch.int64), meta(2, dtype=torch.int64)
    ids = meta(rows, 10, dtype=torch.int32)
    work = meta(rows, 2560), meta(rows, 2560)
    place_misses(ids, meta(rows, 10), addresses, slots, _misses(rows * 10), share, work)


def _launch_fetch(rows: int) -> None:
    """Of a window whose job's place is on the card."""
    entries, one = rows * 10, meta(1, dtype=torch.int32)
    lists = [meta(entries, dtype=torch.int32), meta(entries, dtype=torch.int32), meta(entries)]
    words, x, out = meta(32, dtype=torch.int32), meta(rows, 2560), meta(entries, 2560)
    place = JobPlace(words, *lists, x, out, one)
    fetch_experts(_misses(entries), 1 << 20, (place, 3, rows, _share(entries)))


CHECKS = [Check("place", _compare), Check("fetch experts", _compare_fetched)]
LAUNCHES = [
    *(Launch(f"place {rows} x 10", lambda rows=rows: _launch(rows)) for rows in (1, 16)),
    *(Launch(f"fetch experts {rows} x 10", lambda rows=rows: _launch_fetch(rows)) for rows in (1, 16)),
    Launch("fetch experts alone", lambda: fetch_experts(_misses(10), 1 << 20)),
]
