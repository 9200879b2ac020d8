"""What streams, norms, delta nets, routers and float products cost on a card, beside its memory's speed.

    python bench/triton_layers.py [--json FILE]

First the checks of these kernels (what `strata doctor --kernels` runs), then each op at the shapes of
Qwen3.8-Flash-Next and Qwen3.6-35B-A3B: the mean over a replayed graph of 20 calls or more, each on weights
and state of its own so that together they exceed the caches. Bytes are those of weights and state.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from strata.formats.quants import FORMATS
from strata.formats.quants.planes import plane_bytes
from strata.ops.triton.catalog import checks
from strata.ops.triton.delta_net import DeltaNetState, DeltaNetWeights, gated_delta_net
from strata.ops.triton.embedding import EmbeddingTable, embed
from strata.ops.triton.float_matmul import float_matmul, workspace_size
from strata.ops.triton.hyper_connection import HyperConnectionWeights, read
from strata.ops.triton.ngram import NgramHash, NgramState, NgramWeights, add_ngram_memory, ngram_rows
from strata.ops.triton.norm import add_rms_norm
from strata.ops.triton.quantized_matmul import PlaneMatrix, codebook
from strata.ops.triton.router import route
from strata.ops.triton.streams import QuantizedHyperConnection
from strata.ops.triton.streams import read as read_quantized
from strata.ops.triton.workspace import Workspace

PARTS = (
    "float_matmul", "hyper_connection", "streams", "delta_net", "norm", "router", "ngram", "embedding"
)  # fmt: skip
ROTATING_BYTES = 256 << 20
DEVICE = torch.device("cuda")


@dataclass(frozen=True, slots=True)
class Result:
    """Time of one call, the bytes of weights and state that it moves, and its multiply-adds."""

    name: str
    rows: int
    microseconds: float
    gigabytes_per_second: float
    of_copy: float
    teraflops: float


def run_checks() -> int:
    """Print what fails; the number of failed cases."""
    failed = 0
    for check in checks():
        if check.name.partition(",")[0] not in PARTS:
            continue
        outcomes = list(check.run(DEVICE))
        bad = [outcome for outcome in outcomes if not outcome.passed]
        failed += len(bad)
        print(f"{'FAILED' if bad else 'ok':6} {check.name}: {len(outcomes)} cases", *bad, sep="\n  ")
    return failed


def microseconds(calls: list[Callable[[], object]]) -> float:
    """Mean time of a call in a replayed graph of `calls`."""
    calls[0]()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    for _ in range(5):
        graph.replay()
    end.record()
    end.synchronize()
    del kept
    return begin.elapsed_time(end) * 1000 / 5 / len(calls)


def copy_speed() -> float:
    """GB/s of a copy in the card's memory, bytes read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.numel() / microseconds([lambda: target.copy_(source)] * 4) / 1000


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


class Bench:
    """Collects results."""

    def __init__(self):
        self.copy = copy_speed()
        self.results: list[Result] = []

    def add(
        self, name: str, rows: int, make: Callable[[], Callable[[], object]], moved: int, products: int = 0
    ) -> None:
        """Time what `make` returns, for as many calls of it as exceed the caches.

        Args:
            name: of the op.
            rows: of a call.
            make: a call on new weights and state.
            moved: bytes of a call.
            products: multiply-adds of a call.
        """
        copies = 2 if rows >= 512 else max(20, ROTATING_BYTES // max(moved, 1 << 22))
        time = microseconds([make() for _ in range(copies)])
        speed = moved / time / 1000
        result = Result(name, rows, time, speed, speed / self.copy, 2 * products / time / 1e6)
        self.results.append(result)
        print(
            f"{name:44} {rows:5} rows {time:9.2f} us {speed:7.0f} GB/s {result.of_copy:5.0%} of a copy "
            f"{result.teraflops:6.1f} TFLOP/s",
            flush=True,
        )


def bench_hyper_connection(bench: Bench) -> None:
    streams, width, low = 4, 2560, 320
    wide = streams * width
    size = 2 * wide * (2 * low + streams)

    def make(rows: int):
        weights = HyperConnectionWeights(
            random(wide), random(low + streams, wide, dtype=torch.bfloat16),
            random(wide, low, dtype=torch.bfloat16), streams, 1e-6,
        )  # fmt: skip
        workspace = Workspace(DEVICE, *weights.workspace_size())
        inputs = random(rows, streams, width), random(rows, width), random(rows, streams)
        quantized = torch.empty(rows, width, dtype=torch.int8, device=DEVICE), random(rows, width // 128)
        residual, output, inject = inputs
        return lambda: read(residual, weights, workspace, output, inject, quantized)

    for rows in (1, 4, 16, 4096):
        products = rows * wide * (2 * low + streams)
        bench.add(
            "hyper-connection: write, read, quantise", rows, lambda rows=rows: make(rows), size, products
        )


def bench_quantized_hyper_connection(bench: Bench) -> None:
    """The same with `down`, `inject` and `up` as Q8_0."""
    streams, width, low = 4, 2560, 320
    wide = streams * width
    size = plane_bytes("Q8_0", low + 16, wide) + plane_bytes("Q8_0", wide, low)

    def matrix(num_out: int, num_in: int) -> PlaneMatrix:
        planes = torch.randint(256, (plane_bytes("Q8_0", num_out, num_in),), dtype=torch.uint8, device=DEVICE)
        return PlaneMatrix("Q8_0", num_out, num_in, planes, codebook("Q8_0", DEVICE))

    def make(rows: int):
        weights = QuantizedHyperConnection(
            random(streams, width), matrix(low + 16, wide), matrix(wide, low), low, 1e-6
        )
        workspace = Workspace(DEVICE, 1, 1)
        workspace.make_room(2 * wide * (low + 16))
        inputs = random(rows, streams, width), random(rows, width), random(rows, streams)
        quantized = torch.empty(rows, width, dtype=torch.int8, device=DEVICE), random(rows, width // 128)
        residual, output, inject = inputs
        return lambda: read_quantized(residual, weights, workspace, output, inject, quantized)

    for rows in (1, 4, 16, 4096):
        products = rows * wide * (2 * low + streams)
        bench.add("hyper-connection in Q8_0: the same", rows, lambda rows=rows: make(rows), size, products)


def bench_float_matmul(bench: Bench) -> None:
    def make(rows: int, shape: tuple[int, int], dtype: torch.dtype):
        x, weight = random(rows, shape[1]), random(*shape, dtype=dtype)
        workspace = Workspace(DEVICE, *workspace_size(*shape))
        return lambda: float_matmul(x, weight, workspace)

    shape = (513, 2560)
    for dtype in (torch.bfloat16, torch.float32):
        for rows in (1, 4, 16, 4096):
            bench.add(
                f"float_matmul {shape[0]} x {shape[1]} {dtype}".replace("torch.", ""),
                rows,
                lambda rows=rows, dtype=dtype: make(rows, shape, dtype),
                shape[0] * shape[1] * dtype.itemsize,
                rows * shape[0] * shape[1],
            )


def bench_delta_net(bench: Bench) -> None:
    dim, key_heads = 128, 16

    def make(rows: int, heads: int, commit: bool):
        channels = (2 * key_heads + heads) * dim
        weights = DeltaNetWeights(
            random(channels, 4), -random(heads).exp(), random(heads), random(dim), 1e-6, key_heads, True, True
        )
        state = DeltaNetState.zeros(1, weights, dim, DEVICE)
        inputs = [random(rows, n) for n in (channels, heads * dim, heads, heads)]
        lane, accepted = integers(*[0] * rows), integers(0 if commit else rows)
        quantized = torch.empty(rows, heads * dim, dtype=torch.int8, device=DEVICE), random(rows, heads)
        return lambda: gated_delta_net(*inputs, weights, state, lane, accepted, commit, quantized)

    for heads in (48, 32):
        size = 2 * 4 * heads * dim * dim
        for rows in (1, 4, 16):
            make_window = lambda rows=rows, heads=heads: make(rows, heads, False)  # noqa: E731
            bench.add(f"delta net window, {heads} heads, all accepted", rows, make_window, size)
        for rows in (512, 4096):
            make_prompt = lambda rows=rows, heads=heads: make(rows, heads, True)  # noqa: E731
            products = 4 * rows * heads * dim * dim
            bench.add(f"delta net prompt, {heads} heads", rows, make_prompt, size, products)


def bench_small(bench: Bench) -> None:
    width, experts = 2560, 512

    def make_norm(rows: int):
        x, y, weight = random(rows, width), random(rows, width), random(width)
        quantized = torch.empty(rows, width, dtype=torch.int8, device=DEVICE), random(rows, width // 128)
        return lambda: add_rms_norm(x, y, weight, 1e-6, quantized)

    def make_route(rows: int):
        logits, lane, counts = random(rows, experts), integers(*[0] * rows), integers(*[0] * experts)
        gate = random(rows, width), random(1, width)
        return lambda: route(logits, 10, True, lane, counts, shared_gate=gate)

    for rows in (1, 16, 4096):
        bench.add("add_rms_norm 2560, quantise", rows, lambda rows=rows: make_norm(rows), 17 * rows * width)
        bench.add("route 10 of 512", rows, lambda rows=rows: make_route(rows), 4 * rows * experts)


def bench_ngram(bench: Bench) -> None:
    streams, width, size = 4, 2560, 3
    channels = streams * width

    def make(rows: int, commit: bool):
        sizes = torch.full((16,), 20000003, device=DEVICE)
        table = NgramHash(sizes[:size], sizes, sizes, 248044)
        weights = NgramWeights(
            random(channels), random(channels), random(channels), random(channels, 4), size, streams, 1e-6
        )
        state = NgramState.new(1, table, weights)
        tokens = torch.randint(248320, (rows,), device=DEVICE)
        inputs = random(rows, streams, width), random(rows, channels), random(rows, width)
        lane, accepted = integers(*[0] * rows), integers(0 if commit else rows)

        def call():
            ngram_rows(tokens, table, state, lane, accepted, commit)
            return add_ngram_memory(*inputs, weights, state, lane, accepted, commit)

        return call

    for rows in (1, 4, 16, 4096):
        make_memory = lambda rows=rows: make(rows, rows > 16)  # noqa: E731
        bench.add("n-gram memory without its products", rows, make_memory, 4 * channels * (4 + 9 + 5 * rows))


def bench_embedding(bench: Bench) -> None:
    vocabulary, width = 248320, 2560
    bytes_of_row = width // 256 * FORMATS["Q4_K"].block_bytes
    blocks = torch.zeros(vocabulary, bytes_of_row, dtype=torch.uint8)
    for where, place in (("the card", blocks.to(DEVICE)), ("pinned memory", blocks.pin_memory())):
        table = EmbeddingTable.of("Q4_K", place, width, DEVICE)
        for rows in (1, 16, 4096):

            def make(rows: int = rows, table: EmbeddingTable = table):
                ids = torch.randint(vocabulary, (rows,), device=DEVICE)
                return lambda: embed(ids, table)

            bench.add(f"embedding rows of Q4_K in {where}", rows, make, rows * bytes_of_row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    failed = run_checks()
    bench = Bench()
    card = torch.cuda.get_device_name()
    print(f"{card}: a copy moves {bench.copy:.0f} GB/s")
    for part in (
        bench_hyper_connection,
        bench_quantized_hyper_connection,
        bench_delta_net,
        bench_float_matmul,
        bench_small,
        bench_ngram,
        bench_embedding,
    ):
        part(bench)
        if args.json:  # after each part, so that an interrupted run leaves what it has
            report = {
                "card": card,
                "torch": torch.__version__,
                "failed_checks": failed,
                "copy_gigabytes_per_second": bench.copy,
                "results": [asdict(result) for result in bench.results],
            }
            args.json.write_text(json.dumps(report, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
