"""A whole model on a card: what one step queues, from embeddings to logits."""

from collections.abc import Callable, Sequence

import torch

from strata.card.cache import ExpertCache
from strata.card.decoder import CardDecoder, Residual
from strata.card.feed_forward import CardExperts, require_feed_forward
from strata.card.host_experts import JobPlaces
from strata.card.hyper_decoder import CardHyperDecoder, Streams
from strata.card.mixers import PAGE, Memory, require_mixer
from strata.card.prompt_share import PromptShare
from strata.card.rows import Inputs, Rows
from strata.card.tables import CardTable
from strata.card.weights import CardWeights
from strata.errors import UnsupportedModelError
from strata.models.base import Model
from strata.models.decoder import Decoder
from strata.models.qwen4exp import Qwen4Exp
from strata.ops.triton.place import Misses
from strata.ops.triton.workspace import Workspace
from strata.placement import FETCHED


class CardModel:
    """A model for windows and prompts of several lanes.

    Args:
        model: built on `weights`; its layers are read, not called.
        weights: whose experts are loaded.
        cache: the experts that the card holds, and the addresses of all.
        lanes: sequences that are kept at the same time.
        context: most tokens of a sequence.
        kv_type: float16 or int8, of keys and values.
        host: who computes the share of the missed experts that is the processor's; None: nobody.
        take: how many of 0, 1, ... missed experts of a layer that is, in windows; the others are fetched
            before they are computed. None: windows read whatever they miss in place.

    Attributes:
        tokens: their embeddings.
        ngrams: the n-gram table's rows of a token; None without one.

    Raises:
        UnsupportedModelError: something in the model does not run on a card; it is named.
    """

    def __init__(
        self,
        model: Model,
        weights: CardWeights,
        cache: ExpertCache,
        lanes: int,
        context: int,
        kv_type: torch.dtype = torch.float16,
        host: JobPlaces | None = None,
        take: Sequence[int] | None = None,
    ):
        self.require(model)
        self.model, self.weights, self.host = model, weights, host
        self.addresses = cache.table.tensor
        self.lanes, self.context = lanes, context
        device = weights.card.device
        pages = -(-context // PAGE)
        table = torch.arange(lanes * pages, dtype=torch.int32, device=device).view(lanes, pages)
        self.counts = torch.zeros(self.addresses.shape, dtype=torch.int32, device=device)
        experts, largest = self.addresses.shape[1], max(cache.store.record_bytes, default=0)
        self.memory = Memory(
            weights=weights,
            workspace=Workspace(device, 1, 1),
            lanes=lanes,
            page_table=table,
            pages=lanes * pages,
            kv_type=kv_type,
            counts=self.counts,
            slots=cache.slots,
            host=host,
            misses=None if take is None else Misses.allocate(take, experts, FETCHED, largest, device),
        )
        kind = CardHyperDecoder if isinstance(model, Qwen4Exp) else CardDecoder
        self._decoder = kind(model, self.memory)
        self._output = self.memory.product(model.output)
        self.tokens = CardTable(model.token_embd, 1, device)
        ple = model.ple
        self.ngrams = (
            None if ple is None else CardTable(ple.table.table, ple.table.head_sizes.numel(), device)
        )
        self._inv_freq = model.rotary.inv_freq.to(device)

    @staticmethod
    def require(model: Model) -> None:
        """Raise UnsupportedModelError where something in a model, built on `CardWeights`, does not run on a
        card: before its experts are read."""
        if not isinstance(model, Qwen4Exp | Decoder):
            raise UnsupportedModelError(f"{model.config.architecture} does not run on a card")
        weights = model.output.weights
        for name in weights.matrices:
            weights.card_format(name)
        for block in model.blk if isinstance(model, Qwen4Exp) else model.blocks:
            require_mixer(block.mixer, weights)
            require_feed_forward(block.ffn, weights)

    @property
    def num_layers(self) -> int:
        """Blocks."""
        return len(self._decoder.blocks)

    def experts_of(self, layer: int) -> int | None:
        """The row of a block's experts in tables of addresses and counts; None for a dense one."""
        ffn = self._decoder.blocks[layer].ffn
        return ffn.key if isinstance(ffn, CardExperts) else None

    def rows(
        self,
        lane: torch.Tensor,
        position: torch.Tensor,
        accepted: torch.Tensor,
        commit: bool,
        addresses: torch.Tensor | None = None,
        share: PromptShare | None = None,
        gate: Callable[[int], None] = lambda key: None,
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
            self._decoder.block_size,
            share,
            gate,
        )

    def step(self, inputs: Inputs, rows: Rows, chosen: torch.Tensor | None = None) -> torch.Tensor:
        """Queue the computation of all rows; returns logits, float32 `[rows, vocab]`, of all or of `chosen`.

        `chosen` is int64 `[1]` on the card, the number of a row.
        """
        stream = self.embed(inputs)
        for layer in range(self.num_layers):
            stream = self.block(layer, stream, inputs.ngrams, rows)
        return self.logits(stream if chosen is None else stream.row(chosen))

    def inputs(self, tokens: torch.Tensor, ngrams: torch.Tensor | None) -> Inputs:
        """Decode what `tokens.fetch` and `ngrams.fetch` gave for a step's rows, once it is on the card."""
        return Inputs(self.tokens.decode(tokens), None if self.ngrams is None else self.ngrams.decode(ngrams))

    def embed(self, inputs: Inputs) -> Residual | Streams:
        """What the first block reads."""
        return self._decoder.begin(inputs)

    def block(
        self, layer: int, stream: Residual | Streams, ngrams: torch.Tensor | None, rows: Rows
    ) -> Residual | Streams:
        """Queue the computation of one block, counted from 0, with `Inputs.ngrams` of the rows."""
        return self._decoder.blocks[layer](stream, ngrams, rows)

    def logits(self, stream: Residual | Streams) -> torch.Tensor:
        """float32 `[rows, vocab]` of what the last block has left."""
        return self._output(self._decoder.end(stream))[0]

    def state_of(self, layer: int, lane: int) -> list[torch.Tensor]:
        """What a block remembers of a lane's sequence, to be copied from and to; zeros at its beginning.

        Of a model that can be cut anywhere there is nothing.
        """
        return self._decoder.blocks[layer].state_of(lane)

    def force_routes(self, ids: torch.Tensor) -> None:
        """Use experts as a trace says, by position: int16 `[tokens, layers with experts, used]`.

        Only before a step is captured. Made-up weights choose evenly, which no cache likes.
        """
        layers = [block.ffn for block in self._decoder.blocks if isinstance(block.ffn, CardExperts)]
        for index, ffn in enumerate(layers):
            ffn.forced = ids[:, index].to(self.addresses.device).contiguous()

    def state_bytes(self) -> int:
        """What `state_of` gives for a lane, over all blocks."""
        layers = range(self.num_layers)
        return sum(tensor.nbytes for layer in layers for tensor in self.state_of(layer, 0))

    def bytes_per_token(self) -> int:
        """Of the keys and values of all blocks."""
        return sum(block.mixer.bytes_per_token for block in self._decoder.blocks)

    def reset(self, lane: int) -> None:
        """Forget a lane's sequence."""
        for layer in range(self.num_layers):
            for tensor in self.state_of(layer, lane):
                tensor.zero_()
