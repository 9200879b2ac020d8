"""Feed-forward layers on a card: dense ones, and mixtures of experts that live anywhere."""

import torch

from strata.card.mixers import Memory
from strata.card.products import Activations
from strata.card.rows import Rows
from strata.layers.feed_forward import FeedForward
from strata.layers.moe import Experts
from strata.ops.triton.experts import ExpertBuffers, combine_experts, compute_experts
from strata.ops.triton.feed_forward import add_shared, swiglu
from strata.ops.triton.float_matmul import float_matmul, workspace_size
from strata.ops.triton.router import route


class CardFeedForward:
    """`layers.feed_forward.FeedForward`."""

    def __init__(self, layer: FeedForward, memory: Memory):
        self._gate_up = memory.product(layer.ffn_gate, layer.ffn_up)
        self._down = memory.product(layer.ffn_down)

    def __call__(self, x: Activations, rows: Rows) -> torch.Tensor:
        """Activations of a block's input -> float32 `[rows, width]`; rows may lie apart."""
        return self._down(Activations(*swiglu(*self._gate_up(x))))[0]


class CardExperts:
    """`layers.moe.Experts`, each read where the table of addresses says.

    Args:
        layer: router, experts and the shared one.
        memory: see there.
        addresses: int64 `[experts]` of the layer, on the card.
        counts: int32 `[experts]` of the layer, to which its choices are added.
        max_rows: of a step.
    """

    def __init__(
        self, layer: Experts, memory: Memory, addresses: torch.Tensor, counts: torch.Tensor, max_rows: int
    ):
        self._used, self._normalize = layer.expert_used_count, layer.normalize
        self._addresses, self._counts = addresses, counts
        self._workspace = memory.workspace
        self._shape = memory.weights.expert_shape(layer.experts)
        self._buffers = ExpertBuffers.allocate(self._shape, max_rows * self._used, memory.device)
        gates = [layer.ffn_gate_inp]
        self._shared = None
        if layer.shared is not None:
            gates.append(layer.shared.ffn_gate_inp_shexp)
            self._shared = CardFeedForward(layer.shared.feed_forward, memory)
        self._router = memory.weights.stack_floats(gates)
        self._workspace.reserve(*workspace_size(*self._router.shape))
        self._here = torch.full((max_rows, self._used), -1, dtype=torch.int32, device=memory.device)
        self._nothing = torch.zeros(1, self._shape.width, device=memory.device)

    def __call__(self, x: Activations, rows: Rows) -> torch.Tensor:
        """Activations of a block's input -> float32 `[rows, width]`."""
        logits = float_matmul(x.x, self._router, self._workspace)
        ids, shares, shared_share = route(logits, self._used, self._normalize, rows.lane, self._counts)
        here = self._here[: len(rows)]
        y = compute_experts(self._shape, self._addresses, *x.quantized, ids, here, self._buffers)
        out = combine_experts(ids, here, shares, y, self._nothing)
        if self._shared is None or shared_share is None:
            return out
        return add_shared(out, self._shared(x, rows), shared_share)
