"""Qwen3-Next: three gated delta nets to one gated full attention, experts in every layer.

Reference: transformers `qwen3_next`; tensor names and layouts: llama.cpp `qwen3next`.
"""

from typing import Literal

import torch

from strata.formats.checkpoint import Checkpoint
from strata.layers.delta_net import DeltaNet, DeltaNetConfig
from strata.layers.draft import Draft, has_draft
from strata.layers.gated_attention import GatedAttention
from strata.layers.hybrid import PreNormBlock, recurrent_layers
from strata.layers.linear import Embedding, Linear
from strata.layers.norm import RMSNorm
from strata.layers.rotary import Rotary
from strata.layers.state import SequenceState
from strata.layers.weights import Weights
from strata.models.base import Model
from strata.models.config import Keys, ModelConfig


class Qwen3Next(Model):
    """Pre-norm decoder of delta nets and attention; `draft` is its MTP layer or None."""

    value_head_order: Literal["grouped", "tiled"] = "grouped"

    def __init__(self, checkpoint: Checkpoint, weights: Weights):
        self.config = config = ModelConfig.from_checkpoint(checkpoint)
        keys, width = Keys(checkpoint), config.embedding_length
        rotary = Rotary.from_checkpoint(config, weights)
        delta = DeltaNetConfig.from_keys(keys, self.value_head_order)
        self.token_embd = Embedding(weights, "token_embd.weight", config.vocab_size, width)
        self.blk = []
        for layer, recurrent in enumerate(recurrent_layers(keys, config)):
            prefix = f"blk.{layer}"
            mixer = (
                DeltaNet(weights, prefix, config, delta)
                if recurrent
                else GatedAttention(weights, prefix, config, rotary)
            )
            self.blk.append(PreNormBlock(weights, prefix, config, mixer))
        self.output_norm = RMSNorm(weights, "output_norm.weight", width, config.rms_epsilon)
        tied = "output.weight" not in weights
        self.output = Linear(
            weights, "token_embd.weight" if tied else "output.weight", config.vocab_size, width
        )
        self.draft = self._draft(weights, f"blk.{config.block_count}", rotary)

    def _draft(self, weights: Weights, prefix: str, rotary: Rotary) -> Draft | None:
        if not has_draft(weights, prefix):
            return None
        attention = GatedAttention(weights, prefix, self.config, rotary)
        return Draft(weights, prefix, self.config, attention, self.token_embd, self.output_norm, self.output)

    def new_state(self) -> SequenceState:
        return SequenceState([block.mixer.new_state() for block in self.blk], recurrent=True)

    def forward(self, tokens: list[int], state: SequenceState, all_logits: bool = False) -> torch.Tensor:
        hidden = self.hidden(tokens, state)
        return self.output(hidden if all_logits else hidden[-1:])

    def hidden(self, tokens: list[int], state: SequenceState) -> torch.Tensor:
        """Append `tokens` and return their last hidden states, normalised: float32 `[n, width]`."""
        x = self.token_embd(torch.tensor(tokens))
        for block, layer_state in zip(self.blk, state.layers, strict=True):
            x = block(x, layer_state, state.position)
        state.position += len(tokens)
        return self.output_norm(x)


def load(checkpoint: Checkpoint, weights: Weights) -> Model:
    return Qwen3Next(checkpoint, weights)
