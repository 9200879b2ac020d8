"""The decoder of pre-norm blocks on one residual stream that most architectures are."""

import torch

from strata.layers.block import Block, expert_layers
from strata.layers.feed_forward import FeedForward
from strata.layers.linear import Embedding, Linear
from strata.layers.moe import Experts, require_softmax_router
from strata.layers.norm import RMSNorm
from strata.layers.rotary import Rotary
from strata.layers.state import SequenceState
from strata.layers.weights import Weights
from strata.models.base import Model
from strata.models.config import Keys, ModelConfig


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

    def expert_layers(self) -> dict[int, Experts]:
        return expert_layers(self.blocks)

    def forward(self, tokens: list[int], state: SequenceState, all_logits: bool = False) -> torch.Tensor:
        return self.output(self.output_norm(self.hidden(tokens, state, last=not all_logits)))

    def hidden(self, tokens: list[int], state: SequenceState, last: bool = False) -> torch.Tensor:
        """Append `tokens`; the last block's output, float32 `[n, width]`, or `[1, width]` of the `last`."""
        positions = torch.arange(state.position, state.position + len(tokens))
        angles = self.rotary.angles(positions)
        x = self.token_embd(torch.tensor(tokens))
        for block, layer_state in zip(self.blocks, state.layers, strict=True):
            x = block(x, angles, layer_state, last and block is self.blocks[-1])
        state.position += len(tokens)
        return x


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
