"""The native expert job against the reference, in bits."""

import math

import numpy as np
import pytest
import torch

from strata.formats.quants.integer import integer_decode
from strata.native import ExpertPlanes, Experts, Matrix
from strata.ops.quantized_experts import Expert, exponential, quantized_experts
from tests.helpers.quant_blocks import assert_same_bits, random_blocks, random_rows

WIDTH, FF, COUNT = 256, 512, 5


def build(formats: tuple[str, str, str]) -> tuple[Experts, list[Expert]]:
    """The same random experts, native and as the reference has them."""
    shapes = ((FF, WIDTH), (FF, WIDTH), (WIDTH, FF))
    planes, decoded = [], []
    for role, (name, (n, k)) in enumerate(zip(formats, shapes, strict=True)):
        blocks = [random_blocks(name, n, k, seed=10 * role + e, scale=0.001) for e in range(COUNT)]
        planes.append(ExpertPlanes(name, np.stack([Matrix.from_gguf(name, n, k, b).planes for b in blocks])))
        decoded.append([integer_decode(name, b, n, k) for b in blocks])
    return Experts(WIDTH, FF, *planes), [Expert(*parts) for parts in zip(*decoded, strict=True)]


@pytest.mark.parametrize(
    "formats", [("Q4_K", "Q4_K", "Q6_K"), ("IQ3_XXS", "IQ3_XXS", "IQ4_NL"), ("Q8_0",) * 3]
)
def test_experts_give_the_bits_of_the_reference(formats, isa, threads):
    native, reference = build(formats)
    rng = np.random.default_rng(3)
    x = random_rows(23, WIDTH)
    ids = np.stack([rng.permutation(COUNT)[:3] for _ in x])
    ids[:, 0] = 2  # one expert with many rows
    weights = rng.random(ids.shape, dtype=np.float32)
    want = quantized_experts(reference, x, ids, weights)
    assert np.isfinite(want).all() and np.ptp(want) > 0
    for rows in (1, 2, 13, 23):
        got = native(
            torch.from_numpy(x[:rows]), torch.from_numpy(ids[:rows]), torch.from_numpy(weights[:rows])
        )
        assert_same_bits(got.numpy(), want[:rows])


def test_exponential_is_close_to_exp():
    x = np.linspace(-87, 88, 100_001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(exponential(x) / exact - 1).max() < 2e-7
    assert exponential(np.float32([1e9]))[0] == exponential(np.float32([88]))[0]
    assert math.isnan(exponential(np.float32([np.nan]))[0])


def test_an_expert_that_does_not_exist_is_named():
    native, _ = build(("Q8_0",) * 3)
    with pytest.raises(ValueError, match="expert id is 5, expected 0 to 4"):
        native(torch.zeros(1, WIDTH), torch.tensor([[5]]), torch.ones(1, 1))


def records(formats: tuple[str, str, str], gap: int) -> tuple[Experts, Experts]:
    """The same experts, their planes in tensors of their own and together in one record for each expert."""
    shapes = ((FF, WIDTH), (FF, WIDTH), (WIDTH, FF))
    apart = [
        np.stack(
            [Matrix.from_gguf(f, *s, random_blocks(f, *s, seed=e, scale=0.001)).planes for e in range(COUNT)]
        )
        for f, s in zip(formats, shapes, strict=True)
    ]
    together = np.concatenate([*apart, np.zeros((COUNT, gap), np.uint8)], axis=1)
    views = np.split(together, np.cumsum([planes.shape[1] for planes in apart]), axis=1)
    return tuple(
        Experts(WIDTH, FF, *(ExpertPlanes(*pair) for pair in zip(formats, planes, strict=True)))
        for planes in (apart, views[:3])
    )


def test_experts_may_lie_in_records():
    apart, together = records(("Q4_K", "IQ4_NL", "Q8_0"), gap=64)
    x, ids = torch.from_numpy(random_rows(20, WIDTH)), torch.arange(40).view(20, 2) % COUNT
    weights = torch.rand(20, 2)
    assert torch.equal(together(x, ids, weights), apart(x, ids, weights))


def test_records_keep_cache_lines():
    with pytest.raises(ValueError, match="bytes apart, which is no multiple of 64"):
        records(("Q4_K", "IQ4_NL", "Q8_0"), gap=32)
