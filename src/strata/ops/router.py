"""Which experts a token goes to, and how their outputs are weighed."""

import torch


def route(logits: torch.Tensor, num_used: int, normalize: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The `num_used` most probable experts of each token, most probable first.

    Equal probabilities go to the lowest index, so that the choice depends on nothing but the logits.

    Args:
        logits: float32 `[n, experts]`.
        num_used: experts per token.
        normalize: divide the chosen probabilities by their sum (the same as a softmax over the chosen
            logits, which is how Mixtral states it).

    Returns:
        experts int64 `[n, num_used]` and their weights float32 `[n, num_used]`.
    """
    probabilities = logits.softmax(-1)
    # torch.topk leaves the order of equal values open; a stable sort keeps the lowest index first
    chosen = probabilities.sort(dim=-1, descending=True, stable=True)
    weights, experts = chosen.values[:, :num_used], chosen.indices[:, :num_used]
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return experts, weights


def shares_of(logits: torch.Tensor, experts: torch.Tensor, normalize: bool = True) -> torch.Tensor:
    """The weights that `route` would give these experts, had it chosen them.

    Args:
        logits: float32 `[n, experts]`.
        experts: int64 `[n, num_used]`.
        normalize: as of `route`.

    Returns:
        float32 `[n, num_used]`.
    """
    weights = logits.softmax(-1).gather(-1, experts)
    return weights / weights.sum(-1, keepdim=True) if normalize else weights
