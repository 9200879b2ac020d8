"""Qwen3-Next: three gated delta nets to one gated full attention, experts in every layer.

Reference: transformers `qwen3_next`; tensor names and layouts: llama.cpp `qwen3next`.
"""

from typing import Literal

from strata.formats.checkpoint import Checkpoint
from strata.layers.block import Block
from strata.layers.delta_net import DeltaNet, DeltaNetConfig
from strata.layers.draft import Draft, has_draft
from strata.layers.gated_attention import GatedAttention
from strata.layers.hybrid import feed_forward, recurrent_layers
from strata.layers.rotary import Rotary
from strata.layers.weights import Weights
from strata.models.base import Model
from strata.models.config import Keys, ModelConfig
from strata.models.decoder import Decoder


class Qwen3Next(Decoder):
    """Pre-norm decoder of delta nets and attention; `draft` is its MTP layer or None."""

    value_head_order: Literal["grouped", "tiled"] = "grouped"

    def __init__(self, checkpoint: Checkpoint, weights: Weights):
        config, keys = ModelConfig.from_checkpoint(checkpoint), Keys(checkpoint)
        delta = DeltaNetConfig.from_keys(keys, self.value_head_order)
        blocks = []
        for layer, recurrent in enumerate(recurrent_layers(keys, config)):
            prefix = f"blk.{layer}"
            mixer = (
                DeltaNet(weights, prefix, config, delta)
                if recurrent
                else GatedAttention(weights, prefix, config)
            )
            ffn = feed_forward(weights, prefix, config)
            blocks.append(Block(weights, prefix, config, mixer, ffn, "post_attention_norm"))
        rotary = Rotary.from_checkpoint(config, weights)
        super().__init__(config, weights, blocks, rotary, recurrent=True)
        self.draft = self._draft(weights, f"blk.{config.block_count}")

    def _draft(self, weights: Weights, prefix: str) -> Draft | None:
        if not has_draft(weights, prefix):
            return None
        attention = GatedAttention(weights, prefix, self.config)
        return Draft(
            weights,
            prefix,
            self.config,
            attention,
            self.rotary,
            self.token_embd,
            self.output_norm,
            self.output,
        )


def load(checkpoint: Checkpoint, weights: Weights) -> Model:
    return Qwen3Next(checkpoint, weights)
