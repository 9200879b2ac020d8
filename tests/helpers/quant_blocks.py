"""Random quantised matrices and activations, and the comparison of bits."""

import numpy as np

from strata.formats.quants import FORMATS

FLOAT_FIELDS = ("d", "dmin", "m")


def random_blocks(name: str, num_out: int, num_in: int, seed: int = 0, scale: float = 1) -> np.ndarray:
    """Random bytes, uint8 `[blocks, block_bytes]`, whose scales are normal with deviation `scale`."""
    rng = np.random.default_rng(seed)
    fmt = FORMATS[name]
    raw = rng.integers(0, 256, (num_out * num_in // fmt.block_size, fmt.block_bytes), dtype=np.uint8)
    blocks = raw.reshape(-1).view(fmt.layout)
    for field in FLOAT_FIELDS:
        if field in fmt.layout.names and fmt.layout[field].base == np.float16:
            blocks[field] = scale * rng.standard_normal(blocks[field].shape)
    if name == "MXFP4":
        blocks["e"] = rng.integers(100, 150, blocks["e"].shape)
    if name == "IQ1_M":  # its float16 is spread over four words: clear the exponent's top bit
        blocks["scales"][:, 3] &= 0xBFFF
    return raw


def random_rows(rows: int, num_in: int, seed: int = 1) -> np.ndarray:
    """Normal activations of which some are a hundred times larger, and one block is all zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, num_in)).astype(np.float32)
    x[rng.random(x.shape) < 0.01] *= 100
    x[-1, :128] = 0
    return x


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(got[numbers].view(np.uint32), want[numbers].view(np.uint32))
