"""Byte instructions against the same in torch."""

from collections.abc import Iterator

import torch
import triton.language as tl

from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.intrinsics import dot4, dot4_unsigned, perm, to_half
from strata.ops.triton.kernel import kernel

_BLOCK = 256


@kernel
def _bytes_kernel(a, b, c, signed, unsigned, permuted, halves, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y, z = tl.load(a + i), tl.load(b + i), tl.load(c + i)
    tl.store(signed + i, dot4(x, y, z))
    tl.store(unsigned + i, dot4_unsigned(x, y, z))
    tl.store(permuted + i, perm(x, y, z & 0x07070707))
    tl.store(halves + i, to_half(x.to(tl.int8)))


def _launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`dot4`, `dot4_unsigned`, `perm` by the low bits of `c`: int32; `to_half` of the low bytes of `a`.

    Of a multiple of 256 elements.
    """
    outs = (*(torch.empty_like(a) for _ in range(3)), torch.empty_like(a, dtype=torch.float16))
    _bytes_kernel[(a.numel() // _BLOCK,)](a, b, c, *outs, BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False)
    return outs


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randint(-128, 128, (2, 2 * _BLOCK, 4), dtype=torch.int8, generator=generator)
    a[:256, 0] = torch.arange(-128, 128)
    a[0], b[0] = torch.tensor([-128, 127, -1, 0]), torch.tensor([-128, -128, 127, -1])
    c = torch.randint(-(2**24), 2**24, (2 * _BLOCK,), dtype=torch.int32, generator=generator)
    words = [x.contiguous().view(torch.int32).reshape(-1) for x in (a, b)]
    got = _launch(*(x.to(device) for x in (*words, c)))
    yield "dot4", got[0], c + (a.int() * b.int()).sum(1, dtype=torch.int32)
    unsigned = a.view(torch.uint8).int()
    yield "dot4_unsigned", got[1], c + (unsigned * b.int()).sum(1, dtype=torch.int32)
    selectors = (c.view(torch.int8).reshape(-1, 4) & 7).long()
    picked = torch.cat([b, a], 1).gather(1, selectors)
    yield "to_half", got[3], a[:, 0].half()
    yield "perm", got[2], picked.contiguous().view(torch.int32).reshape(-1)


CHECKS = [Check("intrinsics", _compare)]
LAUNCHES = [Launch("intrinsics", lambda: _launch(*(meta(4096, dtype=torch.int32) for _ in range(3))))]
