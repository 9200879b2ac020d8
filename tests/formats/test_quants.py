"""Every decoder against gguf-py's, bit by bit, on random and extreme blocks; Q2_0 against its definition."""

import tracemalloc

import gguf
import numpy as np
import pytest

from strata.formats.quants import FORMATS, FORMATS_BY_ID, UNSUPPORTED_NAMES
from strata.formats.quants.base import CHUNK_VALUES

NAMES = [
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4",
]  # fmt: skip
FLOAT_FIELDS = ("d", "dmin", "m", "x")


def random_blocks(name: str, n: int, seed: int = 0) -> np.ndarray:
    """`n` blocks of random bytes, uint8 `[n, block_bytes]`, whose floats are finite."""
    rng = np.random.default_rng(seed)
    fmt = FORMATS[name]
    raw = rng.integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)
    blocks = raw.reshape(-1).view(fmt.layout)
    for field in FLOAT_FIELDS:
        kind = fmt.layout.fields.get(field)
        if kind is not None and kind[0].base.kind == "f":
            blocks[field] = rng.standard_normal(blocks[field].shape).astype(kind[0].base)
    if name == "IQ1_M":  # its float16 is spread over four words: clear the exponent's top bit
        blocks["scales"][:, 3] &= 0xBFFF
    if name == "BF16":
        blocks["x"] &= 0xBFFF
    if name == "MXFP4":  # the largest exponents overflow float32, as they should
        blocks["e"] = np.minimum(blocks["e"], 250)
    return raw


def expected(name: str, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])


def same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert a.dtype == b.dtype == np.float32
    assert a.shape == b.shape
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("name", NAMES)
def test_random_blocks_decode_as_gguf_decodes_them(name):
    blocks = random_blocks(name, 1024)
    out = FORMATS[name].dequantize(blocks)
    assert np.isfinite(out).all() and np.ptp(out) > 0
    same_bits(out, expected(name, blocks))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("byte", [0x00, 0x01, 0x3C, 0x7B, 0x80, 0xFB])
def test_extreme_blocks_decode_as_gguf_decodes_them(name, byte):
    # Zeros, subnormal scales, the largest float16 (0x7BFF comes close), negative zero, all bits nearly set.
    blocks = np.full((3, FORMATS[name].block_bytes), byte, dtype=np.uint8)
    out = FORMATS[name].dequantize(blocks)
    same_bits(out, expected(name, blocks))


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_every_scale_byte_decodes_as_gguf_decodes_it(name):
    blocks = random_blocks(name, 256)
    blocks[:, : 1 if name == "MXFP4" else 4] = np.arange(256, dtype=np.uint8)[:, None]
    same_bits(FORMATS[name].dequantize(blocks), expected(name, blocks))


def test_registry_agrees_with_ggml():
    for name in NAMES:
        kind = gguf.GGMLQuantizationType[name]
        fmt = FORMATS[name]
        assert fmt.ggml_id == kind and FORMATS_BY_ID[kind] is fmt
        assert (fmt.block_size, fmt.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    assert set(FORMATS) == {*NAMES, "Q2_0"}
    for ggml_id, name in UNSUPPORTED_NAMES.items():
        assert gguf.GGMLQuantizationType(ggml_id).name == name
        assert ggml_id not in FORMATS_BY_ID


def test_q2_0_by_hand():
    fmt = FORMATS["Q2_0"]
    assert (fmt.ggml_id, fmt.block_size, fmt.block_bytes) == (42, 64, 18)
    block = np.zeros(18, dtype=np.uint8)
    block[:2] = np.array([0.5], dtype="<f2").view(np.uint8)
    block[2] = 0b11_10_01_00  # codes 0, 1, 2, 3 from the lowest bits up
    block[17] = 0b00_00_00_11
    out = fmt.dequantize(block[None])
    assert out[0, :4].tolist() == [-0.5, 0.0, 0.5, 1.0]
    assert out[0, 4:60].tolist() == [-0.5] * 56
    assert out[0, 60:].tolist() == [1.0, -0.5, -0.5, -0.5]


def test_q2_0_against_its_formula():
    blocks = random_blocks("Q2_0", 777, seed=3)
    out = FORMATS["Q2_0"].dequantize(blocks)
    for i in (0, 1, 776):
        d = float(blocks[i, :2].copy().view("<f2")[0])
        for j in range(64):
            code = int(blocks[i, 2 + j // 4]) >> 2 * (j % 4) & 3
            assert out[i, j] == np.float32((code - 1) * d)


@pytest.mark.parametrize("name", ["Q4_K", "IQ2_XXS", "Q8_0"])
def test_chunks_join_without_a_seam(name):
    fmt = FORMATS[name]
    n = CHUNK_VALUES // fmt.block_size + 3
    blocks = random_blocks(name, n)
    out = fmt.dequantize(blocks)
    same_bits(out[-7:], fmt.dequantize(blocks[-7:]))
    same_bits(out[:5], fmt.dequantize(blocks[:5]))


@pytest.mark.parametrize("name", NAMES)
def test_temporaries_are_bounded(name):
    fmt = FORMATS[name]
    blocks = np.zeros((5 * CHUNK_VALUES // (2 * fmt.block_size), fmt.block_bytes), dtype=np.uint8)
    fmt.dequantize(blocks[:1])  # load the grids
    tracemalloc.start()
    out = fmt.dequantize(blocks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - out.nbytes < 64 << 20


def test_non_contiguous_rows_decode():
    blocks = random_blocks("Q4_0", 8)
    same_bits(FORMATS["Q4_0"].dequantize(blocks[::2]), FORMATS["Q4_0"].dequantize(blocks)[::2])


def test_no_blocks_decode_to_nothing():
    assert FORMATS["Q6_K"].dequantize(np.empty((0, 210), dtype=np.uint8)).shape == (0, 256)
