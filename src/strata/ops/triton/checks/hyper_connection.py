"""Hyper-connections against the reference, and rows by themselves against rows together."""

from collections.abc import Iterator

import torch

from strata.ops.hyper_connection import read_streams, write_streams
from strata.ops.rms_norm import rms_norm
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.hyper_connection import HyperConnectionWeights, read
from strata.ops.triton.workspace import Workspace

STREAMS, WIDTH, LOW = 4, 128, 20
EPSILON = 1e-6


class _Module:
    """Random weights, and rows that a block before it has put out."""

    def __init__(self, device: torch.device, rows: int, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(rows)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        norm = 1 + 0.1 * random(STREAMS * WIDTH)
        down = (random(LOW + STREAMS, STREAMS * WIDTH) / 8).to(dtype)
        up = (random(STREAMS * WIDTH, LOW) / 2).to(dtype)
        self.weights = HyperConnectionWeights(
            norm.to(device), down.to(device), up.to(device), STREAMS, EPSILON
        )
        self.workspace = Workspace(device, *self.weights.workspace_size())
        rows = random(rows, STREAMS, WIDTH) * 3, random(rows, WIDTH), 2 * random(rows, STREAMS).sigmoid()
        self.rows = [x.to(device) for x in rows]

    def read(self, rows: slice, quantized: tuple[torch.Tensor, torch.Tensor] | None = None):
        residual, output, inject = (x[rows] for x in self.rows)
        return read(residual.clone(), self.weights, self.workspace, output, inject, quantized)


def _reference(module: _Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    residual, output, inject = (x.cpu().double() for x in module.rows)
    w = module.weights
    norm, down, up = (x.cpu().double() for x in (w.norm, w.down, w.up))
    logit = STREAMS * torch.log(inject / (2 - inject))  # what `write_streams` makes `inject` of
    residual = write_streams(residual, output, logit)
    normalized = rms_norm(residual, norm.view(STREAMS, WIDTH), EPSILON)
    mixed = normalized.flatten(1) @ down.T / STREAMS
    low, strength = mixed.split([LOW, STREAMS], 1)
    x = read_streams(normalized, torch.nn.functional.silu(low) @ up.T)
    return residual.float(), x.float(), (2 * strength.sigmoid()).float()


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for rows, dtype in ((2, torch.bfloat16), (17, torch.float32)):
        module = _Module(device, rows, dtype)
        case = f"{rows} rows, {dtype}".replace("torch.", "")
        for name, got, want in zip(
            ("streams", "input", "inject"), module.read(slice(None)), _reference(module), strict=True
        ):
            yield f"{case}, {name}", got, want


def _compare_rows(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    module = _Module(device, 33, torch.bfloat16)
    together = module.read(slice(None))
    for rows in (slice(0, 1), slice(7, 23)):
        for name, got, want in zip(("streams", "input", "inject"), module.read(rows), together, strict=True):
            yield f"{rows.stop - rows.start} of 33 rows, {name}", got, want[rows]


def _compare_quantized(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    from strata.ops.quantized_matmul import quantize_activations

    module = _Module(device, 3, torch.bfloat16)
    codes = torch.empty(3, WIDTH, dtype=torch.int8, device=device)
    scales = torch.empty(3, WIDTH // 128, device=device)
    _, x, _ = module.read(slice(None), (codes, scales))
    want_codes, want_scales = quantize_activations(x.cpu().numpy())
    yield "codes", codes, torch.from_numpy(want_codes).to(torch.int8)
    yield "scales", scales, torch.from_numpy(want_scales)


def _launch(rows: int, dtype: torch.dtype, quantize: bool):
    streams, width, low = 4, 2560, 320
    wide = streams * width
    weights = HyperConnectionWeights(
        meta(wide), meta(low + streams, wide, dtype=dtype), meta(wide, low, dtype=dtype), streams, EPSILON
    )
    workspace = Workspace("meta", *weights.workspace_size())
    quantized = (meta(rows, width, dtype=torch.int8), meta(rows, width // 128)) if quantize else None
    return read(
        meta(rows, streams, width), weights, workspace, meta(rows, width), meta(rows, streams), quantized
    )


CHECKS = [
    Check("hyper_connection", _compare, 1e-5),
    Check("hyper_connection, rows alone", _compare_rows),
    Check("hyper_connection, quantised", _compare_quantized),
]
LAUNCHES = [
    Launch("hyper_connection window", lambda: _launch(4, torch.bfloat16, True)),
    Launch("hyper_connection window float32", lambda: _launch(4, torch.float32, False)),
    Launch("hyper_connection prompt", lambda: _launch(4096, torch.bfloat16, True)),
]
