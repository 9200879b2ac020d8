"""Causal softmax attention with grouped key-value heads."""

import torch

# The mask of one block of queries takes at most this many values, so that the memory of a long prompt
# grows with its length and not with its square.
_MAX_MASK = 1 << 24


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of the last `n` of `t` positions over the positions up to their own.

    Args:
        q: float32 `[n, heads, dim]`; row `i` stands at position `t - n + i`.
        k: float32 `[t, kv_heads, dim]`; query head `h` reads key-value head `h // (heads / kv_heads)`.
        v: float32 `[t, kv_heads, value_dim]`.
        scale: factor of the scores.
        window: attend to the last `window` positions only, the query's own included.
        mask: bool `[n, t]`, True where a query may look; causality and `window` hold besides. Each row
            must leave at least one position.

    Returns:
        float32 `[n, heads, value_dim]`.
    """
    first = k.shape[0] - q.shape[0]  # position of query 0
    q, k, v = q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, heads, n, dim]
    block = max(1, _MAX_MASK // k.shape[2])
    out = []
    for begin in range(0, q.shape[2], block):
        end = min(begin + block, q.shape[2])
        low = 0 if window is None else max(0, first + begin - window + 1)
        high = first + end
        seen = _seen(first + begin, high, low, window)
        if mask is not None:
            seen &= mask[begin:end, low:high]
        out.append(
            torch.nn.functional.scaled_dot_product_attention(
                q[:, :, begin:end], k[:, :, low:high], v[:, :, low:high], seen, scale=scale, enable_gqa=True
            )
        )
    return torch.cat(out, 2)[0].transpose(0, 1)


def _seen(begin: int, end: int, low: int, window: int | None) -> torch.Tensor:
    """Bool `[end - begin, end - low]`: True where the query at a row may look at the key at a column."""
    distance = torch.arange(begin, end)[:, None] - torch.arange(low, end)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)
