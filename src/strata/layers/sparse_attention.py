"""QSA, the sparse attention of `qwen4_exp` (MODELS.md section 2.4).

A small indexer scores blocks of `compress_ratio` consecutive tokens; a query attends to the best
`top_k / compress_ratio` complete blocks and to the tokens after the last complete one. As long as
there are no more blocks than that, this is plain causal attention.
"""

import torch

from strata.errors import ModelFileError, UnsupportedModelError
from strata.layers.attention import KVState
from strata.layers.gated_attention import GatedAttention
from strata.layers.linear import Linear
from strata.layers.norm import RMSNorm
from strata.layers.rotary import Angles, Rotary
from strata.layers.weights import Weights
from strata.models.config import Keys, ModelConfig


class SparseState:
    """Keys, values, the finished key of each complete block, and the raw index keys of the open one.

    A block's key never changes once the block is complete; until then its tokens' raw index keys are
    kept, because pooling comes before normalisation and rotation.
    """

    def __init__(self, kv: KVState, index_length: int):
        self.kv = kv
        self.open_rows = torch.empty(0, index_length)  # replaced, never changed
        self._block_keys = torch.empty(0, index_length)
        self.num_blocks = 0

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        return self.kv.length

    @property
    def block_keys(self) -> torch.Tensor:
        """float32 `[num_blocks, index_length]`, a view."""
        return self._block_keys[: self.num_blocks]

    def append_blocks(self, block_keys: torch.Tensor) -> None:
        num_blocks = self.num_blocks + block_keys.shape[0]
        if num_blocks > self._block_keys.shape[0]:
            grown = block_keys.new_empty(max(num_blocks, self.num_blocks * 3 // 2, 64), block_keys.shape[1])
            grown[: self.num_blocks] = self.block_keys
            self._block_keys = grown
        self._block_keys[self.num_blocks : num_blocks] = block_keys
        self.num_blocks = num_blocks

    def save(self) -> tuple[int, torch.Tensor]:
        return self.num_blocks, self.open_rows

    def load(self, saved: tuple[int, torch.Tensor], length: int) -> None:
        self.num_blocks, self.open_rows = saved
        self.kv.load(None, length)

    def num_bytes(self) -> int:
        return self.kv.num_bytes() + self._block_keys.nbytes + self.open_rows.nbytes


class Indexer:
    """Index queries, and the keys of blocks.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`.
        config: the model's hyper-parameters.
        rotary: positions; the index heads turn by the same angles as the attention's.
        block_size: tokens of a block.
    """

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, rotary: Rotary, block_size: int):
        keys = Keys(weights.checkpoint)
        self.ops = weights.ops
        self.rotary = rotary
        self.block_size = block_size
        self.head_count = keys.count("attention.indexer.head_count")
        self.key_length = keys.count("attention.indexer.key_length")
        if self.key_length < config.rope_dimension_count:
            raise ModelFileError(
                f"{weights.checkpoint.path}: {keys.prefix}attention.indexer.key_length {self.key_length} "
                f"is less than rope.dimension_count {config.rope_dimension_count}"
            )
        width = config.embedding_length
        self.q_proj = Linear(
            weights, f"{prefix}.indexer.q_proj.weight", self.head_count * self.key_length, width
        )
        self.k_proj = Linear(weights, f"{prefix}.indexer.k_proj.weight", self.key_length, width)
        self.q_norm = RMSNorm(weights, f"{prefix}.indexer.q_norm.weight", self.key_length, config.rms_epsilon)
        self.k_norm = RMSNorm(weights, f"{prefix}.indexer.k_norm.weight", self.key_length, config.rms_epsilon)

    def queries(self, x: torch.Tensor, angles: Angles) -> torch.Tensor:
        """float32 `[n, width]` -> `[n, index heads, key_length]`."""
        q = self.q_norm(self.q_proj(x).view(x.shape[0], self.head_count, self.key_length))
        return self.ops.rotate(q, *angles)

    def append(self, x: torch.Tensor, state: SparseState) -> None:
        """Pool, normalise and rotate the blocks that `x` `[n, width]` completes."""
        rows = torch.cat([state.open_rows, self.k_proj(x)])
        complete = rows.shape[0] // self.block_size
        state.open_rows = rows[complete * self.block_size :].clone()
        if complete:
            pooled = rows[: complete * self.block_size].view(complete, self.block_size, -1).mean(1)
            first = torch.arange(state.num_blocks, state.num_blocks + complete) * self.block_size
            state.append_blocks(self.rotary.apply(self.k_norm(pooled)[:, None], first)[:, 0])


class SparseAttention:
    """Gated attention over the blocks the indexer selects; one selection for all heads of a layer.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`.
        config: the model's hyper-parameters.
        rotary: the angles of positions, for the blocks' keys.
        block_size: tokens of a block (`attention.compress_ratios`).
    """

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, rotary: Rotary, block_size: int):
        keys = Keys(weights.checkpoint)
        self.ops = weights.ops
        self.attention = GatedAttention(weights, prefix, config)
        self.indexer = Indexer(weights, prefix, config, rotary, block_size)
        self.block_size = block_size
        top_k = keys.count("attention.indexer.top_k")
        if top_k % block_size:
            raise UnsupportedModelError(
                f"{weights.checkpoint.path}: {keys.prefix}attention.indexer.top_k {top_k} is no multiple "
                f"of the block size {block_size}"
            )
        self.budget = top_k // block_size

    def new_state(self) -> SparseState:
        return SparseState(self.attention.new_state(), self.indexer.key_length)

    def __call__(self, x: torch.Tensor, angles: Angles, state: SparseState) -> torch.Tensor:
        """float32 `[n, width]` -> `[n, width]`; advances `state`."""
        position = state.length
        q, gate, k, v = self.attention.project(x, angles)
        k, v = state.kv.append(k, v)
        self.indexer.append(x, state)
        # the first position with more complete blocks before it than the budget
        first_sparse = (self.budget + 1) * self.block_size - 1
        num_dense = min(max(first_sparse - position, 0), x.shape[0])
        parts = []
        if num_dense:
            end = position + num_dense
            parts.append(self.ops.attend(q[:num_dense], k[:end], v[:end], self.attention.scale))
        if num_dense < x.shape[0]:
            queries = self.indexer.queries(x[num_dense:], tuple(part[num_dense:] for part in angles))
            positions, visible = self._selected(queries, state.block_keys, position + num_dense)
            parts.append(
                self.ops.attend_gathered(q[num_dense:], k, v, self.attention.scale, positions, visible)
            )
        return self.attention.output(torch.cat(parts), gate)

    def _selected(
        self, queries: torch.Tensor, block_keys: torch.Tensor, position: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions each query attends to, int64 `[n, keys]`, and which of them count, bool `[n, keys]`."""
        own = torch.arange(position, position + queries.shape[0])[:, None]  # [n, 1]
        num_complete = (own + 1) // self.block_size
        blocks = self.ops.select_blocks(queries, block_keys, num_complete[:, 0], self.budget)
        inside = torch.arange(self.block_size)
        selected = (blocks[:, :, None] * self.block_size + inside).flatten(1)
        tail = num_complete * self.block_size + inside[:-1]  # tokens after the last complete block, if any
        positions = torch.cat([selected, tail], 1)
        visible = positions <= own
        return torch.where(visible, positions, own), visible
