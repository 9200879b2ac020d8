"""Jobs rung by the card and computed by the processor: the bits of the reference."""

from collections.abc import Iterator

import numpy as np
import torch

from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.doorbell import (
    TIMED_OUT,
    JobPlace,
    job_place,
    publish_entries,
    ring,
    wait,
)
from strata.ops.triton.place import HostShare, Misses, fetch_experts

WIDTH, FF, NUM_EXPERTS, MAX_ROWS, MAX_ENTRIES = 256, 64, 5, 4, 24
CASES = ((1, 3), (4, 17), (2, 0), (3, 24), (1, 1))  # rows and entries of jobs
BAD_EXPERT = 5  # a status of docs/JOBS.md


def served_layer() -> tuple:
    """A layer's random experts in Q8_0: as the server takes them, and as the reference does."""
    from strata.formats.quants.integer import integer_decode
    from strata.native import ExpertPlanes, Experts, Matrix
    from strata.ops.quantized_experts import Expert

    rng = np.random.default_rng(3)
    planes, decoded = [], []
    for n, k in ((FF, WIDTH), (FF, WIDTH), (WIDTH, FF)):
        raw = rng.integers(0, 256, (NUM_EXPERTS, n * k // 32, 34), dtype=np.uint8)
        raw[:, :, :2] = np.array([1e-3], np.float16).view(np.uint8)  # the block's scale
        planes.append(ExpertPlanes("Q8_0", np.stack([Matrix.from_gguf("Q8_0", n, k, b).planes for b in raw])))
        decoded.append([integer_decode("Q8_0", b, n, k) for b in raw])
    return Experts(WIDTH, FF, *planes), [Expert(*parts) for parts in zip(*decoded, strict=True)]


def places_of(width: int, max_rows: int, max_entries: int, count: int, device: torch.device) -> tuple:
    """Mapped memory for `count` jobs: what a `JobServer` takes, and the places as the card sees them."""
    from strata.native import JobMemory, _core

    epoch = -2  # so that it goes through zero
    size = _core.JobLayout(width, max_rows, max_entries).bytes
    mapped = torch.empty(count * size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = JobMemory(width, max_rows, max_entries, count, epoch % 2**32, mapped.numpy())
    places = [
        job_place(part, memory.layout, torch.full((1,), epoch, dtype=torch.int32, device=device))
        for part in mapped.view(count, size)
    ]
    return memory, places


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    from strata.native import JobServer
    from strata.ops.quantized_experts import quantized_experts

    native, reference = served_layer()
    memory, places = places_of(WIDTH, MAX_ROWS, MAX_ENTRIES, 2, device)
    rng = np.random.default_rng(4)
    error = torch.zeros(1, dtype=torch.int32, device=device)
    with JobServer([native], memory, 2):
        for i, (num_rows, num_entries) in enumerate(CASES):
            x = rng.standard_normal((num_rows, WIDTH)).astype(np.float32)
            experts = rng.integers(NUM_EXPERTS, size=MAX_ENTRIES).astype(np.int32)
            rows = rng.integers(num_rows, size=MAX_ENTRIES).astype(np.int32)
            got = run_job(places[i % 2], x, num_entries, experts, rows, error, device, fetches=i % 2 == 1)
            one = np.ones((num_entries, 1), np.float32)
            want = quantized_experts(reference, x[rows[:num_entries]], experts[:num_entries, None], one)
            yield f"{num_rows} rows, {num_entries} entries", got, torch.from_numpy(want)
        yield _compare_few_of_many(places[1], reference, error, device)
        yield "no error", error, torch.zeros(1, dtype=torch.int32)
        experts[1] = NUM_EXPERTS
        run_job(places[0], x, 2, experts, rows, error, device)
        yield "a refused job", error, torch.tensor([BAD_EXPERT], dtype=torch.int32)
    error.zero_()
    _publish(places[1], torch.zeros(1, WIDTH, device=device))
    run_job(places[1], x, 1, experts, rows, error, device, max_polls=50)
    yield "a server that is gone", error, torch.tensor([TIMED_OUT], dtype=torch.int32)


def _compare_few_of_many(
    place: JobPlace, reference: list, error: torch.Tensor, device: torch.device
) -> tuple[str, torch.Tensor, torch.Tensor]:
    """A prompt's job: a row of its own for each entry."""
    from strata.ops.quantized_experts import quantized_experts

    rng = np.random.default_rng(5)
    x = rng.standard_normal((50, WIDTH)).astype(np.float32)
    experts, rows = (rng.integers(n, size=MAX_ROWS).astype(np.int32) for n in (NUM_EXPERTS, 50))
    count = torch.tensor([MAX_ROWS - 1], dtype=torch.int32, device=device)
    publish_entries(place, torch.from_numpy(x).to(device), torch.from_numpy(rows).to(device), count)
    number = torch.arange(MAX_ROWS, dtype=torch.int32, device=device)
    ones = torch.ones(MAX_ROWS, device=device)
    ring(place, 0, MAX_ROWS, count, torch.from_numpy(experts).to(device), number, ones)
    wait(place, count, error, 10_000_000)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    used = slice(MAX_ROWS - 1)
    one = np.ones((MAX_ROWS - 1, 1), np.float32)
    want = quantized_experts(reference, x[rows[used]], experts[used, None], one)
    return "few of many rows", place.out[used].clone(), torch.from_numpy(want)


def _publish(place: JobPlace, x: torch.Tensor) -> None:
    """All rows, each once."""
    rows = torch.arange(len(x), dtype=torch.int32, device=x.device)
    publish_entries(place, x, rows, torch.full_like(rows[:1], len(x)))


def run_job(
    place: JobPlace, x: np.ndarray, num_entries: int, experts: np.ndarray, rows: np.ndarray,
    error: torch.Tensor, device: torch.device, max_polls: int = 10_000_000, fetches: bool = False,
) -> torch.Tensor:  # fmt: skip
    """One job from lists to results, float32 `[num_entries, width]`; with `fetches` rung as windows do."""
    count = torch.tensor([num_entries], dtype=torch.int32, device=device)
    lists = [torch.from_numpy(part).to(device) for part in (experts, rows)]
    lists.append(torch.ones(len(experts), device=device))
    _publish(place, torch.from_numpy(x).to(device))
    if fetches:
        nothing = Misses.allocate([0], 1, 1, 64, device)
        fetch_experts(nothing, 64, (place, 0, len(x), HostShare(count, count, *lists)))
    else:
        ring(place, 0, len(x), count, *lists)
    wait(place, count, error, max_polls)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return place.out[:num_entries].clone()


def _launch() -> None:
    """A job of a window of 16 rows of Qwen3.8-Flash-Next."""
    width, max_rows, max_entries = 2560, 16, 160
    lists = [meta(max_entries, dtype=torch.int32), meta(max_entries, dtype=torch.int32), meta(max_entries)]
    one = meta(1, dtype=torch.int32)
    x, out = meta(max_rows, width), meta(max_entries, width)
    place = JobPlace(meta(32, dtype=torch.int32), *lists, x, out, one)
    ring(place, 3, max_rows, one, *lists)
    wait(place, one, one)


def _launch_prompt() -> None:
    """A job of a prompt of 512 rows."""
    width, rows, entries = 2560, 512, 1024
    lists = [meta(entries, dtype=torch.int32), meta(entries, dtype=torch.int32), meta(entries)]
    one = meta(1, dtype=torch.int32)
    place = JobPlace(meta(32, dtype=torch.int32), *lists, meta(entries, width), meta(entries, width), one)
    publish_entries(place, meta(rows, width), lists[1], one)
    ring(place, 3, entries, one, *lists)


CHECKS = [Check("doorbell", _compare)]
LAUNCHES = [Launch("doorbell", _launch), Launch("doorbell prompt", _launch_prompt)]
