"""A mixture of experts: a router, the experts it may choose, and the one that every token passes."""

import torch

from strata.errors import ModelFileError, UnsupportedModelError
from strata.layers.expert_counts import ExpertCounts
from strata.layers.feed_forward import FeedForward
from strata.layers.linear import Linear
from strata.layers.weights import Stack, Weights


def require_softmax_router(weights: Weights) -> None:
    """Refuse the keys by which other models change the router: they would be ignored silently."""
    checkpoint = weights.checkpoint
    for name in ("expert_gating_func", "expert_weights_scale", "expert_group_count"):
        key = f"{checkpoint.architecture}.{name}"
        value = checkpoint.metadata.get(key, 1)
        if value not in (0, 1):  # 0 stands for "not set"; 1 for softmax, no scale, one group
            raise UnsupportedModelError(
                f"{checkpoint.path}: {key} is {value!r}; Strata has the plain softmax router only ({key} 1)"
            )


class Experts:
    """Feed-forward layer of `expert_count` experts of which each token uses `expert_used_count`.

    The three layouts of a GGUF are read: stacked `ffn_{gate,up,down}_exps`, gate and up fused in
    `ffn_gate_up_exps`, and a tensor per expert, `ffn_gate.E.weight`, as files of early 2024 have it.
    A shared expert is added, weighed by a sigmoid, where the file has `ffn_gate_inp_shexp`.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`.
        width: embedding length.
        length: an expert's inner length.
        expert_count: experts of the layer.
        expert_used_count: experts per token.
        shared_length: the shared expert's inner length; 0 where there is none.
        normalize: divide the chosen probabilities by their sum.

    Attributes:
        counts: how often each expert was chosen.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        width: int,
        length: int,
        expert_count: int,
        expert_used_count: int,
        shared_length: int = 0,
        normalize: bool = True,
    ):
        if expert_used_count > expert_count:
            raise ModelFileError(
                f"{weights.checkpoint.path}: {prefix} cannot use {expert_used_count} "
                f"of {expert_count} experts"
            )
        self.weights, self.ops = weights, weights.ops
        self.expert_used_count = expert_used_count
        self.normalize = normalize
        self.ffn_gate_inp = Linear(weights, f"{prefix}.ffn_gate_inp.weight", expert_count, width)
        self.counts = ExpertCounts(expert_count)
        self.experts = weights.require_experts(*_stacks(weights, prefix, width, length, expert_count))
        self.shared = SharedExpert(weights, prefix, width, shared_length) if shared_length else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 `[n, width]` -> float32 `[n, width]`."""
        ids, shares = self.route(self.ffn_gate_inp(x))
        self.counts.note(ids)
        out = self.ops.experts(x, ids, shares, self.weights.experts(self.experts))
        return out if self.shared is None else out + self.shared(x)

    def route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Router logits float32 `[n, experts]` -> experts int64 `[n, expert_used_count]` and their shares.

        `engine/routing.py` puts others in its place.
        """
        return self.ops.route(logits, self.expert_used_count, self.normalize)


def _stacks(weights: Weights, prefix: str, width: int, length: int, count: int) -> list[Stack]:
    """Gate, up and down of all experts, in the layout that the file has."""
    shapes = {"ffn_gate": (length, width), "ffn_up": (length, width), "ffn_down": (width, length)}
    fused = f"{prefix}.ffn_gate_up_exps.weight" in weights
    stacked = fused or f"{prefix}.ffn_gate.0.weight" not in weights
    if fused:
        both = weights.require(f"{prefix}.ffn_gate_up_exps.weight", count, 2 * length, width)
        down = weights.require(f"{prefix}.ffn_down_exps.weight", count, width, length)
        return [
            Stack((both,), count, length, width),
            Stack((both,), count, length, width, first_row=length),
            Stack((down,), count, width, length),
        ]
    stacks = []
    for name, shape in shapes.items():
        if stacked:
            names = (weights.require(f"{prefix}.{name}_exps.weight", count, *shape),)
        else:
            names = tuple(weights.require(f"{prefix}.{name}.{e}.weight", *shape) for e in range(count))
        stacks.append(Stack(names, count, *shape))
    return stacks


class SharedExpert:
    """`sigmoid(ffn_gate_inp_shexp . x) * expert(x)`, for every token."""

    def __init__(self, weights: Weights, prefix: str, width: int, length: int):
        self.ops = weights.ops
        self.ffn_gate_inp_shexp = Linear(weights, f"{prefix}.ffn_gate_inp_shexp.weight", 1, width)
        self.feed_forward = FeedForward(weights, prefix, width, length, "_shexp")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 `[n, width]` -> float32 `[n, width]`."""
        return self.ops.sigmoid(self.ffn_gate_inp_shexp(x)) * self.feed_forward(x)
