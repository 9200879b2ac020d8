"""The gated delta rule (Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464), as recurrence and in chunks.

Per head, with a state `S` `[key_dim, value_dim]` that maps keys to values, a token does

    S <- exp(g) S;   S <- S + k (beta (v - S^T k))^T;   o = S^T q

The chunked form solves the `CHUNK` coupled updates of a chunk at once (the WY representation of
Yang et al. 2024, arXiv 2406.06484, with decay) and agrees with the recurrence to float32 rounding.
"""

import torch

# Chunks start at absolute multiples of this many tokens, so that what a token's sums are made of does
# not depend on how a prompt was cut.
CHUNK = 64


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    position: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `n` tokens that start at `position`: whole chunks in chunked form, the rest one by one.

    Args:
        q: float32 `[n, heads, key_dim]`, normalised and scaled.
        k: float32 `[n, heads, key_dim]`, normalised.
        v: float32 `[n, heads, value_dim]`.
        log_decay: float32 `[n, heads]`, `g <= 0`.
        beta: float32 `[n, heads]`, write strength in (0, 1).
        state: float32 `[heads, key_dim, value_dim]`; not changed.
        position: tokens that came before.

    Returns:
        outputs float32 `[n, heads, value_dim]` and the new state.
    """
    inputs = (q, k, v, log_decay, beta)
    num_tokens = q.shape[0]
    outputs = []
    begin = 0
    while begin < num_tokens:
        until_boundary = CHUNK - (position + begin) % CHUNK
        end = min(begin + until_boundary, num_tokens)
        rule = delta_rule_chunk if end - begin == CHUNK else delta_rule_recurrent
        out, state = rule(*(x[begin:end] for x in inputs), state)
        outputs.append(out)
        begin = end
    return torch.cat(outputs), state


def delta_rule_recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, token by token. Arguments and results as in `delta_rule`."""
    decay = log_decay.exp()[:, :, None, None]
    q, k, v, beta = q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), beta[:, :, None, None]
    out = torch.empty_like(v)  # [n, heads, 1, value_dim]
    for t in range(q.shape[0]):
        state = state * decay[t]  # a new tensor: checkpoints keep the old one
        update = beta[t] * (v[t] - k[t] @ state)
        state.baddbmm_(k[t].mT, update)
        torch.bmm(q[t], state, out=out[t])
    return out.squeeze(2), state


def delta_rule_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All tokens of one chunk at once. Arguments and results as in `delta_rule`."""
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)  # [heads, n, dim]
    decay = log_decay.T.cumsum(-1)[:, :, None]  # [heads, n, 1]: log of the decay since the chunk began
    beta = beta.T[:, :, None]
    num_tokens = q.shape[1]
    causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    # masked before exp: above the diagonal the exponent is positive and could overflow
    between = (
        (decay - decay.mT).masked_fill(~causal, float("-inf")).exp()
    )  # [heads, n, n]: from column to row
    k_beta = k * beta
    coupling = (k_beta @ k.mT * between).tril(-1)
    right = torch.cat([v * beta, k_beta * decay.exp()], -1)
    solved = torch.linalg.solve_triangular(coupling, right, upper=False, unitriangular=True)
    values, keys = solved.split([v.shape[-1], k.shape[-1]], -1)
    values = values - keys @ state
    out = (q * decay.exp()) @ state + (q @ k.mT * between) @ values
    last = decay[:, -1:]
    state = last.exp() * state + (k * (last - decay).exp()).mT @ values
    return out.transpose(0, 1), state
