"""Products with matrices that are not quantised against the reference, in bits."""

import numpy as np
import pytest
import torch

from strata.formats.quants import FORMATS
from strata.formats.quants.integer import integer_decode
from strata.native import Activations, ExpertPlanes, Experts, Matrix
from strata.ops.float_matmul import FloatMatrix, float_matmul
from strata.ops.quantized_experts import Expert, quantized_experts
from strata.ops.quantized_matmul import quantized_matmul
from tests.helpers.quant_blocks import assert_same_bits, random_blocks, random_rows

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def random_floats(name: str, num_out: int, num_in: int, seed: int = 0) -> tuple[np.ndarray, FloatMatrix]:
    """A matrix as bytes of a file, and as the reference has it."""
    weights = torch.from_numpy(
        np.random.default_rng(seed).standard_normal((num_out, num_in), dtype=np.float32)
    )
    stored = weights.to(TYPES[name])
    return stored.view(torch.uint8).numpy(), FloatMatrix(stored.float().numpy())


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("num_in", [1, 7, 128, 300])
def test_every_row_count_gives_the_bits_of_the_reference(name, num_in, isa):
    num_out = 37  # two tiles and five rows
    blocks, reference = random_floats(name, num_out, num_in)
    x = random_rows(23, num_in)
    want = float_matmul(reference, x)
    assert np.ptp(want) > 0
    matrix = Matrix.from_gguf(name, num_out, num_in, blocks)
    for rows in (1, 2, 3, 4, 5, 8, 23):
        assert_same_bits(matrix.multiply(torch.from_numpy(x[:rows])).numpy(), want[:rows])


def test_large_batches_and_threads(threads):
    blocks, reference = random_floats("BF16", 150, 260)
    x = random_rows(300, 260)  # more rows than one pass takes
    want = float_matmul(reference, x)
    assert_same_bits(Matrix.from_gguf("BF16", 150, 260, blocks).multiply(torch.from_numpy(x)).numpy(), want)


@pytest.mark.parametrize("num_in", [1, 128, 300])
def test_fp8_gives_the_bits_of_the_reference(num_in, isa):
    num_out = 150  # two rows of scales
    rng = np.random.default_rng(5)
    weights = torch.from_numpy(rng.standard_normal((num_out, num_in), dtype=np.float32))
    stored = weights.to(torch.float8_e4m3fn)
    scales = rng.random((2, -(-num_in // 128)), dtype=np.float32)
    reference = FloatMatrix(stored.float().numpy(), scales.repeat(128, axis=0)[:num_out])
    x = random_rows(23, num_in)
    want = float_matmul(reference, x)
    assert np.ptp(want) > 0
    matrix = Matrix.from_fp8(num_out, num_in, stored.view(torch.uint8).numpy(), scales)
    for rows in (1, 3, 4, 23):
        assert_same_bits(matrix.multiply(torch.from_numpy(x[:rows])).numpy(), want[:rows])


def test_all_fp8_numbers_are_widened_exactly(isa):
    numbers = np.arange(256, dtype=np.uint8)
    want = torch.from_numpy(numbers).view(torch.float8_e4m3fn).float().numpy() + np.float32(0)
    assert np.isnan(want).sum() == 2
    matrix = Matrix.from_fp8(256, 1, numbers, np.ones((2, 1), np.float32))
    assert_same_bits(matrix.multiply(torch.ones(1, 1))[0].numpy(), want)


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_all_numbers_are_widened_exactly(name, isa):
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    want = FORMATS[name].dequantize(numbers)[:, 0]
    one = torch.ones(1, 1)
    got = Matrix.from_gguf(name, 1 << 16, 1, numbers).multiply(one)[0].numpy()
    with np.errstate(invalid="ignore"):
        want = want + np.float32(0)  # the sum starts at +0, so that -0 becomes +0
    assert_same_bits(got, want)


def test_unusual_activations(isa):
    blocks, reference = random_floats("F32", 20, 40)
    x = random_rows(5, 40)
    x[0, 3], x[1, 0], x[2] = np.nan, np.inf, x[2] * np.float32(1e-42)
    got = Matrix.from_gguf("F32", 20, 40, blocks).multiply(torch.from_numpy(x))
    assert_same_bits(got.numpy(), float_matmul(reference, x))


def test_one_set_of_activations_serves_floats_and_integers(isa):
    x = random_rows(6, 64)
    activations = Activations(torch.from_numpy(x))
    floats, reference = random_floats("BF16", 24, 64)
    blocks = random_blocks("Q4_0", 24, 64)
    for _ in range(2):
        got = Matrix.from_gguf("BF16", 24, 64, floats).multiply(activations)
        assert_same_bits(got.numpy(), float_matmul(reference, x))
        got = Matrix.from_gguf("Q4_0", 24, 64, blocks).multiply(activations)
        assert_same_bits(got.numpy(), quantized_matmul(integer_decode("Q4_0", blocks, 24, 64), x))


@pytest.mark.parametrize(
    "formats", [("BF16", "BF16", "BF16"), ("F32", "Q8_0", "F16"), ("Q8_0", "Q4_0", "F32")]
)
def test_experts_may_be_floats(formats, isa, threads):
    width, ff, count = 64, 96, 3
    shapes = ((ff, width), (ff, width), (width, ff))
    planes, decoded = [], []
    for role, (name, (n, k)) in enumerate(zip(formats, shapes, strict=True)):
        if name in TYPES:
            made = [random_floats(name, n, k, seed=10 * role + e) for e in range(count)]
        else:
            blocks = [random_blocks(name, n, k, seed=10 * role + e, scale=0.01) for e in range(count)]
            made = [(b, integer_decode(name, b, n, k)) for b in blocks]
        planes.append(ExpertPlanes(name, np.stack([Matrix.from_gguf(name, n, k, b).planes for b, _ in made])))
        decoded.append([reference for _, reference in made])
    reference = [Expert(*parts) for parts in zip(*decoded, strict=True)]
    x = random_rows(9, width)
    rng = np.random.default_rng(3)
    ids = np.stack([rng.permutation(count)[:2] for _ in x])
    weights = rng.random(ids.shape, dtype=np.float32)
    got = Experts(width, ff, *planes)(*map(torch.from_numpy, (x, ids, weights)))
    assert_same_bits(got.numpy(), quantized_experts(reference, x, ids, weights))


def test_a_matrix_refuses_activations_of_another_width():
    matrix = Matrix.from_gguf("F32", 2, 3, np.zeros(24, np.uint8))
    with pytest.raises(ValueError, match="is 4, expected 3"):
        matrix.multiply(torch.zeros(1, 4))
