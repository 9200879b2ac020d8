"""Architectures by their GGUF name, and how to load one."""

from importlib import import_module

from strata.errors import UnsupportedModelError
from strata.formats.checkpoint import open_checkpoint
from strata.layers.weights import DecodedWeights, Weights
from strata.models.base import Model

# GGUF architecture -> module in this package; each module defines `load(checkpoint, weights) -> Model`
ARCHITECTURES = {
    "llama": "llama",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3",
    "qwen3next": "qwen3next",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35",
    "qwen4exp": "qwen4exp",
}


def load_model(weights: Weights) -> Model:
    """Build the model of a checkpoint on `weights`, which are checked and not yet read.

    Raises:
        UnsupportedModelError: the architecture is unknown, or the file holds tensors the model would ignore.
        ModelFileError: a key or tensor is missing or has the wrong shape.
    """
    checkpoint = weights.checkpoint
    module = ARCHITECTURES.get(checkpoint.architecture)
    if module is None:
        raise UnsupportedModelError(
            f"{checkpoint.path}: architecture {checkpoint.architecture!r} is not supported; "
            f"Strata knows {', '.join(sorted(ARCHITECTURES))}"
        )
    model = import_module(f"strata.models.{module}").load(checkpoint, weights)
    unused = weights.unused()
    if unused:
        raise UnsupportedModelError(
            f"{checkpoint.path}: {len(unused)} tensors have no place in architecture "
            f"{checkpoint.architecture}: {', '.join(unused[:5])}{', ...' if len(unused) > 5 else ''}"
        )
    return model


__all__ = ["ARCHITECTURES", "DecodedWeights", "Model", "load_model", "open_checkpoint"]
