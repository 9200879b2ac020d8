"""Which blocks of earlier tokens a query attends to (QSA, the sparse attention of `qwen4_exp`)."""

import torch

# Scores of one block of queries take at most this many float32 values.
_MAX_SCORES = 1 << 23


def select_blocks(
    q: torch.Tensor, block_keys: torch.Tensor, num_complete: torch.Tensor, budget: int
) -> torch.Tensor:
    """The `budget` best of each query's complete blocks, in ascending order.

    A block's score is `sum_h relu(q_h . key)`. Where relu cuts every head it is exactly zero, so ties at the
    budget's edge are common and decide what is attended to. The model's definition leaves them open; this
    op takes the blocks that transformers takes, which is what `torch.topk` returns for one query's scores
    alone. That is a function of these scores only, whatever else is in the batch.

    Args:
        q: float32 `[n, heads, dim]`, index queries.
        block_keys: float32 `[blocks, dim]`.
        num_complete: int64 `[n]`, blocks that lie before each query or end with it; at least `budget`.
        budget: blocks to choose.

    Returns:
        int64 `[n, budget]`.
    """
    chosen = num_complete.new_empty(q.shape[0], budget)
    step = max(1, _MAX_SCORES // (q.shape[1] * block_keys.shape[0]))
    for begin in range(0, q.shape[0], step):
        rows = slice(begin, begin + step)
        scores = (q[rows] @ block_keys.T).relu().sum(1)  # [rows, blocks]
        for row, count in enumerate(num_complete[rows].tolist()):
            chosen[begin + row] = scores[row, :count].topk(budget).indices.sort().values
    return chosen
