"""Models as the tests load them."""

from pathlib import Path

from strata.formats.checkpoint import Checkpoint
from strata.layers.planes import PlaneWeights
from strata.models import DecodedWeights, Model, load_model, open_checkpoint


def reference_model(checkpoint: Checkpoint | Path, cache_bytes: int = 1 << 30) -> Model:
    """The model on torch and decoded weights: what transformers is compared with."""
    if isinstance(checkpoint, Path):
        checkpoint = open_checkpoint(checkpoint)
    return load_model(DecodedWeights(checkpoint, cache_bytes))


def native_model(path: Path) -> Model:
    """The model on the processor's kernels."""
    return load_model(PlaneWeights(open_checkpoint(path)))
