"""The decoder of qwen4exp on a card: several residual streams, hyper-connections, an n-gram memory."""

from dataclasses import dataclass

import torch

from strata.card.feed_forward import card_feed_forward
from strata.card.mixers import Memory, card_mixer
from strata.card.ngram import CardNgramMemory
from strata.card.products import Activations, empty_quantized
from strata.card.rows import Inputs, Rows
from strata.card.weights import CardWeights
from strata.layers.block import HyperBlock
from strata.layers.hyper_connection import HyperConnection
from strata.layers.ngram import NgramMemory
from strata.layers.sparse_attention import SparseAttention
from strata.models.qwen4exp import Qwen4Exp
from strata.ops.triton import hyper_connection
from strata.ops.triton.hyper_connection import HyperConnectionWeights
from strata.ops.triton.streams import QuantizedHyperConnection
from strata.ops.triton.streams import read as read_quantized


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
        return self._part(slice(-1, None))

    def row(self, number: torch.Tensor) -> "Streams":
        """Those of a row whose number is on the card, int64 `[1]`."""
        return self._part(number)

    def _part(self, rows: slice | torch.Tensor) -> "Streams":
        parts = (self.residual, self.output, self.inject)
        return Streams(*(None if part is None else part[rows] for part in parts))

    def write(self) -> torch.Tensor:
        """Add the output to the streams, in place; returns them."""
        if self.output is not None and self.inject is not None:
            self.residual.add_(self.output[:, None] * self.inject[:, :, None])
        return self.residual


class CardHyperConnection:
    """`layers.hyper_connection.HyperConnection`."""

    def __init__(self, module: HyperConnection, memory: Memory):
        self._workspace = memory.workspace
        self._weights = _quantized(module, memory.weights) or _floats(module, memory.weights)
        self._workspace.reserve(*self._weights.workspace_size())

    def read(self, streams: Streams) -> tuple[torch.Tensor, Activations, torch.Tensor]:
        """The streams written to, a block's input, and its `inject`."""
        quantized = None
        if self._weights.width % 128 == 0:
            quantized = empty_quantized(streams.residual[:, 0])
        args = (self._workspace, streams.output, streams.inject, quantized)
        if isinstance(self._weights, QuantizedHyperConnection):
            residual, x, inject = read_quantized(streams.residual, self._weights, *args)
        else:
            residual, x, inject = hyper_connection.read(streams.residual, self._weights, *args)
        return residual, Activations(x, quantized), inject


def _quantized(module: HyperConnection, weights: CardWeights) -> QuantizedHyperConnection | None:
    """The weights for quantised products; None where the module is to be multiplied as floats."""
    norm = weights.get(module.norm).view(module.streams, -1)
    if not (weights.is_quantized(module.down) and weights.is_quantized(module.up)) or norm.shape[1] % 128:
        return None
    linears = [linear for linear in (module.down, module.up, module.inject) if linear is not None]
    weights.require_bare(linears)
    inject, below = None, [module.down]
    if module.inject is not None:
        if weights.card_format(module.inject.name) == weights.card_format(module.down.name):
            below.append(module.inject)
        else:
            inject = weights.stack_floats([module.inject])
    (down,), (up,) = weights.stack(below), weights.stack([module.up])
    if len(below) == 2:
        inject = down.rows[module.inject.name][0]
    return QuantizedHyperConnection(norm, down.matrix, up.matrix, inject, module.epsilon)


def _floats(module: HyperConnection, weights: CardWeights) -> HyperConnectionWeights:
    """The weights as floats, whatever they are in the file."""
    below = [module.down] if module.inject is None else [module.down, module.inject]
    return HyperConnectionWeights(
        weights.get(module.norm),
        weights.stack_floats(below),
        weights.stack_floats([module.up]),
        module.streams,
        module.epsilon,
    )


class CardHyperBlock:
    """`layers.block.HyperBlock`; its last output is written by whoever reads the streams next.

    Args:
        block: whose parts these are.
        memory: see there.
        ple: the n-gram memory that is added before the block, if this is the one.
    """

    def __init__(self, block: HyperBlock, memory: Memory, ple: NgramMemory | None):
        self._ple = None if ple is None else CardNgramMemory(ple, memory)
        self._hc_attn = CardHyperConnection(block.hc_attn, memory)
        self.mixer = card_mixer(block.mixer, memory)
        self._hc_ffn = CardHyperConnection(block.hc_ffn, memory)
        self.ffn = card_feed_forward(block.ffn, memory)

    def __call__(self, streams: Streams, ngrams: torch.Tensor | None, rows: Rows) -> Streams:
        if self._ple is not None:
            assert ngrams is not None
            streams = Streams(self._ple(streams.write(), ngrams, rows))
        residual, x, inject = self._hc_attn.read(streams)
        residual, x, inject = self._hc_ffn.read(Streams(residual, self.mixer(x, rows), inject))
        return Streams(residual, self.ffn(x, rows), inject)

    def state_of(self, lane: int) -> list[torch.Tensor]:
        """What is remembered of a lane's sequence, to be copied from and to; zeros at its beginning."""
        return self.mixer.state_of(lane) + ([] if self._ple is None else self._ple.state_of(lane))


class CardHyperDecoder:
    """`models.qwen4exp.Qwen4Exp` between its embedding and its output matrix.

    Attributes:
        block_size: tokens of a block of sparse attention; 0 where there is none.
    """

    def __init__(self, model: Qwen4Exp, memory: Memory):
        self.blocks = [
            CardHyperBlock(block, memory, model.ple if layer == model.ple_layer else None)
            for layer, block in enumerate(model.blk)
        ]
        mixers = [block.mixer for block in model.blk]
        self.block_size = next((m.block_size for m in mixers if isinstance(m, SparseAttention)), 0)
        self._streams = model.output_hc.streams
        self._output_hc = CardHyperConnection(model.output_hc, memory)

    def begin(self, inputs: Inputs) -> Streams:
        """The residual before the first block."""
        return Streams(inputs.embedding[:, None].expand(-1, self._streams, -1).contiguous())

    def end(self, streams: Streams) -> Activations:
        """What the output matrix multiplies."""
        return self._output_hc.read(streams)[1]
