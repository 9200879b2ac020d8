"""Causal depthwise convolution of a sequence that arrives in pieces."""

import torch


def causal_convolution(
    x: torch.Tensor, weight: torch.Tensor, past: torch.Tensor, dilation: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """`y[t, c] = sum_j weight[c, j] * x[t - (kernel - 1 - j) * dilation, c]`.

    The last tap multiplies the current token.

    Args:
        x: float32 `[n, channels]`.
        weight: float32 `[channels, kernel]`.
        past: float32 `[(kernel - 1) * dilation, channels]`, the rows before `x`, oldest first.
        dilation: distance of two taps in tokens.

    Returns:
        float32 `[n, channels]`, and the rows to hand in as `past` next time.
    """
    num_tokens, kernel = x.shape[0], weight.shape[1]
    rows = torch.cat([past, x])
    y = rows[:num_tokens] * weight[:, 0]
    for tap in range(1, kernel):
        y += rows[tap * dilation : tap * dilation + num_tokens] * weight[:, tap]
    return y, rows[num_tokens:].clone()  # cloned: a view would keep the whole piece alive
