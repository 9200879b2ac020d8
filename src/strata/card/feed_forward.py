"""Feed-forward layers on a card: dense ones, and mixtures of experts that live anywhere."""

import torch

from strata.card.mixers import Memory
from strata.card.products import Activations
from strata.card.rows import Rows
from strata.layers.feed_forward import FeedForward
from strata.layers.moe import Experts
from strata.ops.triton.doorbell import JobPlace, publish_rows, ring, wait
from strata.ops.triton.experts import ExpertBuffers, combine_experts, compute_experts
from strata.ops.triton.feed_forward import add_shared, swiglu
from strata.ops.triton.float_matmul import WINDOW_ROWS, float_matmul, workspace_size
from strata.ops.triton.place import HostShare, place_misses
from strata.ops.triton.prompt_experts import compute_prompt_experts
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
    """`layers.moe.Experts`, each read where the table of addresses says, or computed by the processor.

    Args:
        layer: router, experts and the shared one.
        memory: see there.
        counts: int32 `[experts]` of the layer, to which its choices are added.

    Attributes:
        forced: int16 `[tokens, experts of a token]`, to be used by position in place of the router's choice;
            None: the router chooses.
    """

    def __init__(self, layer: Experts, memory: Memory, counts: torch.Tensor):
        self._key = layer.experts
        self._used, self._normalize = layer.expert_used_count, layer.normalize
        self._counts = counts
        self._workspace, self._host, self._slots = memory.workspace, memory.host, memory.slots
        self._shape = memory.weights.expert_shape(layer.experts)
        self.forced: torch.Tensor | None = None
        self._windows: dict[int, tuple[ExpertBuffers, HostShare]] = {}  # by their rows
        gates = [layer.ffn_gate_inp]
        self._shared = None
        if layer.shared is not None:
            gates.append(layer.shared.ffn_gate_inp_shexp)
            self._shared = CardFeedForward(layer.shared.feed_forward, memory)
        self._router = memory.weights.stack_floats(gates)
        self._workspace.reserve(*workspace_size(*self._router.shape))
        self._nothing = torch.zeros(1, self._shape.width, device=memory.device)

    def __call__(self, x: Activations, rows: Rows) -> torch.Tensor:
        """Activations of a block's input -> float32 `[rows, width]`."""
        logits = float_matmul(x.x, self._router, self._workspace)
        ids, shares, shared_share = route(
            logits, self._used, self._normalize, rows.lane, self._counts, rows.position, self.forced
        )
        addresses = rows.addresses[self._key]
        if len(rows) > WINDOW_ROWS:
            return self._prompt(x, ids, shares, shared_share, addresses, rows)
        buffers, share = self._window(len(rows))
        place = self._ring(x, ids, shares, addresses, share)
        host_entry = share.host_entry.view(ids.shape)
        y = compute_experts(self._shape, addresses, *x.quantized, ids, host_entry, buffers)
        shared = None if self._shared is None else self._shared(x, rows)
        host_y = self._nothing
        if place is not None:
            wait(place, share.num_entries, self._host.error)
            host_y = place.out
        out = combine_experts(ids, host_entry, shares, y, host_y)
        return out if shared is None else add_shared(out, shared, shared_share)

    def _prompt(
        self,
        x: Activations,
        ids: torch.Tensor,
        shares: torch.Tensor,
        shared_share: torch.Tensor | None,
        addresses: torch.Tensor,
        rows: Rows,
    ) -> torch.Tensor:
        """All experts on the card, for more rows than a window has."""
        here = torch.full_like(ids, -1)
        y = compute_prompt_experts(self._shape, addresses, *x.quantized, ids, here)
        out = combine_experts(ids, here, shares, y, self._nothing)
        return out if self._shared is None else add_shared(out, self._shared(x, rows), shared_share)

    def _window(self, rows: int) -> tuple[ExpertBuffers, HostShare]:
        """Buffers for so many rows; they are made when a window is run first, before it is captured."""
        if rows not in self._windows:
            device = self._counts.device
            buffers = ExpertBuffers.allocate(self._shape, rows, self._used, device)
            self._windows[rows] = buffers, HostShare.allocate(rows * self._used, device)
        return self._windows[rows]

    def _ring(
        self,
        x: Activations,
        ids: torch.Tensor,
        shares: torch.Tensor,
        addresses: torch.Tensor,
        share: HostShare,
    ) -> JobPlace | None:
        """Hand the processor its share of the missed experts."""
        if self._host is None:
            return None
        place = self._host.places[self._key % len(self._host.places)]
        publish_rows(place, x.x)
        place_misses(ids, shares, addresses, self._slots, self._host.take, share)
        ring(place, self._key, len(ids), share.num_entries, share.experts, share.rows, share.weights)
        return place
