"""Which rows of an n-gram table a token reads (`qwen4_exp`; MODELS.md section 2.8).

The last 2, 3, ... `size` tokens are hashed, each n-gram by several heads with tables of prime size
laid end to end. All arithmetic is int64 and exact.
"""

import numpy as np
import torch


def ngram_rows(
    tokens: torch.Tensor,
    window: torch.Tensor,
    multipliers: torch.Tensor,
    head_sizes: torch.Tensor,
    head_offsets: torch.Tensor,
    eos: int,
) -> torch.Tensor:
    """Row numbers of each token's n-grams.

    Args:
        tokens: int64 `[n]`.
        window: int64 `[size - 1]`, the tokens before `tokens`, oldest first; `eos` where there are none.
        multipliers: int64 `[size]`, for the token itself, the one before, and so on; their products with
            token ids stay below `2**63`.
        head_sizes: int64 `[(size - 1) * heads_per_ngram]`, heads of the 2-gram first.
        head_offsets: int64, the same shape.
        eos: an end of text hides itself and all that came before from the tokens after it.

    Returns:
        int64 `[n, (size - 1) * heads_per_ngram]`.
    """
    # In NumPy: these are a dozen operations on a few numbers, between two steps of a card that waits.
    factors, sizes, offsets = (given.numpy() for given in (multipliers, head_sizes, head_offsets))
    size, num_tokens = len(factors), len(tokens)
    sequence = np.concatenate([window.numpy(), tokens.numpy()])
    hidden = np.zeros(num_tokens, bool)
    mixed = sequence[size - 1 :] * factors[0]
    hashes = np.empty((num_tokens, size - 1), np.int64)
    for back in range(1, size):
        previous = sequence[size - 1 - back : size - 1 - back + num_tokens]
        hidden |= previous == eos
        mixed = mixed ^ (np.where(hidden, eos, previous) * factors[back])
        hashes[:, back - 1] = mixed
    rows = hashes.repeat(len(sizes) // (size - 1), axis=1) % sizes + offsets
    return torch.from_numpy(rows)
