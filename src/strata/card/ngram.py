"""The n-gram memory on a card; its table stays where the host reads it."""

import torch

from strata.card.mixers import Memory
from strata.card.products import Activations
from strata.card.rows import Rows
from strata.layers.ngram import NgramMemory
from strata.ops.triton.ngram import NgramHash, NgramState, NgramWeights, add_ngram_memory


class CardNgramMemory:
    """`layers.ngram.NgramMemory` for all lanes, from the rows that the host has looked up."""

    def __init__(self, layer: NgramMemory, memory: Memory):
        weights, device = memory.weights, memory.device
        self._key, self._value = memory.product(layer.ple_key), memory.product(layer.ple_value)
        self._weights = NgramWeights(
            weights.get(layer.ple_norm_key),
            weights.get(layer.ple_norm_query),
            weights.get(layer.ple_norm_conv),
            weights.get(layer.ple_conv1d.name),
            dilation=layer.table.size,
            streams=layer.streams,
            epsilon=layer.epsilon,
        )
        table = layer.table
        numbers = (table.multipliers, table.head_sizes, table.head_offsets)
        hash_ = NgramHash(*(n.to(device) for n in numbers), table.eos)
        self.state = NgramState.new(memory.lanes, hash_, self._weights)

    def __call__(self, residual: torch.Tensor, ngrams: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Streams float32 `[rows, streams, width]` -> themselves with the memory added."""
        x = Activations(ngrams)
        key, value = self._key(x)[0].contiguous(), self._value(x)[0].contiguous()
        return add_ngram_memory(
            residual, key, value, self._weights, self.state, rows.lane, rows.accepted, rows.commit
        )

    def state_of(self, lane: int) -> list[torch.Tensor]:
        """What is remembered of a lane's sequence, to be copied from and to; zeros at its beginning."""
        return [self.state.past[lane]]
