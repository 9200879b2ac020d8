"""Qwen3.5 and Qwen3.6, dense (`qwen35`) and with experts (`qwen35moe`): text part.

Qwen3-Next with separate delta-net projections, value heads in tiled order, and multimodal rotary
positions, which for text are the ordinary ones. Reference: transformers `qwen3_5`, `qwen3_5_moe`;
tensor names and layouts: llama.cpp `qwen35`, `qwen35moe`.
"""

from strata.formats.checkpoint import Checkpoint
from strata.layers.weights import Weights
from strata.models.base import Model
from strata.models.qwen3next import Qwen3Next


class Qwen35(Qwen3Next):
    """Qwen3-Next but for the order of the value heads; which projections there are, the tensors say."""

    value_head_order = "tiled"


def load(checkpoint: Checkpoint, weights: Weights) -> Model:
    return Qwen35(checkpoint, weights)
