"""Causal softmax attention with grouped key-value heads."""

import torch

# Scores of one block of queries take at most this many float32 values, so that the memory of a long
# prompt grows with its length and not with its square.
_MAX_SCORES = 1 << 24


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
    num_queries, num_heads, _ = q.shape
    length, num_kv_heads, value_dim = v.shape
    first = length - num_queries  # position of query 0
    q = q.reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, -1).permute(1, 2, 0, 3) * scale
    k, v = k.permute(1, 2, 0), v.permute(1, 0, 2)  # [kv, dim, t], [kv, t, value_dim]
    out = q.new_empty(num_queries, num_heads, value_dim)
    block = max(1, _MAX_SCORES // (num_heads * length))
    for begin in range(0, num_queries, block):
        end = min(begin + block, num_queries)
        low = 0 if window is None else max(0, first + begin - window + 1)
        high = first + end
        scores = q[:, :, begin:end].flatten(1, 2) @ k[:, :, low:high]  # [kv, group * rows, keys]
        scores = scores.view(num_kv_heads, -1, end - begin, high - low)
        hidden = _hidden(first + begin, first + end, low, high, window)
        if mask is not None:
            hidden |= ~mask[begin:end, low:high]
        weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
        rows = weights.flatten(1, 2) @ v[:, low:high]  # [kv, group * rows, value_dim]
        out[begin:end] = rows.view(num_heads, end - begin, value_dim).transpose(0, 1)
    return out


def _hidden(begin: int, end: int, low: int, high: int, window: int | None) -> torch.Tensor:
    """Bool `[end - begin, high - low]`: True where the query must not see the key."""
    distance = torch.arange(begin, end)[:, None] - torch.arange(low, high)
    hidden = distance < 0
    return hidden if window is None else hidden | (distance >= window)
