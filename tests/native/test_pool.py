"""The worker pool: every index once, threads where they belong, and a word about one that stops."""

import os
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from strata.hardware.cpu import parse_cpu_list, usable_cpus
from strata.native import _core, num_threads, set_num_threads
from strata.native.matrix import empty_planes

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture(autouse=True)
def threads_as_before():
    before = num_threads()
    yield
    set_num_threads(before)


def ranges(n: int, grain: int) -> list[tuple[int, int]]:
    """The ranges that one loop was cut into."""
    taken: list[tuple[int, int]] = []
    _core.parallel_for(n, grain, lambda begin, end: taken.append((begin, end)))
    return sorted(taken)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_index_is_computed_once(count):
    set_num_threads(count)
    for n in (1, 2, 7, 64, 1000):
        for grain in (1, 3, 64):
            taken = ranges(n, grain)
            assert [i for begin, end in taken for i in range(begin, end)] == list(range(n)), (n, grain)
            assert all(end - begin >= grain for begin, end in taken[:-1]), (n, grain)


def test_thousands_of_small_loops():
    set_num_threads(4)
    for n in range(3000):
        assert sum(end - begin for begin, end in ranges(n % 17 + 2, 1)) == n % 17 + 2


def test_slow_cores_take_small_ranges():
    _core.set_num_threads(2, [((), 1.0), ((), 0.25)])
    sizes: dict[int, int] = {}  # of the first range that a thread took
    both = threading.Barrier(2)

    def body(begin: int, end: int) -> None:
        if threading.get_ident() not in sizes:
            sizes[threading.get_ident()] = end - begin
            both.wait(timeout=60)

    _core.parallel_for(10_000, 1, body)
    caller, worker = sizes.pop(threading.get_ident()), sizes.popitem()[1]
    assert caller > 3 * worker > 0


def test_ranges_shrink_towards_the_end():
    set_num_threads(2)
    sizes = [end - begin for begin, end in ranges(1000, 1)]
    assert sizes[0] > 50 and max(sizes[-5:]) == 1


def worker_affinities(count: int) -> list[set[int]]:
    """The CPUs that each of `count` workers may run on. A thread pins itself, then takes its name."""
    for _ in range(1000):
        statuses = [path.read_text() for path in Path("/proc/self/task").glob("*/status")]
        workers = [text for text in statuses if text.startswith("Name:\tstrata-worker\n")]
        if len(workers) == count:
            break
        time.sleep(0.01)
    assert len(workers) == count
    return [parse_cpu_list(re.search(r"Cpus_allowed_list:\t(.*)", text)[1]) for text in workers]


@linux
def test_a_worker_keeps_to_its_core_and_the_caller_stays_free():
    before = os.sched_getaffinity(0)
    cores = usable_cpus()
    set_num_threads(len(cores) + 1)
    pinned = Counter(map(frozenset, worker_affinities(len(cores))))
    # The caller has the first core; the thread too many goes where it likes.
    assert pinned == Counter([frozenset(core.cpus) for core in cores[1:]] + [frozenset(before)])
    ranges(100, 1)
    assert os.sched_getaffinity(0) == before


@linux
def test_workers_leave_with_the_pool():
    set_num_threads(5)
    worker_affinities(4)
    set_num_threads(1)
    worker_affinities(0)


@linux
def test_idle_workers_sleep():
    set_num_threads(3)
    ranges(100, 1)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.05


def test_a_caller_that_waits_for_a_slow_worker_sleeps():
    set_num_threads(2)
    main, slow = threading.get_ident(), threading.Event()

    def body(begin: int, end: int) -> None:
        if threading.get_ident() == main:
            slow.wait(60)  # until the worker has a range too
        elif not slow.is_set():
            slow.set()
            time.sleep(0.3)

    before = time.process_time()
    _core.parallel_for(64, 1, body)
    assert slow.is_set() and time.process_time() - before < 0.1


@pytest.fixture
def one_cpu():
    """This thread, and those it starts, on a single CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def packing_seconds() -> float:
    """CPU time of twenty loops of some 100 us."""
    num_out, num_in = 4096, 512
    blocks = np.zeros(num_out * num_in // 32 * 18, np.uint8)
    planes = empty_planes(_core.plane_bytes("Q4_0", num_out, num_in))
    planes[:] = 0  # the pages are there
    start = time.process_time()
    for _ in range(20):
        _core.pack("Q4_0", num_out, num_in, blocks, planes)
    return time.process_time() - start


@linux
def test_threads_that_share_a_cpu_do_not_spin_for_each_other(one_cpu):
    # Measured in CPU time, which other programs do not change: waiting must cost next to none.
    times: dict[int, list[float]] = {1: [], 2: [], 4: []}
    for _ in range(9):
        for count in times:
            _core.set_num_threads(count)
            times[count].append(packing_seconds())
    best = {count: min(values) for count, values in times.items()}
    assert max(best.values()) < 1.5 * best[1], best


@linux
def test_a_worker_that_stops_is_reported_with_its_place(capfd):
    _core.set_num_threads(2, [], stall_s=0.2)
    main, stuck = threading.get_ident(), threading.Event()

    def body(begin: int, end: int) -> None:
        if threading.get_ident() == main:
            stuck.wait(60)  # until the worker has a range too
        elif not stuck.is_set():
            stuck.set()
            time.sleep(0.6)

    _core.parallel_for(64, 1, body)
    time.sleep(0.4)  # the watchdog looks every 0.05 s
    report, end = capfd.readouterr().err.splitlines()
    assert re.fullmatch(
        r"strata: worker 1 \(thread \d+, CPU \d+, state S\) has been in items \d+ to \d+ of the loop at "
        r"bind_pool\.cpp:\d+ for 0\.2 s",
        report,
    )
    assert end == "strata: worker 1 goes on"


def test_an_impossible_number_of_threads_leaves_the_pool_as_it_was():
    set_num_threads(2)
    with pytest.raises(ValueError, match="number of threads is 1025, expected 1 to 1024"):
        set_num_threads(1025)
    assert num_threads() == 2
