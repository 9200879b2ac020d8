"""How fast memory and disk are, by trying; a card's probes are in `ops/triton/bandwidth.py`."""

import mmap
import os
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

_TRIES = 4  # the best counts: whatever else the machine does only slows a try
_BLOCK = 8 << 20  # of a large read
_PAGE = 4096
_LARGE_IN_FLIGHT, _PAGES_IN_FLIGHT = 8, 64
_PAGES_S = 0.5


def memory_bandwidth(num_threads: int, num_bytes: int = 1 << 30) -> float:
    """Bytes per second at which threads together read memory.

    Args:
        num_threads: of which each reads a part of its own.
        num_bytes: of all parts; many times what the processor's caches hold.
    """
    part = max(num_bytes // num_threads // 8, 1)
    with ThreadPoolExecutor(num_threads) as threads:
        # Written first: pages that nobody has written are all one page of zeros.
        parts = list(threads.map(lambda i: np.full(part, i + 1, np.int64), range(num_threads)))
        best = min(_seconds(lambda: list(threads.map(np.add.reduce, parts))) for _ in range(_TRIES))
    return 8 * part * num_threads / best


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def disk_bandwidth(folder: Path, num_bytes: int = 512 << 20) -> tuple[float, float] | None:
    """Bytes per second of large reads, and 4 KiB reads per second at random places, past the page cache.

    Writes a file of `num_bytes` into `folder` and deletes it. None where reads cannot go past the cache:
    outside Linux, and on file systems that live in memory.

    Raises:
        OSError: the folder cannot be written, or has no room.
    """
    if not hasattr(os, "O_DIRECT"):
        return None
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".strata-probe-") as file:
        block = random.randbytes(_BLOCK)  # a drive may compress, and zeros best of all
        for _ in range(max(num_bytes // _BLOCK, 1)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        try:
            descriptor = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return None
        try:
            return _large_reads(descriptor), _page_reads(descriptor)
        finally:
            os.close(descriptor)


def _large_reads(descriptor: int) -> float:
    size = os.fstat(descriptor).st_size
    with ThreadPoolExecutor(_LARGE_IN_FLIGHT) as threads:

        def read(worker: int) -> None:
            with mmap.mmap(-1, _BLOCK) as buffer:  # a page's beginning, as O_DIRECT wants it
                for start in range(worker * _BLOCK, size, _LARGE_IN_FLIGHT * _BLOCK):
                    os.preadv(descriptor, [buffer], start)

        return size / _seconds(lambda: list(threads.map(read, range(_LARGE_IN_FLIGHT))))


def _page_reads(descriptor: int) -> float:
    pages = os.fstat(descriptor).st_size // _PAGE
    end = time.perf_counter() + _PAGES_S
    with ThreadPoolExecutor(_PAGES_IN_FLIGHT) as threads:

        def read(worker: int) -> int:
            choose = random.Random(worker)
            with mmap.mmap(-1, _PAGE) as buffer:
                done = 0
                while time.perf_counter() < end:
                    os.preadv(descriptor, [buffer], choose.randrange(pages) * _PAGE)
                    done += 1
            return done

        start = time.perf_counter()
        done = sum(threads.map(read, range(_PAGES_IN_FLIGHT)))
        return max(done, 1) / (time.perf_counter() - start)
