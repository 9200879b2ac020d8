"""The steps of a hyper-connection with quantised products, each against the reference."""

from collections.abc import Iterator

import torch

from strata.formats.quants.planes import decode_planes, plane_bytes, random_planes
from strata.ops import hyper_connection as reference
from strata.ops.quantized_matmul import quantize_activations, quantized_matmul
from strata.ops.rms_norm import rms_norm
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.norm import write_rms_norm
from strata.ops.triton.quantized_matmul import PlaneMatrix, codebook
from strata.ops.triton.streams import QuantizedHyperConnection, mix_down, read, read_streams, write_streams
from strata.ops.triton.workspace import Workspace

ROWS, STREAMS, WIDTH, LOW = 2, 4, 160, 150


def _inputs(device: torch.device) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (ROWS, STREAMS, WIDTH), (ROWS, WIDTH), (ROWS, STREAMS), (STREAMS, WIDTH)
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    residual, output, logits, weight = _inputs(device)
    strengths = 2 * torch.sigmoid(logits / STREAMS)
    want = reference.write_streams(residual.cpu(), output.cpu(), logits.cpu())
    yield "write_streams", write_streams(residual, output, strengths), want
    written = residual.clone()
    normalized = write_rms_norm(written, output, strengths, weight, 1e-6)
    yield "write_rms_norm, streams", written, want
    yield "write_rms_norm", normalized, rms_norm(want, weight.cpu(), 1e-6)
    gate = residual.flatten(1)
    yield "read_streams", read_streams(written, gate), reference.read_streams(want, gate.cpu())
    yield "mix_down, strengths", mix_down(output[:, None], LOW, STREAMS, logits)[1], strengths
    among = torch.cat([output, logits], 1)[:, None]
    yield "mix_down, strengths among columns", mix_down(among, LOW, STREAMS, WIDTH)[1], strengths


def _compare_quantized(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    residual, *_ = _inputs(device)
    codes = torch.empty(ROWS, WIDTH, dtype=torch.int8, device=device)
    scales = torch.empty(ROWS, 2, device=device)
    x = read_streams(residual, residual.flatten(1), (codes, scales))
    want_codes, want_scales = quantize_activations(x.cpu().numpy())
    yield "read_streams, codes", codes, torch.from_numpy(want_codes).to(torch.int8)
    yield "read_streams, scales", scales, torch.from_numpy(want_scales)


def _compare_low(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    _, output, logits, _ = _inputs(device)
    terms = torch.stack([output, output[:, torch.arange(WIDTH - 1, -1, -1)]], 1)
    (codes, scales), _ = mix_down(terms, LOW, STREAMS, logits)
    want = torch.nn.functional.silu(terms.sum(1)[:, :LOW] / STREAMS)
    scales = scales.repeat_interleave(128, 1)[:, :LOW]
    yield "mix_down", codes.float() * scales, want


class _Module:
    """A module of random planes, 32 of low rank, and rows that a block before it has put out."""

    def __init__(self, device: torch.device, rows: int, among: bool, streams: int = 2, width: int = 128):
        def matrix(num_out: int, num_in: int, seed: int) -> PlaneMatrix:
            scale = num_in**-0.5 / 25  # products of activations of order one are so too
            planes = torch.from_numpy(random_planes("Q8_0", num_out, num_in, seed, scale)).to(device)
            return PlaneMatrix("Q8_0", num_out, num_in, planes, codebook("Q8_0", device))

        generator = torch.Generator().manual_seed(rows)
        shapes = (rows, streams, width), (rows, width), (rows, streams), (streams, streams * width)
        *self.rows, inject = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
        down = matrix(48 if among else 32, streams * width, 0)
        norm = torch.linspace(0.5, 1.5, streams * width, device=device).view(streams, width)
        self.weights = QuantizedHyperConnection(
            norm, down, matrix(streams * width, 32, 1), 32 if among else inject / 16, 1e-6
        )
        self.workspace = Workspace(device, *self.weights.workspace_size())

    def read(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        residual, output, inject = (x[rows].clone() for x in self.rows)
        return read(residual, self.weights, self.workspace, output, inject)

    def reference(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        def product(matrix: PlaneMatrix, x: torch.Tensor) -> torch.Tensor:
            planes = matrix.planes.cpu().numpy()
            decoded = decode_planes(matrix.format, matrix.num_out, matrix.num_in, planes)
            return torch.from_numpy(quantized_matmul(decoded, x.numpy()))

        w, (residual, output, inject) = self.weights, (x.cpu() for x in self.rows)
        residual = residual + inject[:, :, None] * output[:, None]
        normalized = rms_norm(residual, w.norm.cpu(), w.epsilon)
        flat, streams = normalized.flatten(1), residual.shape[1]
        down = product(w.down, flat)
        logits = flat @ w.inject.cpu().T if isinstance(w.inject, torch.Tensor) else down[:, 32 : 32 + streams]
        low = torch.nn.functional.silu(down[:, :32] / streams)
        x = reference.read_streams(normalized, product(w.up, low))
        return residual, x, 2 * torch.sigmoid(logits / streams)


_NAMES = ("streams", "input", "inject")


def _compare_read(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for rows, among in ((1, False), (17, True)):
        module = _Module(device, rows, among)
        for name, got, want in zip(_NAMES, module.read(slice(None)), module.reference(), strict=True):
            yield f"{rows} rows, {name}", got, want


def _compare_rows(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    module, rows = _Module(device, 17, among=True), slice(4, 6)
    for name, got, want in zip(_NAMES, module.read(rows), module.read(slice(None)), strict=True):
        yield f"2 of 17 rows, {name}", got, want[rows]


def _launch(rows: int, among: bool):
    streams, width, low = 4, 2560, 320
    wide, quantized = streams * width, (meta(rows, width, dtype=torch.int8), meta(rows, width // 128))

    def matrix(num_out: int, num_in: int) -> PlaneMatrix:
        planes = meta(plane_bytes("Q8_0", num_out, num_in), dtype=torch.uint8)
        return PlaneMatrix("Q8_0", num_out, num_in, planes, codebook("Q8_0", torch.device("meta")))

    inject = low if among else meta(streams, wide)
    down = matrix(low + 16 if among else low, wide)
    weights = QuantizedHyperConnection(meta(streams, width), down, matrix(wide, low), inject, 1e-6)
    workspace = Workspace("meta", *weights.workspace_size())
    workspace.make_room(1 << 25)
    output = meta(rows, width)
    write_streams(meta(rows, streams, width), output, meta(rows, streams))
    return read(meta(rows, streams, width), weights, workspace, output, meta(rows, streams), quantized)


CHECKS = [
    Check("streams", _compare, 1e-6),
    Check("streams, quantised", _compare_quantized),
    Check("streams, low rank", _compare_low, 0.5 / 127 * 1.001),
    # A norm's last bits make some activations the next code.
    Check("streams, read", _compare_read, 1e-2),
    Check("streams, rows alone", _compare_rows),
]
LAUNCHES = [
    Launch("streams", lambda: _launch(4, True)),
    Launch("streams float inject", lambda: _launch(1, False)),
    Launch("streams prompt", lambda: _launch(4096, True)),
]
