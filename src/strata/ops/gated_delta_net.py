"""The gated delta net between its projections, in one step (Qwen3-Next and its heirs; arXiv 2412.06464)."""

import torch
import torch.nn.functional as F

from strata.ops.convolution import causal_convolution
from strata.ops.delta_rule import delta_rule
from strata.ops.rms_norm import rms_norm

L2_EPSILON = 1e-6  # of the query and key normalisation; fixed in every implementation, no key says it


def gated_delta_net(
    qkv: torch.Tensor,
    z: torch.Tensor,
    beta: torch.Tensor,
    alpha: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_a: torch.Tensor,
    ssm_dt: torch.Tensor,
    norm: torch.Tensor,
    epsilon: float,
    past: torch.Tensor,
    state: torch.Tensor,
    position: int,
    tiled: bool,
    sigmoid_gate: bool,
    in_place: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Short convolution, normalised queries and keys, gated delta rule, gated norm.

    Args:
        qkv: float32 `[n, channels]`, the queries and keys of all key heads, then the values of all heads.
        z: float32 `[n, heads * value_dim]`, what gates the output.
        beta, alpha: float32 `[n, heads]`, before sigmoid and softplus.
        conv_weight: float32 `[channels, kernel]`.
        ssm_a: float32 `[heads]`, `-exp(A_log)`.
        ssm_dt: float32 `[heads]`, added to `alpha`.
        norm: float32 `[value_dim]`.
        epsilon: of the norm.
        past: float32 `[kernel - 1, channels]`, rows of `qkv` before these.
        state: float32 `[heads, key_dim, value_dim]`.
        position: tokens that came before.
        tiled: value head `h` reads key head `h % key_heads`, not `h // (heads / key_heads)`.
        sigmoid_gate: gate by `sigmoid(z)`, not `silu(z)`.
        in_place: write the new state over `state`, which nobody else holds.

    Returns:
        float32 `[n, heads * value_dim]`, and the next `past` and `state`.
    """
    num_tokens, num_heads, (_, key_dim, value_dim) = qkv.shape[0], state.shape[0], state.shape
    qkv, past = causal_convolution(qkv, conv_weight, past)
    key_width = (qkv.shape[1] - num_heads * value_dim) // 2
    q, k, v = F.silu(qkv).split([key_width, key_width, num_heads * value_dim], -1)
    repeats = num_heads * key_dim // key_width

    def per_head(x: torch.Tensor) -> torch.Tensor:
        """Normalised `[n, key heads * dim]` -> `[n, heads, dim]`."""
        x = x.view(num_tokens, -1, key_dim)
        x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPSILON)
        return x.repeat(1, repeats, 1) if tiled else x.repeat_interleave(repeats, 1)

    q, k, v = per_head(q) * key_dim**-0.5, per_head(k), v.view(num_tokens, -1, value_dim)
    log_decay = ssm_a * F.softplus(alpha + ssm_dt)
    out, new_state = delta_rule(q, k, v, log_decay, beta.sigmoid(), state, position)
    gate = z.sigmoid() if sigmoid_gate else F.silu(z)
    return (
        rms_norm(out, norm, epsilon).flatten(1) * gate,
        past,
        state.copy_(new_state) if in_place else new_state,
    )
