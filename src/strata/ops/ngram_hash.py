"""Which rows of an n-gram table a token reads (`qwen4_exp`; MODELS.md section 2.8).

The last 2, 3, ... `size` tokens are hashed, each n-gram by several heads with tables of prime size
laid end to end. All arithmetic is int64 and exact.
"""

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
    size = multipliers.shape[0]
    heads_per_ngram = head_sizes.shape[0] // (size - 1)
    num_tokens = tokens.shape[0]
    sequence = torch.cat([window, tokens])
    hidden = torch.zeros(num_tokens, dtype=torch.bool)
    mixed = tokens * multipliers[0]
    rows = []
    for back in range(1, size):
        previous = sequence[size - 1 - back : size - 1 - back + num_tokens]
        hidden = hidden | (previous == eos)
        mixed = mixed ^ (torch.where(hidden, eos, previous) * multipliers[back])
        heads = slice((back - 1) * heads_per_ngram, back * heads_per_ngram)
        rows.append(mixed[:, None] % head_sizes[heads] + head_offsets[heads])
    return torch.cat(rows, 1)
