"""Quantised products and experts on the card at hand: first their bits, then their speed.

    PYTHONPATH=src python bench/triton_products.py --json FILE

Times are of CUDA graphs of 20 calls whose weights do not fit in the L2 cache. GB/s counts the weights' planes
only; "of copy" divides by what a large device copy reads and writes in the same run, for zero-copy reads by
what a copy from pinned memory moves.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from strata.formats.quants.planes import plane_bytes, random_planes
from strata.ops.triton.catalog import Check
from strata.ops.triton.checks.products import CHECKS
from strata.ops.triton.expert_records import ExpertBuffers, ExpertShape
from strata.ops.triton.experts import combine_experts, compute_experts
from strata.ops.triton.prompt_experts import compute_prompt_experts
from strata.ops.triton.quantize import quantize_activations
from strata.ops.triton.quantized_matmul import FEW_ROWS, PlaneMatrix, codebook, quantized_matmul
from strata.ops.triton.workspace import Workspace
from strata.prompt_memory import unpacked_bytes

CALLS = 20
ROTATED_BYTES = 400 << 20  # of weights that calls go round in, several times the L2 cache


def seconds(calls: Callable[[], object], repeats: int = 10) -> float:
    """Of one replay of the graph of `calls`, the median."""
    calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    times = []
    for _ in range(repeats + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times[2:])[repeats // 2]


def copy_speed() -> float:
    """Bytes per second that a device copy reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source))


def link_speed() -> float:
    """Bytes per second of a copy from pinned memory."""
    source = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    return source.numel() / seconds(lambda: target.copy_(source, non_blocking=True))


@cache
def workspace() -> Workspace:
    """With room to unpack weights, as a prompt has it."""
    made = Workspace(torch.device("cuda"), 1, 1)
    made.make_room(unpacked_bytes(4096))
    return made


@dataclass(frozen=True)
class ExpertCase:
    """Experts of one layer, as a window calls them."""

    name: str
    shape: ExpertShape
    slots: int
    rows: int
    pinned: bool = False

    @property
    def prompt(self) -> bool:
        """Whether the rows are a prompt's."""
        return self.rows > FEW_ROWS

    def run(self, copy: float, link: float) -> dict:
        """Time a layer's launches."""
        shape, entries = self.shape, self.rows * self.slots
        experts = min(512, max(entries, ROTATED_BYTES // shape.record_bytes))
        one = torch.cat(
            [
                torch.from_numpy(random_planes(format, *size, seed=0, scale=0.01))
                for format, size in (
                    (shape.gate, (shape.ff, shape.width)),
                    (shape.up, (shape.ff, shape.width)),
                    (shape.down, (shape.width, shape.ff)),
                )
            ]
        )
        memory = one.repeat(experts)
        memory = memory.pin_memory() if self.pinned else memory.cuda()
        addresses = (memory.data_ptr() + torch.arange(experts) * shape.record_bytes).cuda()
        generator = torch.Generator().manual_seed(0)
        ids = [
            torch.stack(
                [torch.randperm(experts, generator=generator)[: self.slots] for _ in range(self.rows)]
            )
            for _ in range(2 if self.prompt else CALLS)
        ]
        distinct = sum(len(i.unique()) for i in ids) / len(ids)
        ids = [i.int().cuda() for i in ids]
        host = torch.full((self.rows, self.slots), -1, dtype=torch.int32, device="cuda")
        weights = torch.full((self.rows, self.slots), 0.1, device="cuda")
        buffers = ExpertBuffers.allocate(shape, self.rows, self.slots, torch.device("cuda"))
        codes, scales = quantize_activations(torch.randn(self.rows, shape.width, device="cuda"))
        host_y, out = (
            torch.zeros(1, shape.width, device="cuda"),
            torch.empty(self.rows, shape.width, device="cuda"),
        )

        def layers() -> None:
            for i in ids:
                if self.prompt:
                    y = compute_prompt_experts(
                        shape, addresses, codes, scales, i, host, unpacked=workspace().unpacked
                    )
                else:
                    y = compute_experts(shape, addresses, codes, scales, i, host, buffers)
                combine_experts(i, host, weights, y, host_y, out)

        time = seconds(layers, 5 if self.pinned or self.prompt else 10) / len(ids)
        moved = distinct * shape.record_bytes
        limit = link if self.pinned else copy
        multiplied = 3 * shape.width * shape.ff * entries
        return result(self.name, time, moved, limit, multiplied)


def result(name: str, time: float, moved: float, limit: float, multiplied: int) -> dict:
    """One line of the table."""
    speed = {"GB/s": moved / time / 1e9, "TOP/s": 2 * multiplied / time / 1e12}
    return {"name": name, "us": time * 1e6, "of_copy": moved / time / limit} | speed


@dataclass(frozen=True)
class MatmulCase:
    """A dense matrix and some rows."""

    format: str
    num_out: int
    num_in: int
    rows: int

    @property
    def name(self) -> str:
        return f"matmul {self.format} {self.num_out}x{self.num_in} rows {self.rows}"

    def run(self, copy: float, link: float) -> dict:
        """Time the product alone, activations quantised before."""
        size = plane_bytes(self.format, self.num_out, self.num_in)
        copies = max(1, min(CALLS, ROTATED_BYTES // size))
        planes = torch.from_numpy(random_planes(self.format, 16, self.num_in, seed=0)).cuda()
        planes = planes.repeat(copies * (-(-self.num_out // 16))).view(copies, -1)
        grid = codebook(self.format, torch.device("cuda"))
        matrices = [PlaneMatrix(self.format, self.num_out, self.num_in, p, grid) for p in planes]
        codes, scales = quantize_activations(torch.randn(self.rows, self.num_in, device="cuda"))
        out = torch.empty(self.rows, self.num_out, device="cuda")

        def calls() -> None:
            for i in range(CALLS):
                quantized_matmul(matrices[i % copies], codes, scales, out, workspace())

        return result(self.name, seconds(calls) / CALLS, size, copy, self.rows * self.num_out * self.num_in)


def flash_next(gate: str, down: str) -> ExpertShape:
    """An expert of Qwen3.8-Flash-Next."""
    return ExpertShape(2560, 640, gate, gate, down)


CASES = [
    *(
        ExpertCase(f"flash-next {gate} down {down} rows {rows}", flash_next(gate, down), 10, rows)
        for gate, down, rows in (
            ("IQ3_XXS", "Q2_0", 1), ("IQ3_XXS", "Q2_0", 4), ("Q2_0", "Q2_0", 1), ("Q2_0", "Q2_0", 4),
            ("IQ3_XXS", "IQ4_NL", 1), ("Q4_K", "Q8_0", 1),
        )
    ),
    *(
        ExpertCase(f"35B-A3B {format} rows {rows}", ExpertShape(2048, 512, format, format, format), 8, rows)
        for format in ("IQ3_XXS", "Q4_K")
        for rows in (1, 4)
    ),
    *(
        ExpertCase(f"zero-copy flash-next {gate} down Q2_0 rows 1", flash_next(gate, "Q2_0"), 10, 1, True)
        for gate in ("IQ3_XXS", "Q2_0")
    ),
    ExpertCase("prompt flash-next IQ3_XXS down Q2_0", flash_next("IQ3_XXS", "Q2_0"), 10, 2048),
    ExpertCase("prompt flash-next Q2_0", flash_next("Q2_0", "Q2_0"), 10, 2048),
    ExpertCase("prompt 35B-A3B Q4_K", ExpertShape(2048, 512, "Q4_K", "Q4_K", "Q4_K"), 8, 2048),
    *(
        MatmulCase(format, num_out, num_in, rows)
        for format, num_out, num_in, rows in (
            ("Q8_0", 8192, 2560, 1), ("Q8_0", 8192, 2560, 4), ("Q8_0", 8192, 2560, 16),
            ("Q4_K", 8192, 2560, 1), ("Q4_K", 8192, 2560, 4), ("Q4_K", 8192, 2560, 16),
            ("Q6_K", 65536, 2560, 1), ("Q5_K", 8192, 2560, 1), ("IQ4_NL", 8192, 2560, 1),
            ("IQ2_XXS", 8192, 2560, 1), ("Q8_0", 2560, 640, 1),
            ("Q8_0", 8192, 2560, 2048), ("Q4_K", 8192, 2560, 2048),
        )
    ),
]  # fmt: skip


def check(index: int) -> list[str]:
    """What a check found, in a process of its own so that kernels compile on all cores."""
    c: Check = CHECKS[index]
    return [
        f"{c.name}, {o.case}: {'same bits' if o.passed else f'WRONG by {o.error}'}"
        for o in c.run(torch.device("cuda"))
    ]


def warm(index: int) -> None:
    """Compile what a case launches."""
    case = CASES[index]
    rows, device = case.rows, torch.device("cuda")
    if isinstance(case, MatmulCase):
        planes = torch.zeros(plane_bytes(case.format, 16, case.num_in), dtype=torch.uint8, device=device)
        matrix = PlaneMatrix(case.format, 16, case.num_in, planes, codebook(case.format, device))
        x = torch.randn(rows, case.num_in, device=device)
        quantized_matmul(matrix, *quantize_activations(x), workspace=workspace())
        return
    shape = case.shape
    record = torch.zeros(shape.record_bytes, dtype=torch.uint8, device=device)
    addresses = torch.full((1,), record.data_ptr(), device=device)
    ids = torch.zeros(rows, case.slots, dtype=torch.int32, device=device)
    host, weights = torch.full_like(ids, -1), torch.ones(rows, case.slots, device=device)
    buffers = ExpertBuffers.allocate(shape, rows, case.slots, device)
    quantized = quantize_activations(torch.randn(rows, shape.width, device=device))
    if case.prompt:
        compute_prompt_experts(shape, addresses, *quantized, ids, host, unpacked=workspace().unpacked)
        return
    y = compute_experts(shape, addresses, *quantized, ids, host, buffers)
    combine_experts(ids, host, weights, y, torch.zeros(1, shape.width, device=device))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--no-checks", action="store_true")
    arguments = parser.parse_args()
    chosen = [i for i, case in enumerate(CASES) if arguments.only in case.name]
    workers = min(14, multiprocessing.cpu_count())
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        compiled = [pool.submit(warm, i) for i in chosen]
        checked = [] if arguments.no_checks else list(pool.map(check, range(len(CHECKS))))
        for future in compiled:
            future.result()
    lines = [line for found in checked for line in found]
    wrong = [line for line in lines if "WRONG" in line]
    print(
        f"{torch.cuda.get_device_name()}: {len(lines) - len(wrong)} of {len(lines)} checks have the same bits"
    )
    print("\n".join(wrong), flush=True)
    copy, link = copy_speed(), link_speed()
    print(f"copy {copy / 1e9:.0f} GB/s (read + written), from pinned memory {link / 1e9:.1f} GB/s")
    results = []
    for i in chosen:
        results.append(CASES[i].run(copy, link))
        r = results[-1]
        speeds = f"{r['GB/s']:7.0f} GB/s {r['of_copy']:5.2f} of copy {r['TOP/s']:6.1f} TOP/s"
        print(f"{r['name']:58} {r['us']:8.1f} us {speeds}", flush=True)
    if arguments.json:
        report = {"device": torch.cuda.get_device_name(), "copy": copy, "link": link}
        Path(arguments.json).write_text(json.dumps(report | {"checks": lines, "results": results}, indent=1))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
