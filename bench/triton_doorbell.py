"""A card asks the processor for experts from inside a graph: microseconds there and back, and the bits.

    python bench/triton_doorbell.py [--json FILE] [--threads N]

Needs a card and Strata's kernels for the processor. Each figure is the median of replays of a graph of 48
layers, over 48: publish the row, ring, wait. `nothing missed` rings for no entry; `smallest job` is an expert
that takes a microsecond or two; the others are experts in Qwen3.8-Flash-Next's shape, gate and up IQ3_XXS,
down IQ4_NL.
"""

import argparse
import json
import platform
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import triton

from strata.formats.quants import FORMATS
from strata.formats.quants.integer import integer_decode
from strata.hardware.cpu import usable_cpus
from strata.native import ExpertPlanes, Experts, JobServer, Matrix, isa
from strata.ops.quantized_experts import Expert, quantized_experts
from strata.ops.triton.catalog import checks
from strata.ops.triton.checks.doorbell import places_of
from strata.ops.triton.doorbell import JobPlace, publish_entries, ring, wait

LAYERS, REPLAYS = 48, 30
CARD = torch.device("cuda")
SMALL = (256, 64, 4, ("Q8_0", "Q8_0", "Q8_0"))  # width, feed-forward width, experts, formats
REAL = (2560, 640, 64, ("IQ3_XXS", "IQ3_XXS", "IQ4_NL"))


def random_experts(
    width: int, ff: int, count: int, formats: tuple[str, ...]
) -> tuple[Experts, list[list[np.ndarray]], int]:
    """Experts of random bits with sane scales, the blocks of each matrix, and the bytes of one expert."""
    rng = np.random.default_rng(0)
    planes, raw = [], []
    for name, n, k in zip(formats, (ff, ff, width), (width, width, ff), strict=True):
        fmt = FORMATS[name]
        blocks = rng.integers(0, 256, (count, n * k // fmt.block_size, fmt.block_bytes), np.uint8)
        blocks.reshape(-1, fmt.block_bytes).view(fmt.layout)["d"] = 1e-3
        raw.append(list(blocks))
        planes.append(ExpertPlanes(name, np.stack([Matrix.from_gguf(name, n, k, b).planes for b in blocks])))
    num_bytes = sum(blocks[0].nbytes for blocks in raw)
    return Experts(width, ff, *planes), raw, num_bytes


def microseconds(layer: Callable[[int], None]) -> float:
    """Of one layer, in a graph of all."""
    for i in range(2):
        layer(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(LAYERS):
            layer(i)
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times) * 1e3 / LAYERS


def jobs_in_a_graph(shape: tuple, entries: list[int], threads: int) -> dict[int, float]:
    """Microseconds of a layer by its number of missed experts; checks the results of the last."""
    width, _, count, formats = shape
    native, raw, _ = random_experts(*shape)
    memory, places = places_of(width, 1, 16, 2, CARD)
    error = torch.zeros(1, dtype=torch.int32, device=CARD)
    x = torch.randn(1, width, device=CARD)
    # Every layer misses other experts, as in a model: their weights come from memory, not from a cache.
    lists = [torch.randperm(count, device=CARD)[:16].int() for _ in range(LAYERS)]
    lists = [torch.cat([ids, ids])[:16].contiguous() for ids in lists]
    rows, weights = torch.zeros(16, dtype=torch.int32, device=CARD), torch.ones(16, device=CARD)
    one = torch.ones(1, dtype=torch.int32, device=CARD)
    found = {}
    with JobServer([native], memory, threads):
        for num in entries:
            misses = torch.tensor([num], dtype=torch.int32, device=CARD)

            def layer(i: int, misses: torch.Tensor = misses) -> None:
                place: JobPlace = places[i % 2]
                publish_entries(place, x, rows, one)
                ring(place, 0, 1, misses, lists[i], rows, weights)
                wait(place, misses, error)

            found[num] = microseconds(layer)
            assert error.item() == 0, f"error {error.item()}"
        ids = lists[LAYERS - 1][:num].cpu().numpy()
        dims = list(zip(formats, (shape[1], shape[1], width), (width, width, shape[1]), strict=True))
        reference = [
            Expert(*(integer_decode(f, raw[m][e], n, k) for m, (f, n, k) in enumerate(dims))) for e in ids
        ]
        want = quantized_experts(
            reference,
            np.repeat(x.cpu().numpy(), num, 0),
            np.arange(num)[:, None],
            np.ones((num, 1), np.float32),
        )
        got = places[(LAYERS - 1) % 2].out[:num].numpy()
        assert np.array_equal(got.view(np.uint32), want.view(np.uint32)), "the bits differ"
    return found


@triton.jit
def _nothing(x):
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=len(usable_cpus()))
    args = parser.parse_args()
    for check in checks():
        if check.name in ("intrinsics", "doorbell"):
            for outcome in check.run(CARD):
                print(f"{check.name}, {outcome.case}: {'same bits' if outcome.passed else 'DIFFERS'}")
                assert outcome.passed
    results = []

    def report(name: str, us: float, **more: float) -> None:
        results.append({"name": name, "us": round(us, 2), **more})
        print(f"{name:40} {us:8.2f} us  " + "  ".join(f"{key} {value:.1f}" for key, value in more.items()))

    one = torch.zeros(1, dtype=torch.int32, device=CARD)
    report("empty kernel", microseconds(lambda i: _nothing[(1,)](one)))
    small = jobs_in_a_graph(SMALL, [0, 1], 1)
    report("nothing missed", small[0])
    report("smallest job, 1 thread", small[1])
    num_bytes = random_experts(*REAL[:2], 1, REAL[3])[2]
    for num, us in jobs_in_a_graph(REAL, [1, 2, 4, 8], args.threads).items():
        report(f"{num} experts, {args.threads} threads", us, weights_gb_per_s=num * num_bytes / us / 1e3)
    if args.json:
        machine = {"card": torch.cuda.get_device_name(), "cpu": platform.processor() or platform.machine()}
        versions = {"torch": torch.__version__, "triton": triton.__version__, "kernels": isa()}
        args.json.write_text(
            json.dumps({"machine": machine, "versions": versions, "results": results}, indent=1)
        )


if __name__ == "__main__":
    main()
