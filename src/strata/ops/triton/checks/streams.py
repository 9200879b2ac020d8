"""The steps of a hyper-connection with quantised products, each against the reference."""

from collections.abc import Iterator

import torch

from strata.ops import hyper_connection as reference
from strata.ops.quantized_matmul import quantize_activations
from strata.ops.rms_norm import rms_norm
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.norm import write_rms_norm
from strata.ops.triton.streams import mix_down, read_streams, write_streams

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
    written, normalized = write_rms_norm(residual, output, strengths, weight, 1e-6)
    yield "write_rms_norm, streams", written, want
    yield "write_rms_norm", normalized, rms_norm(want, weight.cpu(), 1e-6)
    gate = residual.flatten(1)
    yield "read_streams", read_streams(written, gate), reference.read_streams(want, gate.cpu())
    yield "mix_down, strengths", mix_down(output, logits)[1], strengths


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
    (codes, scales), _ = mix_down(output[:, :LOW], logits)
    want = torch.nn.functional.silu(output[:, :LOW] / STREAMS)
    scales = scales.repeat_interleave(128, 1)[:, :LOW]
    yield "mix_down", codes.float() * scales, want


def _launch(rows: int):
    streams, width, low = 4, 2560, 320
    wide = meta(rows, streams, width)
    quantized = meta(rows, width, dtype=torch.int8), meta(rows, width // 128)
    codes = meta(rows, streams, width, dtype=torch.int8), meta(rows, streams * width // 128)
    write_streams(wide, meta(rows, width), meta(rows, streams))
    write_rms_norm(wide, meta(rows, width), meta(rows, streams), meta(streams, width), 1e-6, codes)
    mix_down(meta(rows, low), meta(rows, streams))
    return read_streams(wide, meta(rows, streams * width), quantized)


CHECKS = [
    Check("streams", _compare, 1e-6),
    Check("streams, quantised", _compare_quantized),
    Check("streams, low rank", _compare_low, 0.5 / 127 * 1.001),
]
LAUNCHES = [Launch("streams", lambda: _launch(4))]
