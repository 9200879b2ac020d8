"""The layers that look at other tokens, on a card."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from strata.card.host_experts import JobPlaces
from strata.card.products import Activations, Product, empty_quantized
from strata.card.rows import Rows
from strata.card.weights import CardWeights
from strata.errors import UnsupportedModelError
from strata.layers.attention import Attention
from strata.layers.block import Mixer
from strata.layers.delta_net import DeltaNet, FusedProjections, SeparateProjections
from strata.layers.gated_attention import GatedAttention
from strata.layers.linear import Linear
from strata.layers.sparse_attention import SparseAttention
from strata.ops.triton.attention import Parts, Plan, attend_prompt, attend_window, plan_attention
from strata.ops.triton.block_selection import Scratch, select_blocks
from strata.ops.triton.delta_net import DeltaNetState, DeltaNetWeights, gated_delta_net
from strata.ops.triton.expert_records import ExpertBuffers
from strata.ops.triton.float_matmul import WINDOW_ROWS
from strata.ops.triton.kv import PagedKV, append_kv, gate_of
from strata.ops.triton.place import HostShare, Misses
from strata.ops.triton.sparse_attention import IndexState, append_index
from strata.ops.triton.workspace import Workspace

QUANTIZED = 128  # activations of a block
PAGE = 32  # tokens
_SCRATCH_BYTES = 32 << 20  # for scores of blocks


@dataclass(frozen=True, slots=True)
class Memory:
    """What the layers of a model on a card share.

    Args:
        weights: of the model.
        workspace: for sums of the products of a stream of work.
        lanes: sequences that are kept at the same time.
        page_table: int32 `[lanes, pages of a lane]`.
        pages: of each layer.
        kv_type: float16 or int8, of keys and values.
        counts: int32 `[layers with experts, experts]`, to which their choices are added.
        slots: int64 `[2]`, first address of the card's experts, and the first behind them.
        host: who computes the share of the missed experts that is the processor's; None: nobody.
        misses: what becomes of the experts that windows miss; None: they miss none, or read them in place.
        windows: buffers of layers with experts, see `feed_forward.CardExperts`.
    """

    weights: CardWeights
    workspace: Workspace
    lanes: int
    page_table: torch.Tensor
    pages: int
    kv_type: torch.dtype
    counts: torch.Tensor
    slots: torch.Tensor
    host: JobPlaces | None
    misses: Misses | None
    windows: dict[tuple[Hashable, ...], tuple[ExpertBuffers | None, HostShare]] = field(default_factory=dict)

    _scratches: dict[tuple[int, int], Scratch] = field(default_factory=dict)
    _parts: dict[Plan, Parts] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.weights.card.device

    def scratch(self, max_blocks: int, budget: int) -> Scratch:
        """What layers choose blocks in, one after the other."""
        key = max_blocks, budget
        if key not in self._scratches:
            rows = max(WINDOW_ROWS, min(256, _SCRATCH_BYTES // (4 * max_blocks)))
            self._scratches[key] = Scratch(rows, max_blocks, budget, self.device)
        return self._scratches[key]

    def parts(self, plan: Plan) -> Parts:
        """What windows leave of layers' splits, one after the other."""
        if plan not in self._parts:
            self._parts[plan] = Parts.new(plan, WINDOW_ROWS, self.device)
        return self._parts[plan]

    def product(self, *linears) -> Product:
        return Product(self.weights, self.workspace, linears)


class CardDeltaNet:
    """`layers.delta_net.DeltaNet` and its state of all lanes."""

    bytes_per_token = 0

    def __init__(self, net: DeltaNet, memory: Memory):
        weights, delta = memory.weights, net.delta
        linears, self._sizes = _delta_projections(net, weights)
        self._project = memory.product(*linears)
        self._out = memory.product(net.ssm_out)
        self._weights = DeltaNetWeights(
            conv=weights.get(net.ssm_conv1d),
            ssm_a=weights.get(net.ssm_a),
            ssm_dt=weights.get(net.ssm_dt),
            norm=net.ssm_norm.weight,
            epsilon=net.ssm_norm.epsilon,
            key_heads=delta.num_key_heads,
            tiled=delta.value_head_order == "tiled",
            sigmoid_gate=delta.gate == "sigmoid",
        )
        self.state = DeltaNetState.zeros(memory.lanes, self._weights, delta.key_length, memory.device)
        self._quantizes = delta.value_length == QUANTIZED and self._out.wants_quantized

    @property
    def wants_quantized(self) -> bool:
        """Whether its input is multiplied with a quantised matrix."""
        return self._project.wants_quantized

    def __call__(self, x: Activations, rows: Rows) -> torch.Tensor:
        """Activations of a block's input -> float32 `[rows, width]`."""
        products = zip(self._project(x), self._sizes, strict=True)
        qkv, z, beta, alpha = (part for y, sizes in products for part in y.split(sizes, 1))
        quantized = empty_quantized(z) if self._quantizes else None
        y = gated_delta_net(
            qkv, z, beta, alpha, self._weights, self.state, rows.lane, rows.accepted, rows.commit, quantized
        )
        return self._out(Activations(y, quantized))[0]

    def state_of(self, lane: int) -> list[torch.Tensor]:
        """What is remembered of a lane's sequence, to be copied from and to; zeros at its beginning."""
        return [self.state.memory[lane], self.state.past[lane]]


def _delta_projections(net: DeltaNet, weights: CardWeights) -> tuple[list[Linear], list[list[int]]]:
    """Linear layers whose products, each split into these sizes, are qkv, z, beta and alpha."""
    delta, project = net.delta, net.project
    values, heads, groups = delta.value_width, delta.num_value_heads, delta.num_key_heads
    channels = 2 * delta.key_width + values
    if isinstance(project, SeparateProjections):
        linears = [project.attn_qkv, project.attn_gate, project.ssm_beta, project.ssm_alpha]
        return linears, [[channels], [values], [heads], [heads]]
    assert isinstance(project, FusedProjections)
    weights.reorder(project.ssm_ba, _part_by_part(groups, [heads // groups] * 2))
    if project.ssm_in is None:
        linears = [project.attn_qkv, project.attn_gate, project.ssm_ba]
        return linears, [[channels], [values], [heads, heads]]
    sizes = [delta.key_length] * 2 + [values // groups] * 2
    weights.reorder(project.ssm_in, _part_by_part(groups, sizes))
    return [project.ssm_in, project.ssm_ba], [[channels, values], [heads, heads]]


def _part_by_part(groups: int, sizes: Sequence[int]) -> np.ndarray:
    """Numbers of rows that lie group by group, a group in parts of these sizes, in the order of parts."""
    rows = np.arange(groups * sum(sizes)).reshape(groups, -1)
    return np.concatenate([part.reshape(-1) for part in np.split(rows, np.cumsum(sizes)[:-1], axis=1)])


class CardAttention:
    """`layers.attention.Attention`; `GatedAttention`, over all keys or, in `SparseAttention`, some blocks."""

    def __init__(self, layer: Attention | GatedAttention | SparseAttention, memory: Memory):
        attention = layer.attention if isinstance(layer, SparseAttention) else layer
        config = attention.config
        self._heads, self._dim, self._epsilon = config.head_count, config.key_length, config.rms_epsilon
        self._gated = isinstance(attention, GatedAttention)
        self._interleaved, window = False, 0
        if isinstance(attention, Attention):
            self._interleaved, window = attention.interleaved, attention.window or 0
        norms = attention.attn_q_norm, attention.attn_k_norm
        self._norms = [None if norm is None else norm.weight for norm in norms]
        self._out = memory.product(attention.attn_output)
        self._kv = PagedKV.new(
            memory.page_table, memory.pages, config.head_count_kv, PAGE, config.key_length, memory.kv_type
        )
        linears = [attention.attn_q, attention.attn_k, attention.attn_v]
        self._index = None
        block = budget = 0
        if isinstance(layer, SparseAttention):
            self._index = CardIndexer(layer, self._kv, memory)
            linears += [layer.indexer.q_proj, layer.indexer.k_proj]
            block, budget = layer.block_size, layer.budget
        self._project = memory.product(*linears)
        self.bytes_per_token = self._kv.bytes_per_token + (
            0 if self._index is None else self._index.bytes_per_token
        )
        self._plan = plan_attention(self._kv, self._heads, window, block, budget)
        self._parts = memory.parts(self._plan)
        self._quantizes = self._dim % QUANTIZED == 0 and self._out.wants_quantized

    @property
    def wants_quantized(self) -> bool:
        """Whether its input is multiplied with a quantised matrix."""
        return self._project.wants_quantized

    def __call__(self, x: Activations, rows: Rows) -> torch.Tensor:
        """Activations of a block's input -> float32 `[rows, width]`."""
        q, k, v, *index = self._project(x)
        query = x.x.new_empty(len(rows), self._heads, self._dim)
        at = (rows.lane, rows.position, self._kv)
        append_kv(q, k, v, *rows.rope, *at, query, *self._norms, self._epsilon, self._interleaved)
        blocks = None if self._index is None else self._index(*index, rows)
        out = x.x.new_empty(len(rows), self._heads * self._dim)
        common = (query, *at, self._plan, self._dim**-0.5)
        gate = gate_of(q, self._heads) if self._gated else None
        quantized = None
        if len(rows) <= WINDOW_ROWS:
            quantized = empty_quantized(out) if self._quantizes else None
            attend_window(*common, self._parts, out, gate, blocks, quantized)
        else:
            attend_prompt(*common, out, gate, blocks)
        return self._out(Activations(out, quantized))[0]

    def state_of(self, lane: int) -> list[torch.Tensor]:
        """Nothing: positions say what of the pages belongs to a sequence."""
        return []


class CardIndexer:
    """Which blocks sparse attention attends to."""

    def __init__(self, layer: SparseAttention, kv: PagedKV, memory: Memory):
        indexer = layer.indexer
        self._kv, self._budget = kv, layer.budget
        self._heads, self._dim = indexer.head_count, indexer.key_length
        self._norms = indexer.q_norm.weight, indexer.k_norm.weight
        self._epsilon = indexer.q_norm.epsilon
        self._state = IndexState.new(kv, layer.block_size, self._dim)
        self.bytes_per_token = self._state.block_keys.nbytes // (self._state.block_keys.shape[0] * PAGE)
        max_blocks = kv.shape.lane_pages * (PAGE // layer.block_size)
        self._scratch = memory.scratch(max_blocks, layer.budget)

    def __call__(self, q: torch.Tensor, raw: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Index queries and keys as projected -> chosen blocks int32 `[rows, budget]`."""
        query = q.new_empty(len(rows), self._heads, self._dim)
        at = (rows.lane, rows.position)
        append_index(
            q, raw, rows.rope, rows.block_rope, *at, self._kv, self._state, *self._norms, self._epsilon, query
        )
        blocks = torch.empty(len(rows), self._budget, dtype=torch.int32, device=q.device)
        select_blocks(query, *at, self._state.block_keys, self._kv, self._scratch, blocks)
        return blocks


def card_mixer(layer: Mixer, memory: Memory) -> CardDeltaNet | CardAttention:
    """A block's mixer on a card."""
    if isinstance(layer, DeltaNet):
        return CardDeltaNet(layer, memory)
    assert isinstance(layer, Attention | GatedAttention | SparseAttention)
    return CardAttention(layer, memory)


def require_mixer(layer: Mixer, weights: CardWeights) -> None:
    """Raise UnsupportedModelError for heads of a length that no kernel has."""
    path = weights.checkpoint.path
    if isinstance(layer, DeltaNet):
        lengths = {"ssm.state_size": layer.delta.key_length, "ssm.inner_size": layer.delta.value_length}
    else:
        config = (layer.attention if isinstance(layer, SparseAttention) else layer).config
        lengths = {"attention.key_length": config.key_length, "attention.value_length": config.value_length}
        if config.value_length != config.key_length:
            raise UnsupportedModelError(
                f"{path}: keys of {config.key_length} values and values of {config.value_length} in a head "
                f"do not run on a card; they must be of one length"
            )
    for key, length in lengths.items():
        if length < 16 or length & (length - 1):
            raise UnsupportedModelError(
                f"{path}: heads of {length} values ({key}) do not run on a card; they must be a power of "
                f"two, 16 or more"
            )
