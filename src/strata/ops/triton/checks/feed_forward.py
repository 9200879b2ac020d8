"""SwiGLU and the shared expert's share against their references."""

from collections.abc import Iterator

import numpy as np
import torch

from strata.ops import quantized_experts as reference
from strata.ops.quantized_matmul import quantize_activations
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.feed_forward import add_shared, swiglu

Cases = Iterator[tuple[str, torch.Tensor, torch.Tensor]]


def _compare_swiglu(device: torch.device) -> Cases:
    generator = torch.Generator().manual_seed(0)
    for rows, length in ((1, 128), (3, 640), (2, 200)):
        both = torch.randn(rows, 2 * length, generator=generator) * 4
        both[0, :4] = torch.tensor([0.0, -100.0, 100.0, 1e30])
        gate, up = both[:, :length], both[:, length:]
        want = reference.swiglu(gate.numpy(), up.numpy())
        codes, scales = quantize_activations(want)
        out, (got_codes, got_scales) = swiglu(*both.to(device).split(length, 1))
        yield f"{rows} x {length}", out, torch.from_numpy(want)
        yield f"{rows} x {length} codes", got_codes, torch.from_numpy(codes.astype(np.int8))
        yield f"{rows} x {length} scales", got_scales, torch.from_numpy(scales)


def _compare_add(device: torch.device) -> Cases:
    generator = torch.Generator().manual_seed(1)
    x, wide = (torch.randn(3, n, generator=generator) for n in (1100, 1200))
    share = torch.rand(3, generator=generator)
    y = wide[:, :1100]
    yield "add_shared", add_shared(*(t.to(device) for t in (x, y, share))), x + share[:, None] * y


CHECKS = [Check("swiglu", _compare_swiglu), Check("add_shared", _compare_add)]
LAUNCHES = [
    Launch("swiglu 640", lambda: swiglu(*meta(1, 1280).split(640, 1))),
    Launch("add_shared 2560", lambda: add_shared(meta(1, 2560), meta(1, 2560), meta(1))),
]
