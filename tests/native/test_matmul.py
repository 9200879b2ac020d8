"""Native products against the reference of the numeric contract, in bits."""

import numpy as np
import pytest
import torch

from strata.formats.quants import FORMATS
from strata.formats.quants.integer import INTEGER_FORMATS, integer_decode
from strata.native import Activations, Matrix, _core, set_num_threads
from strata.ops.quantized_matmul import quantized_matmul
from tests.helpers.quant_blocks import assert_same_bits, random_blocks, random_rows


def widths(name: str) -> list[int]:
    """One whole number of activation blocks, and one that ends in a shorter block."""
    block = FORMATS[name].block_size
    return [256, 768] if block == 256 else [256, 128 + block]


def test_all_formats_are_native():
    assert set(_core.formats()) == {*FORMATS, "F8_E4M3"}


@pytest.mark.parametrize("name", INTEGER_FORMATS)
def test_every_row_count_gives_the_bits_of_the_reference(name, isa):
    for num_in in widths(name):
        num_out = 37  # two tiles and five rows
        blocks = random_blocks(name, num_out, num_in)
        x = random_rows(40, num_in)  # panels of 8, 4, 2 and 1 rows; in a batch 16, 16 and 8
        want = quantized_matmul(integer_decode(name, blocks, num_out, num_in), x)
        assert np.isfinite(want).all() and np.ptp(want) > 0
        matrix = Matrix.from_gguf(name, num_out, num_in, blocks)
        for rows in range(1, 41):
            got = matrix.multiply(torch.from_numpy(x[:rows]))
            assert_same_bits(got.numpy(), want[:rows])


@pytest.mark.parametrize("name", INTEGER_FORMATS)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_extreme_codes_do_not_overflow(name, byte, isa):
    # All weights of a block alike and as large as they come; all activation codes 127 or -127.
    blocks = random_blocks(name, 16, 512)
    fields = blocks.reshape(-1).view(FORMATS[name].layout)
    scales = {field: fields[field].copy() for field in fields.dtype.names if field in ("d", "dmin", "m", "e")}
    blocks[...] = byte
    for field, values in scales.items():
        fields[field] = values
    if name == "IQ1_M":
        fields["scales"][:, 3] &= 0x3FFF
    x = np.stack([np.full(512, 3.0), np.full(512, -3.0), np.tile([3.0, -3.0], 256)]).astype(np.float32)
    x = np.tile(x, (5, 1))
    want = quantized_matmul(integer_decode(name, blocks, 16, 512), x)
    matrix = Matrix.from_gguf(name, 16, 512, blocks)
    for rows in (3, 15):  # few, and a batch
        assert_same_bits(matrix.multiply(torch.from_numpy(x[:rows])).numpy(), want[:rows])


def test_a_batch_larger_than_a_cache_gives_the_bits_of_the_reference(isa):
    # More rows than are multiplied at once, and more weights in a row than are decoded at once.
    blocks = random_blocks("IQ4_XS", 16, 4096)
    x = random_rows(150, 4096)
    want = quantized_matmul(integer_decode("IQ4_XS", blocks, 16, 4096), x)
    assert_same_bits(Matrix.from_gguf("IQ4_XS", 16, 4096, blocks).multiply(torch.from_numpy(x)).numpy(), want)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "MXFP4"])
def test_unusual_numbers(name, isa):
    num_in = 512
    blocks = random_blocks(name, 16, num_in)
    fields = blocks.reshape(-1).view(FORMATS[name].layout)
    if name == "MXFP4":
        fields["e"] = np.arange(len(fields)) % 255  # from subnormal to overflowing scales
    else:
        fields["d"][::3] = np.float16(6e-8)  # the smallest subnormal
        fields["d"][1] = np.inf
    x = random_rows(6, num_in)
    x[1, 5] = np.nan
    x[2, 300] = -np.inf
    x[3] *= np.float32(1e-44)  # subnormal: the scale is rounded coarsely
    x[4] = np.float32(3e38)
    want = quantized_matmul(integer_decode(name, blocks, 16, num_in), x)
    assert np.isnan(want).any() and np.isfinite(want).any()
    assert_same_bits(Matrix.from_gguf(name, 16, num_in, blocks).multiply(torch.from_numpy(x)).numpy(), want)


@pytest.mark.parametrize("rows", [7, 37])
def test_threads_do_not_change_bits(rows, threads):
    blocks = random_blocks("Q4_K", 1000, 512)
    x = random_rows(rows, 512)
    want = quantized_matmul(integer_decode("Q4_K", blocks, 1000, 512), x)
    matrix = Matrix.from_gguf("Q4_K", 1000, 512, blocks)
    activations = Activations(torch.from_numpy(x))
    for _ in range(50):
        assert_same_bits(matrix.multiply(activations).numpy(), want)


@pytest.mark.parametrize("name", INTEGER_FORMATS)
def test_planes_are_at_most_a_tenth_larger_than_the_file(name):
    fmt = FORMATS[name]
    file_bytes = 64 * 2048 // fmt.block_size * fmt.block_bytes
    assert file_bytes <= _core.plane_bytes(name, 64, 2048) <= 1.1 * file_bytes


@pytest.mark.parametrize("name", INTEGER_FORMATS)
def test_integers_and_scales_are_the_decoded_weights(name):
    blocks = random_blocks(name, 4, 512)
    m = integer_decode(name, blocks, 4, 512)

    def spread(values: np.ndarray) -> np.ndarray:
        return np.repeat(values.astype(np.float64), 512 // values.shape[1], axis=1)

    weights = spread(m.scales) * m.codes
    if m.subscales is not None:
        weights *= spread(m.subscales)
    if m.minima is not None:
        weights += spread(m.minima) if m.sub_minima is None else -spread(m.minima) * spread(m.sub_minima)
    # float32 rounds the two products of a term and their sum.
    decoded = FORMATS[name].dequantize(blocks).reshape(4, 512)
    np.testing.assert_allclose(weights, decoded, rtol=1e-6, atol=1e-5 * np.abs(decoded).max())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Matrix.from_gguf("Q9", 16, 32, np.zeros(9, np.uint8)), "no native kernel for .* Q9"),
        (lambda: Matrix.from_gguf("Q4_K", 16, 128, np.zeros(9, np.uint8)), "multiple of 256"),
        (lambda: Matrix.from_gguf("Q4_0", 16, 32, np.zeros(9, np.uint8)), "is 9, expected 288"),
        (lambda: Matrix.from_planes("Q4_0", 16, 32, np.zeros(9, np.uint8)), "is 9, expected 320"),
        (lambda: _core.use_isa("vax"), "no kernels for vax"),
        (lambda: set_num_threads(0), "expected 1 to 1024"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_matrix_refuses_activations_of_another_width():
    matrix = Matrix.from_gguf("Q4_0", 16, 64, random_blocks("Q4_0", 16, 64))
    with pytest.raises(ValueError, match="is 32, expected 64"):
        matrix.multiply(torch.zeros(1, 32))


def test_leading_dimensions_and_no_rows():
    matrix = Matrix.from_gguf("Q8_0", 16, 64, random_blocks("Q8_0", 16, 64))
    x = torch.from_numpy(random_rows(6, 64)).view(2, 3, 64)
    assert torch.equal(matrix.multiply(x), matrix.multiply(x.view(6, 64)).view(2, 3, 16))
    assert matrix.multiply(x[:0]).shape == (0, 3, 16)
