"""A mixture of experts: a router, the experts it may choose, and the one that every token passes."""

import torch

from strata.errors import ModelFileError, UnsupportedModelError
from strata.layers.feed_forward import FeedForward
from strata.layers.linear import Linear
from strata.layers.weights import Weights
from strata.ops.activation import swiglu
from strata.ops.router import route


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
        self.weights = weights
        self.prefix = prefix
        self.expert_used_count = expert_used_count
        self.normalize = normalize
        self.ffn_gate_inp = Linear(weights, f"{prefix}.ffn_gate_inp.weight", expert_count, width)
        self.fused = f"{prefix}.ffn_gate_up_exps.weight" in weights
        self.stacked = self.fused or f"{prefix}.ffn_gate.0.weight" not in weights
        self._require(width, length, expert_count)
        self.shared = SharedExpert(weights, prefix, width, shared_length) if shared_length else None

    def _require(self, width: int, length: int, expert_count: int) -> None:
        shapes = {"ffn_gate": (length, width), "ffn_up": (length, width), "ffn_down": (width, length)}
        if self.fused:
            shapes = {"ffn_gate_up": (2 * length, width), "ffn_down": (width, length)}
        for name, shape in shapes.items():
            if self.stacked:
                self.weights.require(f"{self.prefix}.{name}_exps.weight", expert_count, *shape)
            else:
                for expert in range(expert_count):
                    self.weights.require(f"{self.prefix}.{name}.{expert}.weight", *shape)

    def _matrix(self, name: str, expert: int) -> torch.Tensor:
        if self.stacked:
            return self.weights.get(f"{self.prefix}.{name}_exps.weight", expert)
        return self.weights.get(f"{self.prefix}.{name}.{expert}.weight")

    def _expert(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """One expert's output for its tokens, float32 `[m, width]`; no other expert is decoded."""
        if self.fused:
            gate, up = (x @ self._matrix("ffn_gate_up", expert).T).chunk(2, -1)
        else:
            gate, up = x @ self._matrix("ffn_gate", expert).T, x @ self._matrix("ffn_up", expert).T
        return swiglu(gate, up) @ self._matrix("ffn_down", expert).T

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 `[n, width]` -> float32 `[n, width]`."""
        experts, weights = route(self.ffn_gate_inp(x), self.expert_used_count, self.normalize)
        outputs = x.new_empty(*experts.shape, x.shape[-1])  # [n, used, width]
        for expert in experts.unique().tolist():
            tokens, slots = (experts == expert).nonzero(as_tuple=True)
            outputs[tokens, slots] = self._expert(expert, x[tokens])
        out = torch.zeros_like(x)
        for slot in range(self.expert_used_count):  # in the router's order, wherever an expert ran
            out += weights[:, slot, None] * outputs[:, slot]
        return out if self.shared is None else out + self.shared(x)


class SharedExpert:
    """`sigmoid(ffn_gate_inp_shexp . x) * expert(x)`, for every token."""

    def __init__(self, weights: Weights, prefix: str, width: int, length: int):
        self.weights = weights
        self.ffn_gate_inp_shexp = weights.require(f"{prefix}.ffn_gate_inp_shexp.weight", width)
        self.feed_forward = FeedForward(weights, prefix, width, length, "_shexp")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 `[n, width]` -> float32 `[n, width]`."""
        gate = x @ self.weights.get(self.ffn_gate_inp_shexp)
        return gate.sigmoid()[:, None] * self.feed_forward(x)
