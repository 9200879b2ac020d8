"""How each format lies in memory for kernels (docs/NUMERICS.md, "The planes"), and a readable decoder of it.

The same facts are in native/layout.hpp, formats.hpp and grids.hpp; tests/formats/test_planes.py holds this
table and the decoder to the bytes that `strata.native.matrix.pack` writes.
"""

from dataclasses import dataclass

import numpy as np

from strata.formats.quants.grid import grid
from strata.formats.quants.integer import IntegerMatrix
from strata.formats.quants.table import _E2M1_DOUBLED, _E8M0, _NONLINEAR, _UE4M3

TILE_ROWS = 16
ACTIVATION_BLOCK = 128
_SCALE_BYTES = {"none": 0, "f16": 2, "e8m0": 1, "ue4m3": 1, "f32": 4}
_PLANES = ("low", "high", "scale", "minimum", "sub", "sub_minimum", "extra")


@dataclass(frozen=True, slots=True)
class PlaneFormat:
    """One format.

    Args:
        low, high: bits of a code in the two planes of codes.
        scale: storage of the float scale of `scale_block` weights: f16, e8m0, ue4m3, f32, or none.
        values: linear (code - offset), iq4 or e2m1 (table of 16), grid (codebook), signed, float.
        sub: integer sub-scale of `sub_block` weights: none, i8, u8, nibbles (scale low, minimum high), grid.
        minimum: none; f16 (added); sub (a float times integer sub-minima, subtracted).
        index_weights: weights that a codebook's index names; 0 where there is none.
        extra, sub_bits: bits of upper index bits and of sub-scales for 32 weights of a codebook format.
        scale_factor: power of two that stored scales are multiplied with.
    """

    low: int
    high: int = 0
    scale_block: int = 256
    scale: str = "f16"
    values: str = "linear"
    offset: int = 0
    sub: str = "none"
    sub_block: int = 32
    minimum: str = "none"
    index_weights: int = 0
    extra: int = 0
    sub_bits: int = 0
    scale_factor: float = 1.0

    @property
    def span(self) -> int:
        """Weights whose products are summed up in integers."""
        return min(self.scale_block, ACTIVATION_BLOCK)

    @property
    def span_words(self) -> int:
        """Words of the low plane, or indices of a codebook, in a span of a row."""
        return self.span // self.index_weights if self.index_weights else self.span * self.low // 32

    def row_bytes(self, num_in: int) -> dict[str, int]:
        """Bytes that a row of `num_in` weights has in each plane of its tile, in the planes' order."""
        subs = num_in // self.sub_block
        sizes = (
            num_in * self.low // 8,
            num_in * self.high // 8,
            -(-num_in // self.scale_block) * _SCALE_BYTES[self.scale],
            0 if self.minimum == "none" else num_in // self.scale_block * 2,
            num_in * self.sub_bits // 256 if self.index_weights else 0 if self.sub == "none" else subs,
            subs if self.minimum == "sub" and self.sub != "nibbles" else 0,
            num_in * self.extra // 256,
        )
        return dict(zip(_PLANES, sizes, strict=True))

    def offset_of(self, plane: str, num_in: int) -> int:
        """Byte of a tile where `plane` begins."""
        sizes = self.row_bytes(num_in)
        return sum(sizes[p] for p in _PLANES[: _PLANES.index(plane)]) * TILE_ROWS

    def tile_bytes(self, num_in: int) -> int:
        """Bytes of 16 rows."""
        return -(-sum(self.row_bytes(num_in).values()) * TILE_ROWS // 64) * 64


def _grid(weights: int, extra: int, sub_bits: int, sub_block: int, scale_factor: float) -> PlaneFormat:
    return PlaneFormat(
        low=8 // weights, high=0 if extra == 16 else 1, values="grid", sub="grid", sub_block=sub_block,
        index_weights=weights, extra=extra, sub_bits=sub_bits, scale_factor=scale_factor,
    )  # fmt: skip


QUANT_PLANES: dict[str, PlaneFormat] = {
    "Q8_0": PlaneFormat(8, scale_block=32, values="signed"),
    "Q4_0": PlaneFormat(4, scale_block=32, offset=8),
    "Q4_1": PlaneFormat(4, scale_block=32, minimum="f16"),
    "Q5_0": PlaneFormat(4, 1, scale_block=32, offset=16),
    "Q5_1": PlaneFormat(4, 1, scale_block=32, minimum="f16"),
    "Q2_0": PlaneFormat(2, scale_block=64, offset=1),
    "Q2_K": PlaneFormat(2, sub="nibbles", sub_block=16, minimum="sub"),
    "Q3_K": PlaneFormat(2, 1, offset=4, sub="i8", sub_block=16),
    "Q4_K": PlaneFormat(4, sub="u8", minimum="sub"),
    "Q5_K": PlaneFormat(4, 1, sub="u8", minimum="sub"),
    "Q6_K": PlaneFormat(4, 2, offset=32, sub="i8", sub_block=16),
    "IQ4_NL": PlaneFormat(4, scale_block=32, values="iq4"),
    "IQ4_XS": PlaneFormat(4, values="iq4", sub="i8"),
    "MXFP4": PlaneFormat(4, scale_block=32, scale="e8m0", values="e2m1"),
    "NVFP4": PlaneFormat(4, scale_block=16, scale="ue4m3", values="e2m1"),
    "IQ1_S": _grid(8, 16, 0, 32, 0.125),
    "IQ1_M": _grid(8, 16, 8, 16, 0.125),
    "IQ2_XXS": _grid(8, 0, 4, 32, 0.125),
    "IQ2_XS": _grid(8, 4, 8, 16, 0.125),
    "IQ2_S": _grid(8, 8, 8, 16, 0.125),
    "IQ3_XXS": _grid(4, 0, 4, 32, 0.25),
    "IQ3_S": _grid(4, 8, 4, 32, 1.0),
}
FLOAT_PLANES: dict[str, PlaneFormat] = {
    "F32": PlaneFormat(32, scale_block=1, scale="none", values="float"),
    "F16": PlaneFormat(16, scale_block=1, scale="none", values="float"),
    "BF16": PlaneFormat(16, scale_block=1, scale="none", values="float"),
    "F8_E4M3": PlaneFormat(8, scale_block=128, scale="f32", values="float"),
}
PLANES = QUANT_PLANES | FLOAT_PLANES


def plane_bytes(format: str, num_out: int, num_in: int) -> int:
    """Bytes of the planes of a matrix `[num_out, num_in]`."""
    return -(-num_out // TILE_ROWS) * PLANES[format].tile_bytes(num_in)


class _Tiles:
    """The planes of a matrix, row by row."""

    def __init__(self, format: PlaneFormat, num_out: int, num_in: int, planes: np.ndarray):
        self.format, self.num_out, self.num_in = format, num_out, num_in
        self.tiles = planes.reshape(-1, format.tile_bytes(num_in))

    def view(self, plane: str, dtype: type) -> np.ndarray:
        """The elements of a plane as they lie, `[tiles, elements of a row, 16]`; may be written to."""
        begin = self.format.offset_of(plane, self.num_in)
        size = self.format.row_bytes(self.num_in)[plane] * TILE_ROWS
        return self.tiles[:, begin : begin + size].view(dtype).reshape(len(self.tiles), -1, TILE_ROWS)

    def rows(self, plane: str, dtype: type) -> np.ndarray:
        """`[num_out, elements of a row]`."""
        elements = self.view(plane, dtype)
        return elements.transpose(0, 2, 1).reshape(-1, elements.shape[1])[: self.num_out]

    def codes(self, plane: str, bits: int) -> np.ndarray:
        """Unsigned codes of `bits` bits, `[num_out, num_in]`: four to each word's bytes, low bits first."""
        words = np.ascontiguousarray(self.rows(plane, np.uint32)).view(np.uint8)
        groups = words.reshape(self.num_out, -1, 1, 4) >> np.arange(0, 8, bits, dtype=np.uint8)[:, None]
        return (groups & np.uint8((1 << bits) - 1)).reshape(self.num_out, self.num_in)


def decode_planes(format: str, num_out: int, num_in: int, planes: np.ndarray) -> IntegerMatrix:
    """What uint8 `planes` `[plane bytes]` of a quantised matrix mean."""
    f = QUANT_PLANES[format]
    tiles = _Tiles(f, num_out, num_in, planes)
    if f.scale == "f16":
        scales = tiles.rows("scale", np.float16).astype(np.float32) * np.float32(f.scale_factor)
    else:
        scales = (_E8M0 if f.scale == "e8m0" else _UE4M3)[tiles.rows("scale", np.uint8)]
    if f.index_weights:
        codes, subscales = _grid_codes(format, tiles)
        return IntegerMatrix(codes, scales, subscales, None, None)
    codes = tiles.codes("low", f.low)
    if f.high:
        codes = codes | tiles.codes("high", f.high) << np.uint8(f.low)
    if f.values in ("iq4", "e2m1"):
        codes = (_NONLINEAR if f.values == "iq4" else _E2M1_DOUBLED)[codes]
    codes = (codes.view(np.int8) if f.values == "signed" else codes).astype(np.int32) - f.offset
    subscales, sub_minima = None, None
    if f.sub != "none":
        subscales = tiles.rows("sub", np.int8 if f.sub == "i8" else np.uint8).astype(np.int32)
    if f.sub == "nibbles":
        subscales, sub_minima = subscales & 15, subscales >> 4
    elif f.minimum == "sub":
        sub_minima = tiles.rows("sub_minimum", np.uint8).astype(np.int32)
    minima = None if f.minimum == "none" else tiles.rows("minimum", np.float16).astype(np.float32)
    return IntegerMatrix(codes, scales, subscales, minima, sub_minima)


def _nibbles(bytes_: np.ndarray) -> np.ndarray:
    return np.stack([bytes_ & 15, bytes_ >> 4], axis=-1).reshape(len(bytes_), -1)


def _bits(numbers: np.ndarray, width: int, count: int) -> np.ndarray:
    """The `count` lowest fields of `width` bits of each number, side by side."""
    fields = numbers[:, :, None] >> np.arange(0, width * count, width) & (1 << width) - 1
    return fields.reshape(len(numbers), -1)


def _grid_codes(format: str, tiles: _Tiles) -> tuple[np.ndarray, np.ndarray]:
    """Codes `[num_out, num_in]` and sub-scales of a codebook format."""
    f, rows = tiles.format, tiles.num_out
    index = tiles.rows("low", np.uint8).astype(np.int32)
    if f.extra == 16:
        extra = tiles.rows("extra", np.uint16).astype(np.int32)
        fields = _bits(extra, 3 if format == "IQ1_S" else 4, 4)
        index += (fields & 7) << 8
        minus = (extra >> 15).repeat(4, axis=1) if format == "IQ1_S" else fields >> 3
        codes = 8 * grid("IQ1_S")[index] + np.where(minus, -1, 1)[:, :, None]
        stored = extra >> 12 & 7 if format == "IQ1_S" else _nibbles(tiles.rows("sub", np.uint8))
        return codes.reshape(rows, -1).astype(np.int32), 2 * stored.astype(np.int32) + 1
    if f.extra:
        extra = tiles.rows("extra", np.uint8).astype(np.int32)
        width = f.extra * f.index_weights // 32
        index += _bits(extra, width, 8 // width) << 8
    signs = np.where(tiles.codes("high", 1), -1, 1)
    codes = grid(format)[index].reshape(rows, -1).astype(np.int32) * signs
    return codes, 2 * _nibbles(tiles.rows("sub", np.uint8)).astype(np.int32) + 1


def random_planes(format: str, num_out: int, num_in: int, seed: int, scale: float = 1.0) -> np.ndarray:
    """Planes of a made-up matrix: random codes, scales and minima normal with deviation `scale`.

    Sub-scales and sub-minima are such as a file can hold: six bits where they are `u8`.
    """
    f = QUANT_PLANES[format]
    rng = np.random.default_rng(seed)
    planes = rng.integers(0, 256, plane_bytes(format, num_out, num_in), dtype=np.uint8)
    tiles = _Tiles(f, num_out, num_in, planes)
    for plane in ("scale", "minimum"):
        if f.scale == "f16" and f.row_bytes(num_in)[plane]:
            values = tiles.view(plane, np.float16)
            values[...] = scale * rng.standard_normal(values.shape)
    if f.sub == "u8":
        for plane in ("sub", "sub_minimum"):
            tiles.view(plane, np.uint8)[...] &= 63
    if f.scale == "e8m0":
        values = tiles.view("scale", np.uint8)
        values[...] = rng.integers(110, 130, values.shape)
    return planes
