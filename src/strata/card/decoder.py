"""Decoders of plain blocks on a card: one residual stream, and a norm before each part of a block."""

from dataclasses import dataclass

import torch

from strata.card.feed_forward import card_feed_forward
from strata.card.mixers import Memory, card_mixer
from strata.card.products import Activations, empty_quantized
from strata.card.rows import Inputs, Rows
from strata.layers.block import Block
from strata.layers.norm import RMSNorm
from strata.models.decoder import Decoder
from strata.ops.triton.norm import add_rms_norm, rms_norm


@dataclass(frozen=True, slots=True)
class Residual:
    """The residual stream, and what a part of a block has put out and is not yet added to it.

    Args:
        x: float32 `[rows, width]`.
        output: float32 `[rows, width]`; rows may lie apart.
    """

    x: torch.Tensor
    output: torch.Tensor | None = None

    def last(self) -> "Residual":
        """That of the last row."""
        return Residual(self.x[-1:], None if self.output is None else self.output[-1:])

    def row(self, number: torch.Tensor) -> "Residual":
        """That of a row whose number is on the card, int64 `[1]`."""
        return Residual(self.x[number], None if self.output is None else self.output[number])


class CardNorm:
    """`layers.norm.RMSNorm` of the residual, in one launch with the addition before and what follows it.

    Args:
        norm: the layer.
        quantize: whoever reads it wants int8.
    """

    def __init__(self, norm: RMSNorm, quantize: bool):
        self._weight, self._epsilon = norm.weight, norm.epsilon
        self._quantize = quantize

    def __call__(self, residual: Residual) -> tuple[torch.Tensor, Activations]:
        """The stream with the output added, float32 `[rows, width]`, and its norm."""
        quantized = empty_quantized(residual.x) if self._quantize else None
        if residual.output is None:
            x = residual.x
            normalized = rms_norm(x, self._weight, self._epsilon, quantized)
        else:
            # a copy only where 16 does not divide the width
            output = residual.output.contiguous()
            x, normalized = add_rms_norm(residual.x, output, self._weight, self._epsilon, quantized)
        return x, Activations(normalized, quantized)


class CardBlock:
    """`layers.block.Block`; its last output is added by whoever reads the residual next."""

    def __init__(self, block: Block, memory: Memory):
        self.mixer = card_mixer(block.mixer, memory)
        self.ffn = card_feed_forward(block.ffn, memory)
        self._attn_norm = CardNorm(block.attn_norm, self.mixer.wants_quantized)
        self._ffn_norm = CardNorm(block.ffn_norm, self.ffn.wants_quantized)

    def __call__(self, residual: Residual, ngrams: None, rows: Rows) -> Residual:
        x, normalized = self._attn_norm(residual)
        x, normalized = self._ffn_norm(Residual(x, self.mixer(normalized, rows)))
        return Residual(x, self.ffn(normalized, rows))

    def state_of(self, lane: int) -> list[torch.Tensor]:
        """What is remembered of a lane's sequence, to be copied from and to; zeros at its beginning."""
        return self.mixer.state_of(lane)


class CardDecoder:
    """`models.decoder.Decoder` between its embedding and its output matrix."""

    block_size = 0  # of sparse attention

    def __init__(self, model: Decoder, memory: Memory):
        self.blocks = [CardBlock(block, memory) for block in model.blocks]
        self._output_norm = CardNorm(model.output_norm, memory.weights.is_quantized(model.output))

    def begin(self, inputs: Inputs) -> Residual:
        """The residual before the first block."""
        return Residual(inputs.embedding)

    def end(self, residual: Residual) -> Activations:
        """What the output matrix multiplies."""
        return self._output_norm(residual)[1]
