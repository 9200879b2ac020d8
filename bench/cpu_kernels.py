"""Bytes of weights per second that the native kernels take in, beside the memory's own speed.

    python bench/cpu_kernels.py [--threads N] [--formats Q4_K,...] [--json FILE]

For each format: packing from GGUF blocks, in GB/s of blocks and beside one thread's copy of them; products
with 1 row (decode), in GB/s of plane bytes, and with a batch (prefill), in 1e9 multiply-adds a second.
Medians, from matrices larger than the caches.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from strata.formats.quants import FORMATS
from strata.native import Activations, Matrix, _core, isa, set_num_threads
from strata.native.matrix import pack

FLOAT_TYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
}
NUM_OUT, NUM_IN, BATCH = 16384, 4096, 128


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Median wall time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def read_speed(threads: int) -> float:
    """GB/s that `threads` threads read from memory: torch's sum of int64, which vectorises."""
    torch.set_num_threads(threads)
    numbers = torch.ones(1 << 25, dtype=torch.int64)  # 256 MiB
    return numbers.nbytes / seconds(numbers.sum, 7) / 1e9


def random_blocks(name: str) -> np.ndarray:
    """GGUF blocks of a `[NUM_OUT, NUM_IN]` matrix: a random part, repeated."""
    rng = np.random.default_rng(0)
    if name in FLOAT_TYPES:  # as random bytes they would be numbers that no model has
        part = torch.from_numpy(rng.standard_normal(NUM_IN * 64, dtype=np.float32))
        part = part.to(FLOAT_TYPES[name]).view(torch.uint8).numpy()
    else:
        fmt = FORMATS[name]
        part = rng.integers(0, 256, NUM_IN * 64 // fmt.block_size * fmt.block_bytes, np.uint8)
    return np.tile(part, NUM_OUT // 64)


def measure_packing(name: str, blocks: np.ndarray, planes: np.ndarray) -> tuple[float, float]:
    """Seconds to pack the blocks, and to copy them to the same place; taken in turns."""
    packs, copies = [], []
    for _ in range(5):
        packs.append(seconds(lambda: pack(name, NUM_OUT, NUM_IN, blocks, planes), 1))
        copies.append(seconds(lambda: np.copyto(planes[: blocks.nbytes], blocks), 1))
    pack(name, NUM_OUT, NUM_IN, blocks, planes)
    return statistics.median(packs), statistics.median(copies)


def measure(name: str) -> dict[str, float | str]:
    """One line of the table."""
    blocks = random_blocks(name)
    matrix = Matrix.from_gguf(name, NUM_OUT, NUM_IN, blocks)
    packing, copying = measure_packing(name, blocks, matrix.planes)
    one, many = Activations(torch.randn(1, NUM_IN)), Activations(torch.randn(BATCH, NUM_IN))
    row = seconds(lambda: matrix.multiply(one), 9)
    batch = seconds(lambda: matrix.multiply(many), 3)
    return {
        "format": name,
        "pack_gb_per_s": blocks.nbytes / packing / 1e9,
        "pack_to_copy": copying / packing,
        "row_gb_per_s": matrix.planes.nbytes / row / 1e9,
        "batch_gmac_per_s": BATCH * NUM_OUT * NUM_IN / batch / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--formats", default=",".join(_core.formats()))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    set_num_threads(args.threads)
    memory = read_speed(args.threads)
    print(f"{isa()} kernels, {args.threads} threads, memory reads {memory:.1f} GB/s")
    results = []
    for name in args.formats.split(","):
        result = measure(name)
        results.append(result)
        print(
            f"{name:8} pack {result['pack_gb_per_s']:5.2f} GB/s ({result['pack_to_copy']:4.2f} of a copy)  "
            f"1 row {result['row_gb_per_s']:5.1f} GB/s ({result['row_gb_per_s'] / memory:4.2f} of memory)  "
            f"{BATCH} rows {result['batch_gmac_per_s']:5.0f} GMAC/s",
            flush=True,
        )
    if args.json:
        machine = {"processor": platform.processor() or platform.machine(), "isa": isa()}
        report = {"machine": machine, "threads": args.threads, "memory_gb_per_s": memory, "results": results}
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
