"""Quantised products and experts against the numeric contract, in bits."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from strata.formats.quants.planes import QUANT_PLANES, decode_planes, plane_bytes, random_planes
from strata.ops import quantized_experts as expert_reference
from strata.ops import quantized_matmul as reference
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.expert_records import ExpertBuffers, ExpertShape, SharedExpert
from strata.ops.triton.experts import combine_experts, compute_experts
from strata.ops.triton.grouped_matmul import grouped_matmul
from strata.ops.triton.prompt_experts import compute_prompt_experts
from strata.ops.triton.quantize import quantize_activations
from strata.ops.triton.quantized_matmul import (
    PlaneMatrix,
    codebook,
    multiply_own_tiles,
    multiply_shared_tiles,
    quantized_matmul,
    quantized_matmuls,
)
from strata.ops.triton.sorted_rows import FEW_BLOCK, MANY, MANY_BLOCK, sort_rows
from strata.ops.triton.unpack import PlaneMatrices, unpacked_bytes

_Case = tuple[str, torch.Tensor, torch.Tensor]
_WIDTHS = {256: 768, 64: 192, 32: 160, 16: 192}  # of rows, by the weights that share a scale


def _rows(rows: int, num_in: int) -> np.ndarray:
    """Activations of which some are a hundred times larger, and a block is all zeros."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, num_in)).astype(np.float32)
    x[rng.random(x.shape) < 0.01] *= 100
    x[-1, :128] = 0
    return x


def _compare_quantize(device: torch.device) -> Iterator[_Case]:
    x = _rows(9, 480)
    x[1, 5], x[2, 300], x[3, 200] = np.nan, -np.inf, np.inf
    x[4] *= np.float32(1e-41)  # subnormal: the scale is coarse and codes must be clamped
    x[5] *= np.float32(1e30)
    x[6] = np.arange(480) - 240.5  # halves, to even
    x[7, :128] = np.linspace(-127, 127, 128).round() + 0.5
    x[7, 0] = 127
    codes, scales = quantize_activations(torch.from_numpy(x).to(device))
    want_codes, want_scales = reference.quantize_activations(x)
    yield "codes", codes, torch.from_numpy(want_codes.astype(np.int8))
    yield "scales", scales, torch.from_numpy(want_scales)


def _compare_format(format: str, device: torch.device) -> Iterator[_Case]:
    """Thirteen rows, times one row of activations, two and three."""
    num_out, num_in = 13, _WIDTHS[QUANT_PLANES[format].scale_block]
    planes = random_planes(format, num_out, num_in, seed=0)
    x = _rows(3, num_in)
    want = reference.quantized_matmul(decode_planes(format, num_out, num_in, planes), x)
    matrix = PlaneMatrix(
        format, num_out, num_in, torch.from_numpy(planes).to(device), codebook(format, device)
    )
    codes, scales = quantize_activations(torch.from_numpy(x).to(device))
    for multiply, rows in ((multiply_own_tiles, 1), (multiply_own_tiles, 3), (multiply_shared_tiles, 2)):
        got = torch.empty(rows, num_out, device=device)
        arguments = (matrix, codes[:rows], scales[:rows], got)
        if multiply is multiply_shared_tiles:
            arguments = ([matrix], *arguments[1:3], [got])
        multiply(*arguments)
        yield f"{multiply.__name__} {rows}", got, torch.from_numpy(want[:rows])


def _compare_pair(device: torch.device) -> Iterator[_Case]:
    """Matrices of two formats, times two rows."""
    num_in, sizes = 256, {"Q4_K": 40, "Q5_0": 20}
    x = _rows(2, num_in)
    matrices, want = [], []
    for format, num_out in sizes.items():
        planes = random_planes(format, num_out, num_in, seed=0)
        want.append(reference.quantized_matmul(decode_planes(format, num_out, num_in, planes), x))
        on_device = torch.from_numpy(planes).to(device)
        matrices.append(PlaneMatrix(format, num_out, num_in, on_device, codebook(format, device)))
    outs = [torch.empty(2, num_out, device=device) for num_out in sizes.values()]
    multiply_shared_tiles(matrices, *quantize_activations(torch.from_numpy(x).to(device)), outs)
    for format, got, right in zip(sizes, outs, want, strict=True):
        yield format, got, torch.from_numpy(right)


def _compare_grouped(
    format: str, device: torch.device, cases: tuple[tuple[int, bool], ...] = ((5, False), (60, True))
) -> Iterator[_Case]:
    """Two matrices of thirteen rows, times rows in any order, of which some have none.

    Args:
        cases: numbers of rows, and whether there is room to unpack a matrix.
    """
    block = QUANT_PLANES[format].scale_block
    num_out, num_in, column = 13, {256: 256, 32: 160}.get(block, 64), 3
    planes = [random_planes(format, num_out, num_in, seed) for seed in range(2)]
    on_device = [torch.from_numpy(p).to(device) for p in planes]
    addresses = torch.tensor([p.data_ptr() for p in on_device], device=device)
    size = unpacked_bytes(format, num_out, num_in)
    matrices = PlaneMatrices(format, num_out, num_in, addresses, 0, codebook(format, device))
    for num_rows, has_room in cases:
        x, ids = _rows(num_rows, num_in), np.resize([1, 0, 1, -1, 1], num_rows)
        want = np.zeros((num_rows, column + num_out), dtype=np.float32)
        for i in range(2):
            matrix = decode_planes(format, num_out, num_in, planes[i])
            want[ids == i, column:] = reference.quantized_matmul(matrix, x[ids == i])
        got = torch.zeros(want.shape, device=device)
        quantized = quantize_activations(torch.from_numpy(x).to(device))
        rows = sort_rows(torch.from_numpy(ids).to(device), 2, 2)
        unpacked = torch.empty(size if has_room else 0, dtype=torch.int8, device=device)
        grouped_matmul(matrices, rows, 1, *quantized, got, column, unpacked)
        yield f"{num_rows} rows{', unpacked' if has_room else ''}", got, torch.from_numpy(want)


def _grouped_check(format: str) -> Check:
    return Check(f"grouped_matmul {format}", lambda device: _compare_grouped(format, device))


def _compare_sort(device: torch.device) -> Iterator[_Case]:
    """Matrices with no rows, few and many, and rows without a matrix."""
    counts = (MANY - 1, 0, MANY, 1, 2 * MANY_BLOCK, 2 * MANY_BLOCK + 1, FEW_BLOCK, 0)
    ids = torch.tensor([matrix for matrix, count in enumerate((7, *counts), -1) for _ in range(count)])
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))]
    rows = sort_rows(ids.to(device), len(counts), len(counts))
    for name, blocks, chosen in (
        ("few", rows.few, [i for i, count in enumerate(counts) if count < MANY]),
        ("many", rows.many, [i for i, count in enumerate(counts) if count >= MANY]),
    ):
        want = [
            (matrix, entries)
            for matrix in chosen
            for entries in (ids == matrix).nonzero().flatten().split(blocks.rows)
            if len(entries)
        ]
        count = blocks.count[0].item()
        yield name, blocks.matrix[:count], torch.tensor([matrix for matrix, _ in want], dtype=torch.int32)
        for i, (matrix, entries) in enumerate(want[:count]):
            begin = blocks.begin[i]
            yield f"{name}, matrix {matrix}", rows.order[begin : begin + len(entries)], entries.int()
    number = len(chosen)
    behind = torch.full((rows.matrices.numel() - number,), -1)
    yield "matrices", rows.matrices, torch.cat([torch.tensor(chosen), behind]).int()
    starts = [0, *itertools.accumulate(-(-counts[matrix] // MANY_BLOCK) for matrix in chosen)]
    behind = torch.full((rows.matrices.numel() + 1 - len(starts),), starts[-1])
    yield "starts", rows.starts[: rows.matrices.numel() + 1], torch.cat([torch.tensor(starts), behind]).int()
    places = torch.tensor([chosen.index(matrix) for matrix in blocks.matrix[:count].tolist()])
    yield "places", rows.number[:count], places.int()
    ids = torch.tensor([matrix for matrix in range(9) for _ in range(MANY + (matrix % 3) * FEW_BLOCK)])
    some = sort_rows(ids.to(device), 40, 4)  # few rows on average
    longest = torch.tensor([2, 5, 8, -1], dtype=torch.int32)
    yield "those there is room for", some.matrices, longest
    count = some.few.count[0].item()
    want = [matrix for matrix in range(9) if matrix % 3 != 2 for _ in range(3 + (matrix % 3))]
    yield "the others", some.few.matrix[:count], torch.tensor(want, dtype=torch.int32)
    ids, elsewhere = (
        torch.from_numpy(np.random.default_rng(most).integers(-1, most, (321, 5))) for most in (7, 1)
    )
    rows = sort_rows(ids.to(device), 7, 7, elsewhere.int().to(device))  # several blocks of entries
    ids = torch.where(elsewhere < 0, ids, -1).flatten()
    entries = torch.cat([(ids == matrix).nonzero().flatten() for matrix in range(7)]).int()
    yield "entries elsewhere", rows.order[: len(entries)], entries
    bounds = [0, *itertools.accumulate((ids == matrix).sum().item() for matrix in range(7))]
    yield "their bounds", rows.bounds[:8], torch.tensor(bounds, dtype=torch.int32)


def _matmul_check(format: str) -> Check:
    return Check(f"quantized_matmul {format}", lambda device: _compare_format(format, device))


def _made_up_experts(shape: ExpertShape, experts: int) -> tuple[np.ndarray, list[expert_reference.Expert]]:
    """Records uint8 `[experts, record bytes]`, and what they mean."""
    parts = (
        (shape.gate, shape.ff, shape.width, 0),
        (shape.up, shape.ff, shape.width, shape.up_at),
        (shape.down, shape.width, shape.ff, shape.down_at),
    )
    records = np.zeros((experts, shape.record_bytes), dtype=np.uint8)
    meaning = []
    for e in range(experts):
        matrices = []
        for seed, (format, num_out, num_in, begin) in enumerate(parts):
            planes = random_planes(format, num_out, num_in, seed=3 * e + seed, scale=0.02)
            records[e, begin : begin + len(planes)] = planes
            matrices.append(decode_planes(format, num_out, num_in, planes))
        meaning.append(expert_reference.Expert(*matrices))
    return records, meaning


def _made_up_shared(width: int, device: torch.device) -> tuple[SharedExpert, expert_reference.Expert]:
    """An expert of other formats, and longer than the others."""
    shape = ExpertShape(width, 64, "Q4_0", "Q4_0", "Q5_1")
    records, (meaning,) = _made_up_experts(shape, 1)
    planes, grid = torch.from_numpy(records[0]).to(device), codebook("Q4_0", device)
    gate_up = PlaneMatrix("Q4_0", 2 * shape.ff, width, planes[: shape.down_at], grid)
    return SharedExpert(gate_up, PlaneMatrix("Q5_1", width, shape.ff, planes[shape.down_at :], grid)), meaning


def _compare_experts(
    shape: ExpertShape, rows: int, device: torch.device, prompt: bool = False
) -> Iterator[_Case]:
    """Three experts; of several rows the last is unused, and one entry comes from elsewhere.

    Those without factors are computed for a window together with a shared one.
    """
    experts, slots = 3, min(rows, 2)
    records, meaning = _made_up_experts(shape, experts)
    factors = None
    if "NVFP4" in (shape.gate, shape.up, shape.down):
        factors = torch.rand(experts, 3, generator=torch.Generator().manual_seed(0)) + 0.5
        meaning = [replace(e, factors=tuple(f)) for e, f in zip(meaning, factors.tolist(), strict=True)]
        factors = factors.to(device)
    x = _rows(rows, shape.width)
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(experts)[:slots] for _ in range(rows)])
    weights = rng.random((rows, slots)).astype(np.float32)
    want = expert_reference.quantized_experts(meaning, x, ids, weights)
    host_entry = torch.full((rows, slots), -1, dtype=torch.int32)
    host_y = torch.full((4, shape.width), torch.nan)
    if rows > 1:
        host_entry[1, 0] = 2
        host_y[2] = torch.from_numpy(meaning[ids[1, 0]](x[1:2])[0])
        ids[-1], want[-1] = -1, 0
    memory = torch.from_numpy(records).to(device)
    addresses = memory.data_ptr() + torch.arange(experts) * shape.record_bytes
    on_device = [t.to(device) for t in (addresses, torch.from_numpy(ids), host_entry)]
    codes, scales = quantize_activations(torch.from_numpy(x).to(device))
    arguments = (shape, on_device[0], codes, scales, *on_device[1:])
    shared = beside = None
    if prompt:
        y = compute_prompt_experts(*arguments, factors)
    else:
        if factors is None:
            shared, its_meaning = _made_up_shared(shape.width, device)
        buffers = ExpertBuffers.allocate(shape, rows, slots, device, shared)
        y = compute_experts(*arguments, buffers, factors, shared)
    shares = torch.from_numpy(weights).to(device)
    if shared is not None:
        share = rng.random(rows).astype(np.float32)
        want += share[:, None] * its_meaning(x)
        beside = buffers.shared.y, torch.from_numpy(share).to(device)
    got = combine_experts(*on_device[1:], shares, y, host_y.to(device), None, factors, beside)
    yield f"{rows} rows", got, torch.from_numpy(want)


def _experts_check(gate: str, up: str, down: str, rows: int) -> Check:
    blocks = {QUANT_PLANES[format].scale_block for format in (gate, up)}
    shape = ExpertShape(width=256 if 256 in blocks else 64, ff=32, gate=gate, up=up, down=down)
    return Check(f"experts {gate} {up} {down} {rows}", lambda device: _compare_experts(shape, rows, device))


CHECKS = [
    Check("quantize_activations", _compare_quantize),
    *(_matmul_check(format) for format in QUANT_PLANES),
    Check("quantized_matmul, two", _compare_pair),
    _experts_check("IQ3_XXS", "IQ3_XXS", "IQ4_NL", 1),
    _experts_check("Q8_0", "Q4_1", "MXFP4", 4),
    _experts_check("NVFP4", "NVFP4", "NVFP4", 1),
    _experts_check("NVFP4", "Q8_0", "NVFP4", 3),
    Check("sort_rows", _compare_sort),
    *(_grouped_check(format) for format in QUANT_PLANES),
    Check(
        "grouped_matmul without room, and in turns",
        lambda device: _compare_grouped("Q4_K", device, ((60, False), (175, True))),
    ),
    Check(
        "prompt experts",
        lambda device: _compare_experts(ExpertShape(64, 32, "Q2_0", "Q4_0", "Q8_0"), 4, device, prompt=True),
    ),
]


def _launch_matmul(format: str, num_out: int, num_in: int, rows: int) -> torch.Tensor:
    planes = meta(plane_bytes(format, num_out, num_in), dtype=torch.uint8)
    matrix = PlaneMatrix(format, num_out, num_in, planes, meta(1024, dtype=torch.int32))
    return quantized_matmul(matrix, *quantize_activations(meta(rows, num_in)))


def _launch_pair(rows: int) -> list[torch.Tensor]:
    """Queries, keys and values of a delta net, and what gates them."""
    matrices = [
        PlaneMatrix(format, n, 2560, meta(plane_bytes(format, n, 2560), dtype=torch.uint8), meta(4))
        for format, n in (("Q4_K", 10240), ("Q5_K", 6144))
    ]
    return quantized_matmuls(matrices, *quantize_activations(meta(rows, 2560)))


def _meta_shared(width: int, ff: int) -> SharedExpert:
    matrices = (
        PlaneMatrix(format, n, k, meta(plane_bytes(format, n, k), dtype=torch.uint8), meta(4))
        for format, n, k in (("Q5_K", 2 * ff, width), ("Q5_1", width, ff))
    )
    return SharedExpert(*matrices)


def _launch_experts(shape: ExpertShape, rows: int, slots: int) -> torch.Tensor:
    shared = _meta_shared(shape.width, shape.ff)
    buffers = ExpertBuffers.allocate(shape, rows, slots, torch.device("meta"), shared)
    ids, host_entry = meta(rows, slots, dtype=torch.int64), meta(rows, slots, dtype=torch.int32)
    addresses = meta(512, dtype=torch.int64)
    quantized = quantize_activations(meta(rows, shape.width))
    factors = meta(512, 3) if shape.gate == "NVFP4" else None
    y = compute_experts(shape, addresses, *quantized, ids, host_entry, buffers, factors, shared)
    host_y, beside = meta(rows * slots, shape.width), (buffers.shared.y, meta(rows))
    return combine_experts(ids, host_entry, meta(rows, slots), y, host_y, None, factors, beside)


def _matmul_launch(format: str, num_out: int, rows: int) -> Launch:
    name = f"quantized_matmul {format} {num_out}x2560 {rows}"
    return Launch(name, lambda: _launch_matmul(format, num_out, 2560, rows))


def _experts_launch(format: str, down: str, width: int, ff: int, rows: int, slots: int) -> Launch:
    shape = ExpertShape(width, ff, format, format, down)
    return Launch(f"experts {format} {down} {width}x{ff} {rows}", lambda: _launch_experts(shape, rows, slots))


def _launch_prompt(shape: ExpertShape, rows: int, slots: int, unpack: bool = False) -> torch.Tensor:
    ids, host_entry = meta(rows, slots, dtype=torch.int64), meta(rows, slots, dtype=torch.int32)
    quantized = quantize_activations(meta(rows, shape.width))
    unpacked = meta(256 * shape.ff * shape.width, dtype=torch.int8) if unpack else None
    addresses = meta(512, dtype=torch.int64)
    return compute_prompt_experts(shape, addresses, *quantized, ids, host_entry, unpacked=unpacked)


def _unpacked_launch(shape: ExpertShape) -> Launch:
    name = f"prompt experts unpacked {shape.gate} {shape.down} {shape.width}x{shape.ff}"
    return Launch(name, lambda: _launch_prompt(shape, 8192, 10, unpack=True))


LAUNCHES = [
    *(_matmul_launch(format, 2560, 1) for format in QUANT_PLANES),
    *(_matmul_launch(format, 32768, rows) for format in QUANT_PLANES for rows in (1, 2)),
    Launch("quantized_matmul Q4_K and Q5_K 1", lambda: _launch_pair(1)),
    _experts_launch("IQ3_XXS", "Q2_0", 2560, 640, 1, 10),
    _experts_launch("IQ3_XXS", "Q2_0", 2560, 640, 4, 10),
    _experts_launch("Q4_K", "Q4_K", 2048, 512, 1, 8),
    _experts_launch("NVFP4", "NVFP4", 2048, 768, 1, 8),
    *(_matmul_launch(format, 2560, 512) for format in QUANT_PLANES),
    Launch(
        "prompt experts IQ3_XXS Q2_0 2560x640",
        lambda: _launch_prompt(ExpertShape(2560, 640, "IQ3_XXS", "IQ3_XXS", "Q2_0"), 512, 10),
    ),
    _unpacked_launch(ExpertShape(2560, 640, "IQ3_XXS", "IQ3_XXS", "Q2_0")),
    _unpacked_launch(ExpertShape(2048, 512, "Q4_K", "Q4_K", "Q6_K")),
]
