"""Feed-forward layers on a card: dense ones, and mixtures of experts that live anywhere."""

import torch

from strata.card.mixers import Memory
from strata.card.products import Activations
from strata.card.rows import Rows
from strata.card.weights import CardWeights
from strata.errors import UnsupportedModelError
from strata.formats.quants.planes import QUANT_PLANES
from strata.layers.feed_forward import FeedForward
from strata.layers.linear import Linear
from strata.layers.moe import Experts
from strata.ops.triton.doorbell import publish_entries, ring, wait
from strata.ops.triton.expert_records import ExpertBuffers, SharedExpert
from strata.ops.triton.experts import combine_experts, compute_experts
from strata.ops.triton.feed_forward import swiglu
from strata.ops.triton.float_experts import compute_float_experts
from strata.ops.triton.float_matmul import WINDOW_ROWS, float_matmul, workspace_size
from strata.ops.triton.place import HostShare, fetch_experts, place_misses
from strata.ops.triton.prompt_experts import compute_prompt_experts
from strata.ops.triton.router import route


class CardFeedForward:
    """`layers.feed_forward.FeedForward`."""

    def __init__(self, layer: FeedForward, memory: Memory):
        self._gate_up = memory.product(layer.ffn_gate, layer.ffn_up)
        self._down = memory.product(layer.ffn_down)

    @property
    def wants_quantized(self) -> bool:
        """Whether its input is multiplied with a quantised matrix."""
        return self._gate_up.wants_quantized

    def __call__(self, x: Activations, rows: Rows) -> torch.Tensor:
        """Activations of a block's input -> float32 `[rows, width]`; rows may lie apart."""
        return self._down(Activations(*swiglu(*self._gate_up(x))))[0]

    def as_expert(self) -> SharedExpert | None:
        """The layer as an expert, if its matrices are quantised and gate and up have one format."""
        gate_up, down = self._gate_up.only_matrix, self._down.only_matrix
        return None if gate_up is None or down is None else SharedExpert(gate_up, down)


class CardExperts:
    """`layers.moe.Experts`, each read where the table of addresses says, or computed by the processor.

    Attributes:
        key: the layer's row in tables of addresses and counts.
        forced: int16 `[tokens, experts of a token]`, to be used by position in place of the router's choice;
            None: the router chooses.
    """

    def __init__(self, layer: Experts, memory: Memory):
        weights = memory.weights
        self.key = layer.experts
        self._used, self._normalize = layer.expert_used_count, layer.normalize
        self._counts = memory.counts[self.key]
        self._workspace, self._host, self._slots = memory.workspace, memory.host, memory.slots
        self._misses = memory.misses
        self._shape = weights.expert_shape(self.key)
        self._factors = weights.expert_factors(self.key)
        self._is_quantized = self._shape.gate in QUANT_PLANES
        self.forced: torch.Tensor | None = None
        self._windows = memory.windows
        self._shared = self._shared_gate = self._shared_expert = self._shared_down = None
        first = [layer.ffn_gate_inp]  # of the products, and what may be multiplied with it
        if layer.shared is not None:
            shared = layer.shared.feed_forward
            self._shared_gate = weights.stack_floats([layer.shared.ffn_gate_inp_shexp])
            if weights.are_alike([*first, shared.ffn_gate, shared.ffn_up]):
                first += [shared.ffn_gate, shared.ffn_up]
                self._shared_down = memory.product(shared.ffn_down)
            else:
                self._shared = CardFeedForward(shared, memory)
                self._shared_expert = self._shared.as_expert() if self._is_quantized else None
        self._router, self._experts = weights.stack_floats(first), self._counts.numel()
        self._workspace.reserve(*workspace_size(*self._router.shape))
        self._nothing = torch.zeros(1, self._shape.width, device=memory.device)

    @property
    def wants_quantized(self) -> bool:
        """Whether its input is multiplied with a quantised matrix."""
        return self._is_quantized or (self._shared is not None and self._shared.wants_quantized)

    def __call__(self, x: Activations, rows: Rows) -> torch.Tensor:
        """Activations of a block's input -> float32 `[rows, width]`."""
        return self._prompt(x, rows) if len(rows) > WINDOW_ROWS else self._step(x, rows)

    def _step(self, x: Activations, rows: Rows) -> torch.Tensor:
        """Up to WINDOW_ROWS rows."""
        ids, shares, shared_share, hidden = self._route(x, rows)
        addresses = rows.addresses[self.key]
        buffers, share = self._window(len(rows))
        host_entry, host_y, place = share.host_entry.view(ids.shape), self._nothing, None
        if self._misses is not None:
            if self._host is not None:
                place = self._host.places[self.key % len(self._host.places)]
            work = None if place is None else (x.x, place.x)
            place_misses(ids, shares, addresses, self._slots, self._misses, share, work)
            job = None if place is None else (place, self.key, len(ids), share)
            fetch_experts(self._misses, self._shape.record_bytes, job)
            addresses = self._misses.addresses
        y = self._compute(x, ids, addresses, host_entry, buffers)
        if buffers is not None and buffers.shared is not None:
            shared = buffers.shared.y
        else:
            shared = self._by_itself(x, rows, hidden)
        if place is not None:
            wait(place, share.num_entries, self._host.error)
            host_y = place.out
        among = None if shared is None else (shared, shared_share)
        return combine_experts(ids, host_entry, shares, y, host_y, None, self._factors, among)

    def _prompt(self, x: Activations, rows: Rows) -> torch.Tensor:
        """More rows than a window has; the processor computes some of the experts that few of them use."""
        ids, shares, shared_share, hidden = self._route(x, rows)
        addresses = rows.addresses[self.key]
        place = job = None
        if self._host is not None and rows.share is not None and rows.share.missed[self.key]:
            place = self._host.places[self.key % len(self._host.places)]
            job = rows.share.choose(self.key, ids, shares, addresses, place.experts.numel())
            publish_entries(place, x.x, job.rows, job.num_entries)
            number = torch.arange(job.rows.numel(), dtype=torch.int32, device=ids.device)
            ring(place, self.key, len(number), job.num_entries, job.experts, number, job.weights)
        host_entry = torch.full_like(ids, -1) if job is None else job.host_entry
        y = self._compute(x, ids, addresses, host_entry, None)
        shared = self._by_itself(x, rows, hidden)
        host_y = self._nothing
        if place is not None and job is not None:
            wait(place, job.num_entries, self._host.error)
            host_y = place.out
        among = None if shared is None else (shared, shared_share)
        return combine_experts(ids, host_entry, shares, y, host_y, None, self._factors, among)

    def _route(
        self, x: Activations, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """What `route` gives, once the experts are where the addresses say, and products besides logits."""
        products = float_matmul(x.x, self._router, self._workspace)
        logits, others = products[:, : self._experts], products[:, self._experts :]
        gate = None if self._shared_gate is None else (x.x, self._shared_gate)
        chosen = route(
            logits, self._used, self._normalize, rows.lane, self._counts, rows.position, self.forced, gate
        )
        rows.gate(self.key)
        return *chosen, others

    def _by_itself(self, x: Activations, rows: Rows, hidden: torch.Tensor) -> torch.Tensor | None:
        """The shared expert where it is not among the others, as `combine_experts` takes it."""
        if self._shared_down is not None:
            y = self._shared_down(Activations(*swiglu(*hidden.chunk(2, 1))))[0]
        elif self._shared is not None:
            y = self._shared(x, rows)
        else:
            return None
        return y.contiguous()[:, None]

    def _compute(
        self,
        x: Activations,
        ids: torch.Tensor,
        addresses: torch.Tensor,
        host_entry: torch.Tensor,
        buffers: ExpertBuffers | None,
    ) -> torch.Tensor:
        """float32 `[rows * slots, width]`: each entry's expert, where this card computes it.

        `buffers` are a window's; prompts have none, nor have floats.
        """
        if not self._is_quantized:
            return compute_float_experts(self._shape, addresses, x.x, ids, host_entry)
        work = (self._shape, addresses, *x.quantized, ids, host_entry)
        if buffers is None:
            return compute_prompt_experts(*work, self._factors, self._workspace.unpacked)
        return compute_experts(*work, buffers, self._factors, self._shared_expert)

    def _window(self, rows: int) -> tuple[ExpertBuffers | None, HostShare]:
        """Buffers for so many rows, which layers alike use one after the other.

        They are made when a window is run first, before it is captured.
        """
        shared = self._shared_expert
        beside = None if shared is None else (shared.ff, shared.gate_up.format, shared.down.format)
        key = rows, self._shape, beside
        if key not in self._windows:
            device = self._counts.device
            buffers = None
            if self._is_quantized:
                buffers = ExpertBuffers.allocate(self._shape, rows, self._used, device, self._shared_expert)
            self._windows[key] = buffers, HostShare.allocate(rows * self._used, device)
        return self._windows[key]


def _gates(layer: Experts) -> list[Linear]:
    """The router's matrix, and the row that weighs the shared expert."""
    return [layer.ffn_gate_inp] + ([] if layer.shared is None else [layer.shared.ffn_gate_inp_shexp])


def card_feed_forward(layer: FeedForward | Experts, memory: Memory) -> CardFeedForward | CardExperts:
    """A block's feed-forward layer on a card."""
    return CardExperts(layer, memory) if isinstance(layer, Experts) else CardFeedForward(layer, memory)


def require_feed_forward(layer: FeedForward | Experts, weights: CardWeights) -> None:
    """Raise UnsupportedModelError for experts of which some matrices are quantised and some are floats, for
    floats with factors beside them, and for routers that are more than a matrix."""
    if not isinstance(layer, Experts):
        return
    weights.require_bare(_gates(layer))
    path, shape = weights.checkpoint.path, weights.expert_shape(layer.experts)
    formats = (shape.gate, shape.up, shape.down)
    quantized = [format in QUANT_PLANES for format in formats]
    if any(quantized) != all(quantized):
        raise UnsupportedModelError(
            f"{path}: experts of {', '.join(formats)} (gate, up, down) do not run on a card: "
            f"some are quantised and some are floats"
        )
    if not all(quantized) and weights.expert_factors(layer.experts) is not None:
        raise UnsupportedModelError(
            f"{path}: experts of {formats[0]} with factors beside them (.scale) do not run on a card"
        )
