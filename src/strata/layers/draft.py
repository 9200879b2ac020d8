"""Draft (MTP) layers: from a position's hidden state and the token after it, guess the token after that.

GGUF keeps them behind the decoder layers as `blk.N.*` with `blk.N.nextn.*` (MODELS.md sections 2.9 and
4.5, variant A). A draft layer has keys and values of its own, which must be filled for every position.
"""

import torch

from strata.layers.attention import KVState
from strata.layers.block import Block, HyperBlock, Mixer
from strata.layers.hybrid import feed_forward
from strata.layers.hyper_connection import HyperConnection
from strata.layers.linear import Embedding, Linear
from strata.layers.norm import RMSNorm
from strata.layers.rotary import Angles, Rotary
from strata.layers.sparse_attention import SparseState
from strata.layers.weights import Weights
from strata.models.config import ModelConfig


def has_draft(weights: Weights, prefix: str) -> bool:
    """Whether the file holds the draft layer `prefix`; many announce one and leave it out."""
    return f"{prefix}.nextn.eh_proj.weight" in weights


def next_angles(rotary: Rotary, state: KVState | SparseState, count: int) -> Angles:
    """Angles of the `count` positions after those in `state`."""
    return rotary.angles(torch.arange(state.length, state.length + count))


class Draft:
    """The draft layer of Qwen3-Next and Qwen3.5: one plain block on top of the model's last hidden state.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`, N the number of decoder layers.
        config: the model's hyper-parameters.
        mixer: its attention.
        rotary: the positions.
        token_embd: the model's embedding, used where the layer has none of its own.
        output_norm: the model's last norm, likewise.
        output: the model's output matrix, likewise.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        mixer: Mixer,
        rotary: Rotary,
        token_embd: Embedding,
        output_norm: RMSNorm,
        output: Linear,
    ):
        width, epsilon = config.embedding_length, config.rms_epsilon
        nextn = f"{prefix}.nextn"
        self.rotary = rotary
        self.enorm = RMSNorm(weights, f"{nextn}.enorm.weight", width, epsilon)
        self.hnorm = RMSNorm(weights, f"{nextn}.hnorm.weight", width, epsilon)
        self.eh_proj = Linear(weights, f"{nextn}.eh_proj.weight", width, 2 * width)
        self.block = Block(
            weights, prefix, config, mixer, feed_forward(weights, prefix, config), "post_attention_norm"
        )
        self.embed_tokens, self.shared_head_norm, self.shared_head_head = token_embd, output_norm, output
        if f"{nextn}.embed_tokens.weight" in weights:
            self.embed_tokens = Embedding(weights, f"{nextn}.embed_tokens.weight", config.vocab_size, width)
        if f"{nextn}.shared_head_norm.weight" in weights:
            self.shared_head_norm = RMSNorm(weights, f"{nextn}.shared_head_norm.weight", width, epsilon)
        if f"{nextn}.shared_head_head.weight" in weights:
            self.shared_head_head = Linear(
                weights, f"{nextn}.shared_head_head.weight", config.vocab_size, width
            )

    def new_state(self) -> KVState | SparseState:
        return self.block.mixer.new_state()

    def __call__(
        self, hidden: torch.Tensor, tokens: torch.Tensor, state: KVState | SparseState
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draft from `n` positions in a row.

        Args:
            hidden: float32 `[n, width]`, the model's normalised last hidden states at the positions that
                `state` has not seen; in a chain of drafts, what the draft before returned.
            tokens: int64 `[n]`, the token that follows each position.
            state: the layer's own; advanced.

        Returns:
            hidden states for the next draft float32 `[n, width]`, and logits `[n, vocab]` of the tokens
            two after each position.
        """
        embedding = self.enorm(self.embed_tokens(tokens))
        x = self.eh_proj(torch.cat([embedding, self.hnorm(hidden)], -1))
        hidden = self.shared_head_norm(self.block(x, next_angles(self.rotary, state, len(tokens)), state))
        return hidden, self.shared_head_head(hidden)


class HyperDraft:
    """The draft layer of `qwen4exp`: a block on the model's residual streams before their final mixer.

    Arguments as for `Draft`; embedding and output matrix are always the model's.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        mixer: Mixer,
        rotary: Rotary,
        token_embd: Embedding,
        output: Linear,
    ):
        width, epsilon = config.embedding_length, config.rms_epsilon
        nextn = f"{prefix}.nextn"
        self.token_embd, self.output = token_embd, output
        self.hc_head = HyperConnection(weights, f"{nextn}.hc_head", config, inject=False)
        self.rotary = rotary
        self.enorm = RMSNorm(weights, f"{nextn}.enorm.weight", width, epsilon)
        # one norm over all streams together, unlike everywhere else
        self.hnorm = RMSNorm(weights, f"{nextn}.hnorm.weight", self.hc_head.streams * width, epsilon)
        self.eh_proj = Linear(weights, f"{nextn}.eh_proj.weight", width, 2 * width)
        self.block = HyperBlock(weights, prefix, config, mixer, feed_forward(weights, prefix, config))

    def new_state(self) -> KVState | SparseState:
        return self.block.mixer.new_state()

    def __call__(
        self, residual: torch.Tensor, tokens: torch.Tensor, state: KVState | SparseState
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Draft`, with streams float32 `[n, streams, width]` in place of hidden states."""
        normalized = self.hnorm(residual.flatten(1)).view_as(residual)
        embedding = self.enorm(self.token_embd(tokens))[:, None].expand_as(residual)
        residual = self.eh_proj(torch.cat([embedding, normalized], -1))
        residual = self.block(residual, next_angles(self.rotary, state, len(tokens)), state)
        return residual, self.output(self.hc_head.mix(residual))
