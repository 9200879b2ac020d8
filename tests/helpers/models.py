"""Models as the tests load them."""

from dataclasses import replace
from pathlib import Path

from strata.formats.checkpoint import Checkpoint
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.synthetic import SyntheticCheckpoint
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


def tiny_qwen3moe(quant: str, layers: int) -> SyntheticCheckpoint:
    """Made-up weights in the architecture of Qwen3-30B-A3B, small enough to be written in a blink."""
    geometry = replace(
        GEOMETRIES["qwen3-30b-a3b"], layers=layers, width=256, vocab=300, heads=4, kv_heads=2,
        head_length=64, rope_dimensions=64, expert_count=8, used=2, ff=256,
    )  # fmt: skip
    return SyntheticCheckpoint(geometry, find_mix(geometry, quant))
