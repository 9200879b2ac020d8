"""Qwen3, dense (`qwen3`) and with experts (`qwen3moe`): Llama with normalised heads of q and k.

Yang et al. 2025, arXiv 2505.09388.
"""

from strata.formats.checkpoint import Checkpoint
from strata.layers.attention import Attention
from strata.layers.block import Block
from strata.layers.rotary import Rotary
from strata.layers.weights import Weights
from strata.models.base import Model
from strata.models.config import Keys, ModelConfig
from strata.models.decoder import Decoder, load_ffn


def load(checkpoint: Checkpoint, weights: Weights) -> Model:
    """Build the model.

    Raises:
        ModelFileError: a key or tensor is missing or has the wrong shape.
        UnsupportedModelError: a key asks for something else than Qwen3 does.
    """
    config = ModelConfig.from_checkpoint(checkpoint)
    keys = Keys(checkpoint)
    blocks = []
    for layer in range(config.block_count):
        prefix = f"blk.{layer}"
        attention = Attention(weights, prefix, config, qk_norm=True)
        blocks.append(Block(weights, prefix, config, attention, load_ffn(weights, prefix, config, keys)))
    return Decoder(config, weights, blocks, Rotary.from_checkpoint(config, weights))
