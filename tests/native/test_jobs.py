"""Jobs through shared memory: the bits of the reference, and an answer to whatever is in there."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch

from strata.formats.quants.integer import integer_decode
from strata.native import ExpertPlanes, Experts, JobError, JobMemory, JobServer, JobStatus, Matrix, _core
from strata.native.jobs import Job
from strata.ops.quantized_experts import Expert, quantized_experts
from tests.helpers.quant_blocks import assert_same_bits, random_blocks, random_rows

WIDTH, FF, MAX_ROWS, MAX_ENTRIES = 256, 64, 5, 12
COUNTS = (3, 6)  # experts of each layer


def build(layer: int) -> tuple[Experts, list[Expert]]:
    """A layer's random experts, native and as the reference has them."""
    planes, decoded = [], []
    for role, (n, k, name) in enumerate(((FF, WIDTH, "Q4_K"), (FF, WIDTH, "Q4_K"), (WIDTH, FF, "Q8_0"))):
        seeds = [100 * layer + 10 * role + e for e in range(COUNTS[layer])]
        blocks = [random_blocks(name, n, k, seed=seed, scale=0.001) for seed in seeds]
        planes.append(ExpertPlanes(name, np.stack([Matrix.from_gguf(name, n, k, b).planes for b in blocks])))
        decoded.append([integer_decode(name, b, n, k) for b in blocks])
    return Experts(WIDTH, FF, *planes), [Expert(*parts) for parts in zip(*decoded, strict=True)]


LAYERS = [build(layer) for layer in range(len(COUNTS))]
X = random_rows(40, WIDTH)
# What every expert makes of every row, by the reference.
ONE = np.ones((len(X), 1), dtype=np.float32)
WANT = [
    np.stack([quantized_experts(reference, X, np.full((len(X), 1), e), ONE) for e in range(len(reference))])
    for _, reference in LAYERS
]


@pytest.fixture(params=[1, 3])
def memory(request) -> Iterator[JobMemory]:
    """Served memory, close to the wrap-around of epochs."""
    memory = JobMemory(WIDTH, MAX_ROWS, MAX_ENTRIES, count=2, epoch=2**32 - 100)
    with JobServer([native for native, _ in LAYERS], memory, request.param):
        yield memory


def submit_random(job: Job, rng: np.random.Generator) -> tuple[int, np.ndarray, np.ndarray]:
    """Write and ring a job of random size; returns its layer, experts, and rows of `X`."""
    layer = int(rng.integers(len(LAYERS)))
    num_rows, num_entries = int(rng.integers(MAX_ROWS + 1)), int(rng.integers(MAX_ENTRIES + 1))
    num_entries = num_entries if num_rows else 0
    source = rng.integers(len(X), size=num_rows)
    job.x[:num_rows] = X[source]
    job.experts[:num_entries] = rng.integers(COUNTS[layer], size=num_entries)
    job.rows[:num_entries] = rng.integers(max(num_rows, 1), size=num_entries)
    job.out[:] = np.nan
    job.submit(layer, num_rows, num_entries)
    return layer, job.experts[:num_entries].copy(), source[job.rows[:num_entries]]


def check(job: Job, layer: int, experts: np.ndarray, source: np.ndarray) -> None:
    job.wait()
    assert_same_bits(job.out[: len(experts)], WANT[layer][experts, source])
    assert np.isnan(job.out[len(experts) :]).all()  # nothing beyond the job's entries


def test_thousands_of_jobs_in_two_places_give_the_bits_of_the_reference(memory):
    rng = np.random.default_rng(7)
    pending = None
    for i in range(1000):
        job = memory.jobs[i % 2]
        written = (job, *submit_random(job, rng))
        if pending:
            check(*pending)
        pending = written
    check(*pending)
    assert [job.epoch for job in memory.jobs] == [400, 400]  # went through zero


def test_clients_of_different_places_do_not_wait_for_each_other(memory):
    failures = []

    def client(job: Job, seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(100):
                check(job, *submit_random(job, rng))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(job, seed)) for seed, job in enumerate(memory.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_combined_is_the_layers_own_result(memory):
    native, reference = LAYERS[1]
    rng = np.random.default_rng(1)
    ids = np.stack([rng.permutation(COUNTS[1])[:2] for _ in range(MAX_ROWS)])
    weights = rng.random(ids.shape, dtype=np.float32)
    job = memory.jobs[0]
    job.x[:] = X[:MAX_ROWS]
    job.experts[: ids.size], job.weights[: ids.size] = ids.reshape(-1), weights.reshape(-1)
    job.rows[: ids.size] = np.repeat(np.arange(MAX_ROWS), 2)
    job.submit(1, MAX_ROWS, ids.size)
    job.wait()
    want = quantized_experts(reference, X[:MAX_ROWS], ids, weights)
    assert_same_bits(job.combined(), want)
    at_once = native(*(torch.from_numpy(array) for array in (X[:MAX_ROWS], ids, weights)))
    assert_same_bits(at_once.numpy(), want)
    assert job.seconds() > 0


INT_MAX = 2**31 - 1


@pytest.mark.parametrize(
    ("layer", "num_rows", "num_entries", "status", "detail"),
    [
        (2, 1, 1, JobStatus.BAD_LAYER, 2),
        (-1, 1, 1, JobStatus.BAD_LAYER, -1),
        (0, MAX_ROWS + 1, 1, JobStatus.BAD_ROWS, MAX_ROWS + 1),
        (0, -1, 1, JobStatus.BAD_ROWS, -1),
        (0, 1, MAX_ENTRIES + 1, JobStatus.BAD_ENTRIES, MAX_ENTRIES + 1),
        (0, 1, INT_MAX, JobStatus.BAD_ENTRIES, INT_MAX),
        (0, 1, -INT_MAX, JobStatus.BAD_ENTRIES, -INT_MAX),
        (0, 5, 3, JobStatus.BAD_EXPERT, 2),
        (1, 5, 3, JobStatus.DONE, 0),  # layer 1 has that expert
        (1, 4, 3, JobStatus.BAD_ROW, 1),
        (1, 0, 1, JobStatus.BAD_ROW, 0),
    ],
)
def test_what_is_out_of_range_is_refused_with_its_place(memory, layer, num_rows, num_entries, status, detail):
    job = memory.jobs[1]
    job.x[:] = 0
    job.experts[:3] = 2, 0, 3
    job.rows[:3] = 0, 4, 1
    job.submit(layer, num_rows, num_entries)
    if status is JobStatus.DONE:
        job.wait()
    else:
        with pytest.raises(JobError) as refused:
            job.wait()
        assert (refused.value.status, refused.value.detail) == (status, detail)
    check(job, *submit_random(job, np.random.default_rng(0)))  # and the server goes on


def test_a_header_of_another_version_is_refused(memory):
    job = memory.jobs[0]
    for word in (0, 1):
        right = job.words[word]
        job.words[word] = 99
        job.submit(0, 0, 0)
        with pytest.raises(JobError, match="BAD_MAGIC"):
            job.wait()
        job.words[word] = right


def test_random_bytes_never_crash(memory):
    rng = np.random.default_rng(5)
    job = memory.jobs[0]
    size = memory.layout.bytes
    for i in range(300):
        place = memory.memory[:size]
        place[128:] = rng.integers(256, size=size - 128, dtype=np.uint8)
        small = rng.integers(-1, 4, size=3) if i % 2 else rng.integers(-(2**31), 2**31, size=3)
        if i % 3 == 0:  # lists that are in range, with activations of any bits
            job.experts[:] %= COUNTS[0]
            job.rows[:] = 0
        job.submit(*(int(n) for n in small))
        try:
            job.wait()
        except JobError as error:
            assert error.status not in (JobStatus.BAD_MAGIC, JobStatus.FAILED)
    check(memory.jobs[1], *submit_random(memory.jobs[1], rng))


def test_a_server_that_slept_still_answers(memory):
    rng = np.random.default_rng(2)
    for _ in range(3):
        time.sleep(0.05)  # beyond its spinning
        check(memory.jobs[0], *submit_random(memory.jobs[0], rng))


def test_a_closed_server_leaves_the_doorbell_alone():
    memory = JobMemory(WIDTH, 1, 1, count=1)
    with JobServer([LAYERS[0][0]], memory, 2):
        memory.jobs[0].submit(0, 0, 0)
        memory.jobs[0].wait()
    memory.jobs[0].submit(0, 0, 0)
    with pytest.raises(TimeoutError, match="job 2 is not done"):
        memory.jobs[0].wait(timeout_s=0.05)


def test_parts_of_a_job_start_cache_lines_and_do_not_overlap():
    for rows, entries in ((1, 1), (3, 17), (16, 160)):
        layout = _core.JobLayout(WIDTH + 32, rows, entries)
        starts = (128, layout.experts, layout.rows, layout.weights, layout.x, layout.out, layout.bytes)
        sizes = (
            0,
            4 * entries,
            4 * entries,
            4 * entries,
            4 * rows * (WIDTH + 32),
            4 * entries * (WIDTH + 32),
        )
        assert all(start % 64 == 0 for start in starts)
        assert all(start + size <= end for (start, end), size in zip(pairwise(starts), sizes, strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: JobMemory(WIDTH, 0, 1), "jobs of 0 rows"),
        (
            lambda: JobServer([LAYERS[0][0]], JobMemory(WIDTH + 32, 1, 1)),
            "width of a layer is 256, expected 288",
        ),
        (
            lambda: _core.JobServer((), np.zeros(65, np.uint8), _core.JobLayout(32, 1, 1), 1, []),
            "address of the memory|expected a multiple",
        ),
        (lambda: JobServer([], JobMemory(WIDTH, 1, 1), 1025), "number of threads is 1025"),
    ],
)
def test_impossible_servers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
