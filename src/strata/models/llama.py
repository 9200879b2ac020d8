"""Llama, Mistral and Mixtral, and what else GGUF calls `llama` (SmolLM2, ...).

Touvron et al. 2023, arXiv 2302.13971; experts as in Mixtral (Jiang et al. 2024, arXiv 2401.04088).
The rows of q and k are stored so that rotary pairs are neighbours.
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
        UnsupportedModelError: a key asks for something else than Llama does.
    """
    config = ModelConfig.from_checkpoint(checkpoint)
    keys = Keys(checkpoint)
    window = keys.count("attention.sliding_window", None)
    blocks = []
    for layer in range(config.block_count):
        prefix = f"blk.{layer}"
        attention = Attention(weights, prefix, config, interleaved=True, window=window)
        blocks.append(Block(weights, prefix, config, attention, load_ffn(weights, prefix, config, keys)))
    return Decoder(config, weights, blocks, Rotary.from_checkpoint(config, weights, interleaved=True))
