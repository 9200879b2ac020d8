"""What every quantised format shares: a block layout, a decoder, and the unpacking of small integers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Values decoded at a time: 4 MiB of float32, so that the half dozen temporaries of a decoder stay in cache.
CHUNK_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """A ggml tensor type: fixed-size blocks of bytes, each holding `block_size` weights of one row.

    Args:
        name: ggml's name, as in `TensorInfo.format`.
        ggml_id: the number that GGUF files store.
        block_size: weights per block.
        layout: structured dtype of one block, little endian, without padding.
        decode: structured blocks `[n]` -> float32 `[n, block_size]`.
    """

    name: str
    ggml_id: int
    block_size: int
    layout: np.dtype
    decode: Callable[[np.ndarray], np.ndarray]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.layout.itemsize

    def dequantize(self, blocks: np.ndarray) -> np.ndarray:
        """Decode blocks, uint8 `[n, block_bytes]`, to a new float32 `[n, block_size]`, in bounded chunks."""
        blocks = np.ascontiguousarray(blocks).reshape(-1).view(self.layout)
        out = np.empty((blocks.size, self.block_size), dtype=np.float32)
        step = max(1, CHUNK_VALUES // self.block_size)
        # A scale may be infinite or NaN in a damaged file: the numbers then say so, without a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, blocks.size, step):
                out[start : start + step] = self.decode(blocks[start : start + step])
        return out


# _CODES[bits][byte] = the 8 / bits integers in a byte, lowest bits first.
_CODES = {
    bits: (np.arange(256)[:, None] >> np.arange(0, 8, bits) & (1 << bits) - 1).astype(np.uint8)
    for bits in (1, 2, 4)
}


def unpack(packed: np.ndarray, bits: int, width: int) -> np.ndarray:
    """Split bytes into integers of `bits` bits.

    ggml stores the low parts of `width` consecutive values in `width` bytes, then the next `width`
    values in the next higher bits of the same bytes, and so on; then come the next `width` bytes.

    Args:
        packed: uint8 `[n, m]`, `m` a multiple of `width`.
        bits: 1, 2 or 4.
        width: bytes per group; 1 means that neighbours share a byte.

    Returns:
        uint8 `[n, m * 8 / bits]` in the order of the weights.
    """
    n = packed.shape[0]
    if width == 1:
        return _CODES[bits][packed].reshape(n, -1)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return ((packed.reshape(n, -1, 1, width) >> shifts) & np.uint8((1 << bits) - 1)).reshape(n, -1)


def f32(x: np.ndarray) -> np.ndarray:
    """Exact conversion of integers or float16 to float32."""
    return x.astype(np.float32)


def column(x: np.ndarray) -> np.ndarray:
    """Per-block scales `[n]` as float32 `[n, 1]`, to multiply a block's values."""
    return x.astype(np.float32)[:, None]
