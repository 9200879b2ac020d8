"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864): rotate pairs of a head's values."""

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Rotate the first `2 * pairs` values of every head; the rest pass through.

    Args:
        x: float32 `[n, heads, dim]`.
        cos, sin: float32 `[n, pairs]`.
        interleaved: pair `(2i, 2i + 1)` instead of `(i, i + pairs)`.
    """
    num_rotated = 2 * cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    out = x.clone()
    if interleaved:
        a, b = x[..., 0:num_rotated:2], x[..., 1:num_rotated:2]
        out[..., 0:num_rotated:2] = a * cos - b * sin
        out[..., 1:num_rotated:2] = b * cos + a * sin
    else:
        a, b = x[..., : num_rotated // 2], x[..., num_rotated // 2 : num_rotated]
        out[..., : num_rotated // 2] = a * cos - b * sin
        out[..., num_rotated // 2 : num_rotated] = b * cos + a * sin
    return out
