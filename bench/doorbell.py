"""Time from a job's doorbell to its flag, through the memory that a GPU will write.

    python bench/doorbell.py [--threads N] [--jobs N]

An empty job (nothing but the way there and back) and small jobs of experts in Qwen3-30B-A3B's shape, Q4_K.
The client is Python, which takes a few microseconds itself. It spins, and the server's threads do: with fewer
cores than threads + 1 they take turns, and the times are those of the scheduler.
"""

import argparse
import statistics
import time

import numpy as np

from strata.formats.quants import FORMATS
from strata.native import ExpertPlanes, Experts, JobMemory, JobServer, Matrix, isa

WIDTH, FF, COUNT, FORMAT = 2048, 768, 32, "Q4_K"


def random_experts() -> Experts:
    """Experts of random bits with scales that are numbers."""
    fmt = FORMATS[FORMAT]
    rng = np.random.default_rng(0)
    planes = []
    for n, k in ((FF, WIDTH), (FF, WIDTH), (WIDTH, FF)):
        blocks = rng.integers(0, 256, (n * k // fmt.block_size, fmt.block_bytes), np.uint8)
        blocks[:, :4] = np.array([1e-3, 1e-3], np.float16).view(np.uint8)  # d and dmin
        one = Matrix.from_gguf(FORMAT, n, k, blocks).planes
        planes.append(ExpertPlanes(FORMAT, np.tile(one, (COUNT, 1))))
    return Experts(WIDTH, FF, *planes)


def measure(memory: JobMemory, num_rows: int, num_entries: int, jobs: int) -> tuple[list[float], list[float]]:
    """Seconds of each job as the client and as the server sees it."""
    whole, inside = [], []
    rng = np.random.default_rng(1)
    for i in range(jobs):
        job = memory.jobs[i % len(memory.jobs)]
        job.experts[:num_entries] = rng.integers(COUNT, size=num_entries)
        job.rows[:num_entries] = np.arange(num_entries) % max(num_rows, 1)
        start = time.perf_counter()
        job.submit(0, num_rows, num_entries)
        job.wait()
        whole.append(time.perf_counter() - start)
        inside.append(job.seconds())
    return whole, inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--jobs", type=int, default=1000)
    args = parser.parse_args()
    memory = JobMemory(WIDTH, max_rows=4, max_entries=32)
    for job in memory.jobs:
        job.x[:] = np.random.default_rng(2).standard_normal(job.x.shape, dtype=np.float32)
    with JobServer([random_experts()], memory, args.threads):
        print(f"{isa()} kernels; medians of {args.jobs} jobs")
        for num_rows, num_entries in ((0, 0), (1, 1), (1, 8), (4, 32)):
            whole, inside = measure(memory, num_rows, num_entries, args.jobs)
            print(
                f"{num_rows} rows, {num_entries:2} entries: doorbell to flag "
                f"{statistics.median(whole) * 1e6:8.1f} us (best {min(whole) * 1e6:.1f}), "
                f"in the server {statistics.median(inside) * 1e6:8.1f} us"
            )


if __name__ == "__main__":
    main()
