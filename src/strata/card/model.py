"""A whole model on a card: what one step queues, from embeddings to logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.card.cache import ExpertCache
from strata.card.feed_forward import CardExperts, CardFeedForward
from strata.card.host_experts import HostExperts
from strata.card.mixers import PAGE, CardDeltaNet, CardGatedAttention, Memory
from strata.card.ngram import CardNgramMemory
from strata.card.products import Activations, empty_quantized
from strata.card.rows import Rows
from strata.card.weights import CardWeights
from strata.errors import UnsupportedModelError
from strata.layers.block import HyperBlock
from strata.layers.delta_net import DeltaNet
from strata.layers.hyper_connection import HyperConnection
from strata.layers.moe import Experts
from strata.models import Model
from strata.models.qwen4exp import Qwen4Exp
from strata.ops.triton import hyper_connection
from strata.ops.triton.float_matmul import Workspace
from strata.ops.triton.hyper_connection import HyperConnectionWeights


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the host gives a step beside its `Rows`, on the card.

    Args:
        embedding: float32 `[rows, width]`, of the tokens.
        ngrams: float32 `[rows, table width]`, what the n-gram table has for them; None without one.
    """

    embedding: torch.Tensor
    ngrams: torch.Tensor | None


class CardModel:
    """`models.qwen4exp.Qwen4Exp` for windows and prompts of several lanes.

    Args:
        model: built on `weights`; its layers are read, not called.
        weights: whose experts are loaded.
        cache: the experts that the card holds, and the addresses of all.
        lanes: sequences that are kept at the same time.
        context: most tokens of a sequence.
        kv_type: float16 or int8, of keys and values.
        host: who computes the share of the missed experts that is the processor's; None: nobody.

    Raises:
        UnsupportedModelError: an architecture that does not run on a card yet.
    """

    def __init__(
        self,
        model: Qwen4Exp,
        weights: CardWeights,
        cache: ExpertCache,
        lanes: int,
        context: int,
        kv_type: torch.dtype = torch.float16,
        host: HostExperts | None = None,
    ):
        self.require(model)
        self.model, self.weights, self.host = model, weights, host
        self.addresses = cache.table.tensor
        self.lanes, self.context = lanes, context
        device = weights.card.device
        pages = -(-context // PAGE)
        table = torch.arange(lanes * pages, dtype=torch.int32, device=device).view(lanes, pages)
        self.memory = Memory(
            weights, Workspace(device, 1, 1), lanes, table, lanes * pages, kv_type, cache.slots, host
        )
        self.counts = torch.zeros(self.addresses.shape, dtype=torch.int32, device=device)
        self._inv_freq = model.rotary.inv_freq.to(device)
        self._block_size = next(
            (b.mixer.block_size for b in model.blk if not isinstance(b.mixer, DeltaNet)), 0
        )
        self._blocks = [self._block(block, model.blk) for block in model.blk]
        self._ple = None if model.ple is None else CardNgramMemory(model.ple, self.memory)
        self._output_hc = CardHyperConnection(model.output_hc, self.memory)
        self._output = self.memory.product(model.output)

    @staticmethod
    def require(model: Model) -> None:
        """Raise UnsupportedModelError for an architecture that does not run on a card yet."""
        if not isinstance(model, Qwen4Exp):
            raise UnsupportedModelError(f"{model.config.architecture} does not run on a card yet")

    def _block(self, block: HyperBlock, blocks: Sequence[HyperBlock]) -> "CardHyperBlock":
        counts = self.counts[block.ffn.experts] if isinstance(block.ffn, Experts) else None
        return CardHyperBlock(block, self.memory, counts)

    @property
    def num_layers(self) -> int:
        """Blocks."""
        return len(self._blocks)

    def experts_of(self, layer: int) -> int | None:
        """The row of a block's experts in tables of addresses and counts; None for a dense one."""
        ffn = self.model.blk[layer].ffn
        return ffn.experts if isinstance(ffn, Experts) else None

    def rows(
        self,
        lane: torch.Tensor,
        position: torch.Tensor,
        accepted: torch.Tensor,
        commit: bool,
        addresses: torch.Tensor | None = None,
    ) -> Rows:
        """`Rows` of this model, whose experts are where the cache's table says, or `addresses`; see there."""
        return Rows(
            lane,
            position,
            accepted,
            commit,
            self.addresses if addresses is None else addresses,
            self._inv_freq,
            self.model.rotary.attention_factor,
            self._block_size,
        )

    def step(self, inputs: Inputs, rows: Rows) -> torch.Tensor:
        """Queue the computation of all rows; returns their logits, float32 `[rows, vocab]`."""
        stream = self.embed(inputs)
        for layer in range(self.num_layers):
            stream = self.block(layer, stream, inputs, rows)
        return self.logits(stream)

    def embed(self, inputs: Inputs) -> "Streams":
        """What the first block reads."""
        streams = self.model.output_hc.streams
        return Streams(inputs.embedding[:, None].expand(-1, streams, -1).contiguous())

    def block(self, layer: int, stream: "Streams", inputs: Inputs, rows: Rows) -> "Streams":
        """Queue the computation of one block, counted from 0."""
        if self._ple is not None and layer == self.model.ple_layer:
            assert inputs.ngrams is not None
            stream = Streams(self._ple(stream.written(), inputs.ngrams, rows))
        return self._blocks[layer](stream, rows)

    def logits(self, stream: "Streams") -> torch.Tensor:
        """float32 `[rows, vocab]` of what the last block has left."""
        _, x, _ = self._output_hc.read(stream)
        return self._output(x)[0]

    def state_of(self, layer: int, lane: int) -> list[torch.Tensor]:
        """What a block remembers of a lane's sequence, to be copied from and to; zeros at its beginning.

        Of a model that can be cut anywhere there is nothing.
        """
        ple = self._ple is not None and layer == self.model.ple_layer
        return self._blocks[layer].mixer.state_of(lane) + (self._ple.state_of(lane) if ple else [])

    def force_routes(self, ids: torch.Tensor) -> None:
        """Use experts as a trace says, by position: int16 `[tokens, layers with experts, used]`.

        Only before a step is captured. Made-up weights choose evenly, which no cache likes.
        """
        layers = [block.ffn for block in self._blocks if isinstance(block.ffn, CardExperts)]
        for index, ffn in enumerate(layers):
            ffn.forced = ids[:, index].to(self.addresses.device).contiguous()

    def state_bytes(self) -> int:
        """What `state_of` gives for a lane, over all blocks."""
        layers = range(self.num_layers)
        return sum(tensor.nbytes for layer in layers for tensor in self.state_of(layer, 0))

    def bytes_per_token(self) -> int:
        """Of the keys and values of all blocks."""
        return sum(block.mixer.bytes_per_token for block in self._blocks)

    def reset(self, lane: int) -> None:
        """Forget a lane's sequence."""
        for layer in range(self.num_layers):
            for tensor in self.state_of(layer, lane):
                tensor.zero_()


@dataclass(frozen=True, slots=True)
class Streams:
    """The residual streams, and what a block has put out and not yet been written to them.

    Args:
        residual: float32 `[rows, streams, width]`.
        output: float32 `[rows, width]`.
        inject: float32 `[rows, streams]`, how strongly `output` is to be added to each stream.
    """

    residual: torch.Tensor
    output: torch.Tensor | None = None
    inject: torch.Tensor | None = None

    def last(self) -> "Streams":
        """Those of the last row."""
        parts = (self.residual, self.output, self.inject)
        return Streams(*(None if part is None else part[-1:] for part in parts))

    def written(self) -> torch.Tensor:
        """The streams with the output added."""
        if self.output is None or self.inject is None:
            return self.residual
        return self.residual + self.output[:, None] * self.inject[:, :, None]


class CardHyperConnection:
    """`layers.hyper_connection.HyperConnection`."""

    def __init__(self, module: HyperConnection, memory: Memory):
        below = [module.down] if module.inject is None else [module.down, module.inject]
        weights = memory.weights
        self._workspace = memory.workspace
        self._weights = HyperConnectionWeights(
            weights.get(module.norm),
            weights.stack_floats(below),
            weights.stack_floats([module.up]),
            module.streams,
            module.epsilon,
        )
        self._workspace.reserve(*self._weights.workspace_size())

    def read(self, streams: Streams) -> tuple[torch.Tensor, Activations, torch.Tensor]:
        """The streams written to, a block's input, and its `inject`."""
        quantized = None
        if self._weights.width % 128 == 0:
            quantized = empty_quantized(streams.residual[:, 0])
        residual, x, inject = hyper_connection.read(
            streams.residual, self._weights, self._workspace, streams.output, streams.inject, quantized
        )
        return residual, Activations(x, quantized), inject


class CardHyperBlock:
    """`layers.block.HyperBlock`; its last output is written by whoever reads the streams next."""

    def __init__(
        self,
        block: HyperBlock,
        memory: Memory,
        counts: torch.Tensor | None,
    ):
        self._hc_attn = CardHyperConnection(block.hc_attn, memory)
        self._hc_ffn = CardHyperConnection(block.hc_ffn, memory)
        kind = CardDeltaNet if isinstance(block.mixer, DeltaNet) else CardGatedAttention
        self.mixer = kind(block.mixer, memory)
        if isinstance(block.ffn, Experts):
            self.ffn = CardExperts(block.ffn, memory, counts)
        else:
            self.ffn = CardFeedForward(block.ffn, memory)

    def __call__(self, streams: Streams, rows: Rows) -> Streams:
        residual, x, inject = self._hc_attn.read(streams)
        residual, x, inject = self._hc_ffn.read(Streams(residual, self.mixer(x, rows), inject))
        return Streams(residual, self.ffn(x, rows), inject)
