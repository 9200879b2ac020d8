"""Norms against the reference."""

from collections.abc import Iterator

import torch

from strata.ops import rms_norm as reference
from strata.ops.quantized_matmul import quantize_activations
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.norm import add_rms_norm, rms_norm

SHAPES = ((3, 2560), (2, 4, 256), (5, 40))


def _random(device: torch.device, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for shape in SHAPES:
        x, y, weight = _random(device, shape, shape, shape[1:])
        want = reference.rms_norm(x.cpu(), weight.cpu(), 1e-6)
        yield f"rms_norm {list(shape)}", rms_norm(x, weight, 1e-6), want
        total, out = add_rms_norm(x, y, weight, 1e-6)
        want_total, want = reference.add_rms_norm(x.cpu(), y.cpu(), weight.cpu(), 1e-6)
        yield f"add_rms_norm {list(shape)}", out, want
        yield f"add_rms_norm {list(shape)}, sum", total, want_total


def _compare_quantized(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for shape in SHAPES:
        x, weight = _random(device, shape, shape[1:])
        codes = torch.empty(shape, dtype=torch.int8, device=device)
        scales = torch.empty(shape[0], -(-x[0].numel() // 128), device=device)
        out = rms_norm(x, weight, 1e-6, (codes, scales))
        want_codes, want_scales = quantize_activations(out.cpu().flatten(1).numpy())
        yield f"codes {list(shape)}", codes.flatten(1), torch.from_numpy(want_codes).to(torch.int8)
        yield f"scales {list(shape)}", scales, torch.from_numpy(want_scales)


def _launch(rows: int, width: int):
    quantized = meta(rows, width, dtype=torch.int8), meta(rows, width // 128)
    return add_rms_norm(meta(rows, width), meta(rows, width), meta(width), 1e-6, quantized)


CHECKS = [Check("norm", _compare, 1e-6), Check("norm, quantised", _compare_quantized)]
LAUNCHES = [
    Launch("add_rms_norm 2560", lambda: _launch(4, 2560)),
    Launch("add_rms_norm 2048", lambda: _launch(4, 2048)),
    Launch("add_rms_norm 8192", lambda: _launch(4, 8192)),
    Launch("rms_norm 4 x 2560", lambda: rms_norm(meta(4, 4, 2560), meta(4, 2560), 1e-6)),
]
