"""The decoder of pre-norm blocks on one residual stream that most architectures are."""

from typing import Protocol

import torch

from strata.layers.feed_forward import FeedForward
from strata.layers.linear import Embedding, Linear
from strata.layers.moe import Experts, require_softmax_router
from strata.layers.norm import RMSNorm
from strata.layers.rotary import Rotary
from strata.layers.state import LayerState, SequenceState
from strata.layers.weights import Weights
from strata.models.base import Model
from strata.models.config import Keys, ModelConfig

Angles = tuple[torch.Tensor, torch.Tensor]  # cos and sin of the positions, see Rotary.angles


class Mixer(Protocol):
    """The part of a block that looks at other positions."""

    def new_state(self) -> LayerState: ...

    def __call__(self, x: torch.Tensor, angles: Angles, state: LayerState) -> torch.Tensor: ...


class Block:
    """`x += mixer(attn_norm(x)); x += ffn(norm(x))`.

    Args:
        weights: the checkpoint's weights.
        prefix: `blk.N`.
        config: width and epsilon of the norms.
        mixer: attention, or what stands in its place.
        ffn: dense or mixture of experts.
        ffn_norm: name of the norm before `ffn`, which architectures call differently.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        mixer: Mixer,
        ffn: FeedForward | Experts,
        ffn_norm: str = "ffn_norm",
    ):
        self.attn_norm = RMSNorm(
            weights, f"{prefix}.attn_norm.weight", config.embedding_length, config.rms_epsilon
        )
        self.mixer = mixer
        self.ffn_norm = RMSNorm(
            weights, f"{prefix}.{ffn_norm}.weight", config.embedding_length, config.rms_epsilon
        )
        self.ffn = ffn

    def __call__(self, x: torch.Tensor, angles: Angles, state: LayerState) -> torch.Tensor:
        """float32 `[n, width]` -> `[n, width]`."""
        x = x + self.mixer(self.attn_norm(x), angles, state)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(Model):
    """Embedding, blocks, norm, output; without `output.weight` the embedding is the output matrix too.

    Args:
        config: hyper-parameters.
        weights: the checkpoint's weights.
        blocks: one per layer.
        rotary: the positions, the same in every block.
        recurrent: whether a block's state cannot be cut at any length.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        blocks: list[Block],
        rotary: Rotary,
        recurrent: bool = False,
    ):
        self.config = config
        self.blocks = blocks
        self.rotary = rotary
        self.recurrent = recurrent
        vocab, width = config.vocab_size, config.embedding_length
        self.token_embd = Embedding(weights, "token_embd.weight", vocab, width)
        self.output_norm = RMSNorm(weights, "output_norm.weight", width, config.rms_epsilon)
        output = "output.weight" if "output.weight" in weights else "token_embd.weight"
        self.output = Linear(weights, output, vocab, width)

    def new_state(self) -> SequenceState:
        return SequenceState([block.mixer.new_state() for block in self.blocks], self.recurrent)

    def forward(self, tokens: list[int], state: SequenceState, all_logits: bool = False) -> torch.Tensor:
        positions = torch.arange(state.position, state.position + len(tokens))
        angles = self.rotary.angles(positions)
        x = self.token_embd(torch.tensor(tokens))
        for block, layer_state in zip(self.blocks, state.layers, strict=True):
            x = block(x, angles, layer_state)
        state.position += len(tokens)
        return self.output(self.output_norm(x if all_logits else x[-1:]))


def load_ffn(weights: Weights, prefix: str, config: ModelConfig, keys: Keys) -> FeedForward | Experts:
    """The block's experts where it has a router, else its dense layer."""
    width = config.embedding_length
    if f"{prefix}.ffn_gate_inp.weight" not in weights:
        return FeedForward(weights, prefix, width, keys.count("feed_forward_length"))
    require_softmax_router(weights)
    length = keys.count("expert_feed_forward_length", None) or keys.count("feed_forward_length")
    normalize = keys.flag("expert_weights_norm", True)
    return Experts(
        weights, prefix, width, length, config.expert_count, config.expert_used_count, normalize=normalize
    )
