"""Attention where every query has a key list of its own."""

import torch

# Gathered keys and values of one block of queries take at most this many float32 values each.
_MAX_GATHERED = 1 << 23


def attend_gathered(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    positions: torch.Tensor,
    visible: torch.Tensor,
) -> torch.Tensor:
    """Softmax attention of each query over the keys listed for it, all heads over the same list.

    Args:
        q: float32 `[n, heads, dim]`.
        k: float32 `[t, kv_heads, dim]`; query head `h` reads key-value head `h // (heads / kv_heads)`.
        v: float32 `[t, kv_heads, value_dim]`.
        scale: factor of the scores.
        positions: int64 `[n, keys]`, rows of `k` and `v`.
        visible: bool `[n, keys]`, False where the list is padding.

    Returns:
        float32 `[n, heads, value_dim]`.
    """
    num_queries, num_heads, _ = q.shape
    _, num_kv_heads, value_dim = v.shape
    q = q.reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, -1) * scale
    out = q.new_empty(num_queries, num_kv_heads, num_heads // num_kv_heads, value_dim)
    block = max(1, _MAX_GATHERED // (positions.shape[1] * k[0].numel()))
    for begin in range(0, num_queries, block):
        rows = slice(begin, begin + block)
        keys = k[positions[rows]].permute(0, 2, 3, 1)  # [rows, kv, dim, keys]
        scores = (q[rows] @ keys).masked_fill_(~visible[rows, None, None], float("-inf"))
        out[rows] = scores.softmax(-1) @ v[positions[rows]].transpose(1, 2)
    return out.view(num_queries, num_heads, value_dim)
