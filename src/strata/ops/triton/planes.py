"""What kernels ask about the planes of a format while they are compiled (strata.formats.quants.planes)."""

import triton

from strata.formats.quants.planes import ACTIVATION_BLOCK, PLANES, TILE_ROWS, plane_bytes

__all__ = ["ACTIVATION_BLOCK", "TILE_ROWS", "fact", "plane_bytes", "plane_offset", "tile_bytes"]


@triton.constexpr_function
def tile_bytes(format: str, num_in: int) -> int:
    """Bytes of 16 rows of `num_in` weights."""
    return PLANES[format].tile_bytes(num_in)


@triton.constexpr_function
def plane_offset(format: str, num_in: int, plane: str) -> int:
    """Byte of a tile where a plane begins."""
    return PLANES[format].offset_of(plane, num_in)


@triton.constexpr_function
def fact(format: str, name: str) -> int | float | str:
    """An attribute of the format."""
    return getattr(PLANES[format], name)
