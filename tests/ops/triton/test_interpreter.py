"""bfloat16 in the interpreter is torch's."""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def convert_kernel(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    half = tl.load(x + i).to(tl.bfloat16)
    tl.store(y + i, half)
    tl.store(z + i, half.to(tl.float32) + 1)


@triton.jit
def dot_kernel(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + i, tl.dot(tl.load(a + i), tl.load(b + i)))


@triton.jit
def add_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i) + tl.load(x + i))


def test_conversions_round_to_nearest_even():
    x = torch.randn(256)
    x[:3] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, float("inf")])
    y, z = torch.empty(256, dtype=torch.bfloat16), torch.empty(256)
    convert_kernel[(1,)](x, y, z, N=256)
    assert torch.equal(y, x.bfloat16()) and torch.equal(z, x.bfloat16().float() + 1)


def test_dot_multiplies_numbers():
    a, b = torch.randn(2, 16, 16).bfloat16()
    c = torch.empty(16, 16)
    dot_kernel[(1,)](a, b, c, N=16)
    torch.testing.assert_close(c, a.float() @ b.float())


def test_arithmetic_is_refused():
    x = torch.ones(16, dtype=torch.bfloat16)
    with pytest.raises(Exception, match="convert to float32 first"):
        add_kernel[(1,)](x, x.clone(), N=16)
