"""The layers that look at other tokens, on a card."""

from dataclasses import dataclass

import torch

from strata.card.host_experts import HostExperts
from strata.card.products import Activations, Product, empty_quantized
from strata.card.rows import Rows
from strata.card.weights import CardWeights
from strata.errors import UnsupportedModelError
from strata.layers.delta_net import DeltaNet, SeparateProjections
from strata.layers.gated_attention import GatedAttention
from strata.layers.sparse_attention import SparseAttention
from strata.ops.triton.attention import Parts, attend_prompt, attend_window, plan_attention
from strata.ops.triton.block_selection import Scratch, select_blocks
from strata.ops.triton.delta_net import DeltaNetState, DeltaNetWeights, gated_delta_net
from strata.ops.triton.float_matmul import WINDOW_ROWS, Workspace
from strata.ops.triton.kv import PagedKV, append_kv, gate_of
from strata.ops.triton.sparse_attention import IndexState, append_index

QUANTIZED = 128  # activations of a block
PAGE = 32  # tokens


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
        slots: int64 `[2]`, first address of the card's experts, and the first behind them.
        host: who computes the share of the missed experts that is the processor's; None: nobody.
    """

    weights: CardWeights
    workspace: Workspace
    lanes: int
    page_table: torch.Tensor
    pages: int
    kv_type: torch.dtype
    slots: torch.Tensor
    host: HostExperts | None

    @property
    def device(self) -> torch.device:
        return self.weights.card.device

    def product(self, *linears) -> Product:
        return Product(self.weights, self.workspace, linears)


class CardDeltaNet:
    """`layers.delta_net.DeltaNet` and its state of all lanes."""

    bytes_per_token = 0

    def __init__(self, net: DeltaNet, memory: Memory):
        projections = net.project
        if not isinstance(projections, SeparateProjections):
            raise UnsupportedModelError(
                "fused projections of delta nets (qwen3next) do not run on a card yet"
            )
        weights, delta = memory.weights, net.delta
        self._project = memory.product(
            projections.attn_qkv, projections.attn_gate, projections.ssm_beta, projections.ssm_alpha
        )
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

    def __call__(self, x: Activations, rows: Rows) -> torch.Tensor:
        """Activations of a block's input -> float32 `[rows, width]`."""
        qkv, z, beta, alpha = self._project(x)
        quantized = empty_quantized(z) if self._quantizes else None
        y = gated_delta_net(
            qkv, z, beta, alpha, self._weights, self.state, rows.lane, rows.accepted, rows.commit, quantized
        )
        return self._out(Activations(y, quantized))[0]

    def state_of(self, lane: int) -> list[torch.Tensor]:
        """What is remembered of a lane's sequence, to be copied from and to; zeros at its beginning."""
        return [self.state.memory[lane], self.state.past[lane]]


class CardGatedAttention:
    """`layers.gated_attention.GatedAttention`, dense or with the blocks that an indexer chooses."""

    def __init__(self, layer: GatedAttention | SparseAttention, memory: Memory):
        attention = layer.attention if isinstance(layer, SparseAttention) else layer
        config, self._scale = attention.config, attention.scale
        self._heads, self._dim, self._epsilon = config.head_count, config.key_length, config.rms_epsilon
        self._norms = attention.attn_q_norm.weight, attention.attn_k_norm.weight
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
        self._plan = plan_attention(self._kv, self._heads, block=block, budget=budget)
        self._parts = Parts.new(self._plan, WINDOW_ROWS, memory.device)

    def __call__(self, x: Activations, rows: Rows) -> torch.Tensor:
        """Activations of a block's input -> float32 `[rows, width]`."""
        q, k, v, *index = self._project(x)
        query = x.x.new_empty(len(rows), self._heads, self._dim)
        append_kv(q, k, v, *rows.rope, rows.lane, rows.position, self._kv, query, *self._norms, self._epsilon)
        blocks = None if self._index is None else self._index(*index, rows)
        out = x.x.new_empty(len(rows), self._heads * self._dim)
        common = (query, rows.lane, rows.position, self._kv, self._plan, self._scale)
        gate = gate_of(q, self._heads)
        if len(rows) <= WINDOW_ROWS:
            attend_window(*common, self._parts, out, gate, blocks)
        else:
            attend_prompt(*common, out, gate, blocks)
        return self._out(Activations(out))[0]

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
        self._scratch = Scratch(WINDOW_ROWS, max_blocks, layer.budget, memory.device)

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
