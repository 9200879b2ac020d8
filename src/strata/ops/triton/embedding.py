"""Rows of a table in the blocks of its file: of a vocabulary, or of n-grams.

A row is read where it lies, in the card's memory or in the processor's, and each weight decodes what it needs
of its block; formats as in `formats/quants`, whose numbers these are, to the bit.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.formats.quants import FORMATS
from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import cdiv, kernel

BLOCK = 256
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
QUANTS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_0", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
          "IQ4_XS", "IQ3_S")  # fmt: skip
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """A table `[num_rows, width]`.

    Args:
        format: ggml's name: F32, F16, BF16, or one of QUANTS.
        blocks: of a quantised format uint8 `[num_rows, row bytes]`, of a float that `[num_rows, width]`.
        width: weights of a row.
        codebook: int8 of IQ4_NL's, IQ4_XS's or IQ3_S's values; see `codebook`.
    """

    format: str
    blocks: torch.Tensor
    width: int
    codebook: torch.Tensor

    @classmethod
    def of(cls, format: str, blocks: torch.Tensor, width: int, device: torch.device) -> "EmbeddingTable":
        """A table for kernels on `device`; ValueError where there is no decoder for the format."""
        if format not in FLOATS and format not in QUANTS:
            known = ", ".join((*FLOATS, *QUANTS))
            raise ValueError(f"rows of {format} cannot be read on the card, only {known}")
        return cls(format, blocks, width, codebook(format, device))


def codebook(format: str, device: torch.device) -> torch.Tensor:
    """Values that a format's codes name, int8; without one a tensor of no meaning."""
    if format != "IQ3_S":
        return torch.tensor(_IQ4, dtype=torch.int8, device=device)
    from strata.formats.quants.grid import grid

    return torch.from_numpy(grid(format)).to(torch.int8).to(device)


@triton.jit
def _byte(at, mask):
    return tl.load(at, mask, other=0).to(tl.int32)


@triton.jit
def _half(at, mask):
    """float16 of two bytes, little endian, as float32."""
    bits = _byte(at, mask) | (_byte(at + 1, mask) << 8)
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _small_block(block, j, mask, codebook, FORMAT: tl.constexpr):
    """Weight `j` of a block of 32 (Q2_0: 64) weights with a scale."""
    d = _half(block, mask)
    if FORMAT == "Q8_0":
        return d * tl.load((block + 2 + j).to(tl.pointer_type(tl.int8)), mask, other=0).to(tl.float32)
    elif FORMAT == "Q2_0":
        code = (_byte(block + 2 + j // 4, mask) >> (2 * (j % 4))) & 3
        return d * (code - 1).to(tl.float32)
    else:
        MINIMUM: tl.constexpr = 2 if FORMAT == "Q4_1" or FORMAT == "Q5_1" else 0
        HIGH: tl.constexpr = 4 if FORMAT == "Q5_0" or FORMAT == "Q5_1" else 0
        code = (_byte(block + (2 + MINIMUM + HIGH) + j % 16, mask) >> (4 * (j // 16))) & 15
        if HIGH > 0:
            code |= ((_byte(block + (2 + MINIMUM) + j // 8, mask) >> (j % 8)) & 1) << 4
        if FORMAT == "IQ4_NL":
            return d * tl.load(codebook + code).to(tl.float32)
        elif MINIMUM > 0:
            return d * code.to(tl.float32) + _half(block + 2, mask)
        else:
            return d * (code - (8 if FORMAT == "Q4_0" else 16)).to(tl.float32)


@triton.jit
def _q2_k(block, j, mask):
    code = (_byte(block + 16 + 32 * (j // 128) + j % 32, mask) >> (2 * (j % 128 // 32))) & 3
    scales = _byte(block + j // 16, mask)
    scale, minimum = _half(block + 80, mask) * (scales & 15), _half(block + 82, mask) * (scales >> 4)
    return scale * code.to(tl.float32) - minimum


@triton.jit
def _q3_k(block, j, mask):
    code = (_byte(block + 32 + 32 * (j // 128) + j % 32, mask) >> (2 * (j % 128 // 32))) & 3
    code |= ((_byte(block + j % 32, mask) >> (j // 32)) & 1) << 2
    sub = j // 16
    scale = (_byte(block + 96 + sub % 8, mask) >> (4 * (sub // 8))) & 15
    scale |= ((_byte(block + 104 + sub % 4, mask) >> (2 * (sub // 4))) & 3) << 4
    return _half(block + 108, mask) * (scale - 32).to(tl.float32) * (code - 4).to(tl.float32)


@triton.jit
def _q45_k(block, j, mask, FORMAT: tl.constexpr):
    sub = j // 32
    low, middle = _byte(block + 4 + sub % 4, mask), _byte(block + 8 + sub % 4, mask)
    high = _byte(block + 12 + sub % 4, mask)
    scale = tl.where(sub < 4, low & 63, (high & 15) | ((low >> 6) << 4))
    minimum = tl.where(sub < 4, middle & 63, (high >> 4) | ((middle >> 6) << 4))
    CODES: tl.constexpr = 16 if FORMAT == "Q4_K" else 48
    code = (_byte(block + CODES + 32 * (j // 64) + j % 32, mask) >> (4 * (sub % 2))) & 15
    if FORMAT == "Q5_K":
        code |= ((_byte(block + 16 + j % 32, mask) >> sub) & 1) << 4
    d, d_minimum = _half(block, mask), _half(block + 2, mask)
    return d * scale.to(tl.float32) * code.to(tl.float32) - d_minimum * minimum.to(tl.float32)


@triton.jit
def _q6_k(block, j, mask):
    half, quarter = j // 128, j % 128 // 32
    code = (_byte(block + 64 * half + j % 64, mask) >> (4 * (quarter // 2))) & 15
    code |= ((_byte(block + 128 + 32 * half + j % 32, mask) >> (2 * quarter)) & 3) << 4
    scale = tl.load((block + 192 + j // 16).to(tl.pointer_type(tl.int8)), mask, other=0).to(tl.float32)
    return _half(block + 208, mask) * scale * (code - 32).to(tl.float32)


@triton.jit
def _iq4_xs(block, j, mask, codebook):
    sub = j // 32
    scale = (_byte(block + 4 + sub // 2, mask) >> (4 * (sub % 2))) & 15
    scale |= ((_byte(block + 2 + sub // 4, mask) >> (2 * (sub % 4))) & 3) << 4
    code = (_byte(block + 8 + 16 * sub + j % 16, mask) >> (4 * (j % 32 // 16))) & 15
    return _half(block, mask) * (scale - 32).to(tl.float32) * tl.load(codebook + code).to(tl.float32)


@triton.jit
def _iq3_s(block, j, mask, codebook):
    group = j // 4
    entry = _byte(block + 2 + group, mask) | (
        ((_byte(block + 66 + group // 8, mask) >> (group % 8)) & 1) << 8
    )
    size = tl.load(codebook + entry * 4 + j % 4).to(tl.float32)
    is_negative = ((_byte(block + 74 + j // 8, mask) >> (j % 8)) & 1) > 0
    scale = 2 * ((_byte(block + 106 + j // 64, mask) >> (4 * (j // 32 % 2))) & 15) + 1
    return _half(block, mask) * scale.to(tl.float32) * tl.where(is_negative, -size, size)


@kernel
def _embed(ids, table, codebook, out, num_rows, WIDTH: tl.constexpr, FORMAT: tl.constexpr,
           BLOCK_SIZE: tl.constexpr, BLOCK_BYTES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A program is BLOCK weights of a row."""
    begin_kernel()
    row = tl.program_id(0)
    number = tl.minimum(tl.maximum(tl.load(ids + row), 0), num_rows - 1).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = k < WIDTH
    if FORMAT == "float":
        value = tl.load(table + number * WIDTH + k, mask, other=0.0).to(tl.float32)
    else:
        block = table + number * (WIDTH // BLOCK_SIZE * BLOCK_BYTES) + k // BLOCK_SIZE * BLOCK_BYTES
        j = k % BLOCK_SIZE
        if FORMAT == "Q2_K":
            value = _q2_k(block, j, mask)
        elif FORMAT == "Q3_K":
            value = _q3_k(block, j, mask)
        elif FORMAT == "Q4_K" or FORMAT == "Q5_K":
            value = _q45_k(block, j, mask, FORMAT)
        elif FORMAT == "Q6_K":
            value = _q6_k(block, j, mask)
        elif FORMAT == "IQ4_XS":
            value = _iq4_xs(block, j, mask, codebook)
        elif FORMAT == "IQ3_S":
            value = _iq3_s(block, j, mask, codebook)
        else:
            value = _small_block(block, j, mask, codebook, FORMAT)
    tl.store(out + row.to(tl.int64) * WIDTH + k, value, mask)


def embed(ids: torch.Tensor, table: EmbeddingTable, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rows `ids` of `table`.

    Args:
        ids: int32 or int64 `[rows]`; what is outside of the table reads its first or last row.
        table: its blocks may be pinned memory of the processor.
        out: float32 `[rows, width]`, contiguous.

    Returns:
        `out`, or a new tensor.
    """
    rows, is_float = ids.numel(), table.format in FLOATS
    out = torch.empty(rows, table.width, device=ids.device) if out is None else out
    quant = None if is_float else FORMATS[table.format]
    _embed[(rows, cdiv(table.width, BLOCK))](  # the first may be beyond 65,535
        ids, table.blocks, table.codebook, out, table.blocks.shape[0], WIDTH=table.width,
        FORMAT="float" if is_float else table.format, BLOCK_SIZE=1 if is_float else quant.block_size,
        BLOCK_BYTES=0 if is_float else quant.block_bytes, BLOCK=BLOCK, num_warps=4, **step_launch(),
    )  # fmt: skip
    return out
