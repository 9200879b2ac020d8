"""From projections to attention in one step: normalise, rotate, append to the cache, attend, gate."""

import torch

from strata.ops.attention import attend
from strata.ops.rms_norm import rms_norm
from strata.ops.rotary import rotate


def attend_cached(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    length: int,
    scale: float,
    interleaved: bool = False,
    window: int | None = None,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    epsilon: float = 0.0,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of `n` new positions, whose keys and values are written into the cache first.

    Args:
        q: float32 `[n, heads * dim]` or `[n, heads, dim]`, neither normalised nor rotated.
        k: float32 `[n, kv_heads * dim]` or `[n, kv_heads, dim]`, likewise.
        v: float32 `[n, kv_heads * value_dim]` or `[n, kv_heads, value_dim]`.
        cos, sin: float32 `[n, pairs]`, see `ops.rotary.rotate`.
        keys: float32 `[capacity, kv_heads, dim]`; rows `length` to `length + n` are written.
        values: float32 `[capacity, kv_heads, value_dim]`, likewise.
        length: positions in the cache before.
        scale: factor of the scores.
        interleaved: pairing of the rotation.
        window: attend to the last `window` positions only.
        q_norm, k_norm: float32 `[dim]`, RMS norms of each head before the rotation.
        epsilon: of the norms.
        gate: float32 `[n, heads * value_dim]` or `[n, heads, value_dim]`; its sigmoid multiplies the result.

    Returns:
        float32 `[n, heads * value_dim]`.
    """
    q, k = (x.unflatten(-1, (-1, keys.shape[2])) if x.dim() == 2 else x for x in (q, k))
    if q_norm is not None:
        q = rms_norm(q, q_norm, epsilon)
    if k_norm is not None:
        k = rms_norm(k, k_norm, epsilon)
    end = length + q.shape[0]
    keys[length:end] = rotate(k, cos, sin, interleaved)
    values[length:end] = v.view_as(values[length:end])
    out = attend(rotate(q, cos, sin, interleaved), keys[:end], values[:end], scale, window).flatten(1)
    return out if gate is None else out * gate.flatten(1).sigmoid()
