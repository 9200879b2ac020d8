"""Qwen4-Exp (Qwen3.8-Flash-Next): delta nets and sparse attention between hyper-connections, n-gram memory.

There is no norm outside the hyper-connections: the last mixer is the final norm. Specification:
MODELS.md sections 2 and 4; reference: transformers `qwen4_exp`; tensor names: llama.cpp `qwen4exp`.
"""

import torch

from strata.errors import ModelFileError, UnsupportedModelError
from strata.formats.checkpoint import Checkpoint
from strata.layers.block import HyperBlock, expert_layers
from strata.layers.delta_net import DeltaNet, DeltaNetConfig
from strata.layers.draft import HyperDraft, has_draft
from strata.layers.hybrid import feed_forward, recurrent_layers
from strata.layers.hyper_connection import HyperConnection
from strata.layers.linear import Embedding, Linear
from strata.layers.moe import Experts
from strata.layers.ngram import NgramMemory
from strata.layers.rotary import Rotary
from strata.layers.sparse_attention import SparseAttention
from strata.layers.state import SequenceState
from strata.layers.weights import Weights
from strata.models.base import Model
from strata.models.config import Keys, ModelConfig


class Qwen4Exp(Model):
    """Decoder on `hyper_connection.count` residual streams; `draft` is its MTP layer or None."""

    def __init__(self, checkpoint: Checkpoint, weights: Weights):
        self.config = config = ModelConfig.from_checkpoint(checkpoint)
        keys, width = Keys(checkpoint), config.embedding_length
        self.rotary = rotary = Rotary.from_checkpoint(config, weights)
        delta = DeltaNetConfig.from_keys(keys, "tiled", gate="sigmoid")
        recurrent = recurrent_layers(keys, config)
        block_sizes = _block_sizes(keys, recurrent)
        self.token_embd = Embedding(weights, "token_embd.weight", config.vocab_size, width)
        self.ple_layer = _ple_layer(keys, config)
        self.ple = None if self.ple_layer is None else NgramMemory(weights, f"blk.{self.ple_layer}", config)
        self.blk = []
        for layer in range(config.block_count):
            prefix = f"blk.{layer}"
            mixer = (
                DeltaNet(weights, prefix, config, delta)
                if recurrent[layer]
                else SparseAttention(weights, prefix, config, rotary, block_sizes[layer])
            )
            ffn = feed_forward(weights, prefix, config)
            self.blk.append(HyperBlock(weights, prefix, config, mixer, ffn))
        self.output_hc = HyperConnection(weights, "output_hc", config, inject=False)
        tied = "output.weight" not in weights
        self.output = Linear(
            weights, "token_embd.weight" if tied else "output.weight", config.vocab_size, width
        )
        self.draft = self._draft(weights, f"blk.{config.block_count}", rotary, block_sizes)

    def _draft(
        self, weights: Weights, prefix: str, rotary: Rotary, block_sizes: list[int]
    ) -> HyperDraft | None:
        if not has_draft(weights, prefix):
            return None
        # the array of block sizes may end before the draft layer, which is like the model's attention layers
        if not any(block_sizes):
            raise ModelFileError(f"{weights.checkpoint.path}: a draft layer on a model without attention")
        attention = SparseAttention(weights, prefix, self.config, rotary, max(block_sizes))
        return HyperDraft(weights, prefix, self.config, attention, rotary, self.token_embd, self.output)

    def new_state(self) -> SequenceState:
        """One state per block, and the n-gram memory's at the end."""
        layers = [block.mixer.new_state() for block in self.blk]
        if self.ple is not None:
            layers.append(self.ple.new_state())
        return SequenceState(layers, recurrent=True)

    def expert_layers(self) -> dict[int, Experts]:
        return expert_layers(self.blk)

    def forward(self, tokens: list[int], state: SequenceState, all_logits: bool = False) -> torch.Tensor:
        return self.output(self.output_hc.mix(self.residual(tokens, state, last=not all_logits)))

    def residual(self, tokens: list[int], state: SequenceState, last: bool = False) -> torch.Tensor:
        """Append `tokens`; their residual before the final mixer, float32 `[n, streams, width]`, or
        `[1, streams, width]` of the `last`."""
        ids = torch.tensor(tokens)
        angles = self.rotary.angles(torch.arange(state.position, state.position + len(tokens)))
        residual = self.token_embd(ids)[:, None].expand(-1, self.output_hc.streams, -1)
        for layer, block in enumerate(self.blk):
            if layer == self.ple_layer:
                residual = self.ple(residual, ids, state.layers[-1])
            residual = block(residual, angles, state.layers[layer], last and block is self.blk[-1])
        state.position += len(tokens)
        return residual


def _ple_layer(keys: Keys, config: ModelConfig) -> int | None:
    """The layer (counted from 0) before which the n-gram memory is added."""
    layers = keys.list("ple.layers", [])
    if not layers:
        return None
    if len(layers) > 1:
        raise UnsupportedModelError(
            f"{keys.checkpoint.path}: {keys.prefix}ple.layers names {len(layers)} layers; "
            "a GGUF has one n-gram table, and Strata one n-gram memory"
        )
    if not isinstance(layers[0], int) or not 0 <= layers[0] < config.block_count:
        raise ModelFileError(
            f"{keys.checkpoint.path}: {keys.prefix}ple.layers names layer {layers[0]!r} "
            f"of {config.block_count}"
        )
    return layers[0]


def _block_sizes(keys: Keys, recurrent: list[bool]) -> list[int]:
    """Tokens per block of each sparse-attention layer; 0 for delta nets."""
    key = "attention.compress_ratios"
    ratios = keys.list(key)
    if len(ratios) < len(recurrent):
        raise ModelFileError(
            f"{keys.checkpoint.path}: metadata key {keys.prefix}{key} has {len(ratios)} entries "
            f"for {len(recurrent)} layers"
        )
    for layer, is_recurrent in enumerate(recurrent):
        if not is_recurrent and (not isinstance(ratios[layer], int) or ratios[layer] < 1):
            raise UnsupportedModelError(
                f"{keys.checkpoint.path}: {keys.prefix}{key} gives {ratios[layer]!r} for attention layer "
                f"{layer}; Strata has only sparse attention with blocks of 1 token or more here"
            )
    return [0 if is_recurrent else ratios[layer] for layer, is_recurrent in enumerate(recurrent)]


def load(checkpoint: Checkpoint, weights: Weights) -> Model:
    return Qwen4Exp(checkpoint, weights)
