"""SwiGLU against its reference."""

from collections.abc import Iterator

import numpy as np
import torch

from strata.ops import quantized_experts as reference
from strata.ops.quantized_matmul import quantize_activations
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.feed_forward import swiglu

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


CHECKS = [Check("swiglu", _compare_swiglu)]
LAUNCHES = [Launch("swiglu 640", lambda: swiglu(*meta(1, 1280).split(640, 1)))]
