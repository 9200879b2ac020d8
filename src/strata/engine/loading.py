"""From a checkpoint to a model that is ready to compute: which kernels, how many threads, how much memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from strata.errors import StrataError
from strata.formats.checkpoint import Checkpoint
from strata.hardware.memory import available_bytes
from strata.layers.weights import Weights
from strata.models import DecodedWeights, Model, load_model

Report = Callable[[int, int], None]  # bytes done, bytes to do


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, and what to tell the person about it."""

    model: Model
    memory: dict[str, int]  # tier -> bytes
    kernels: str


def load(
    checkpoint: Checkpoint, threads: int, reference: bool, cache_bytes: int | None, report: Report
) -> Loaded:
    """Load onto the processor's kernels, or for torch where there are none or `reference` is asked for.

    Args:
        checkpoint: the model.
        threads: for every product.
        reference: compute with torch on weights decoded to float32.
        cache_bytes: for decoded weights; None: half of the free memory.
        report: gets the progress.

    Raises:
        StrataError: the model is damaged or unknown, or its weights do not fit in memory.
    """
    torch.set_num_threads(threads)
    if not reference and has_native():
        return _load_native(checkpoint, threads, report)
    why = "reference" if reference else "Strata was built without a C++ compiler"
    cache_bytes = available_bytes() // 2 if cache_bytes is None else cache_bytes
    model = load_model(DecodedWeights(checkpoint, cache_bytes))
    decoded = sum(4 * math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
    memory = {"RAM decoded weights, at most": min(cache_bytes, decoded)}
    return Loaded(model, memory | _mapped(checkpoint), f"torch {torch.__version__}, float32 ({why})")


def has_native() -> bool:
    """Whether the processor's kernels were built."""
    try:
        from strata.native import _core  # noqa: F401
    except ImportError:
        return False
    return True


def _load_native(checkpoint: Checkpoint, threads: int, report: Report) -> Loaded:
    from strata.layers.planes import PlaneWeights
    from strata.native import isa, set_num_threads

    set_num_threads(threads)
    weights = PlaneWeights(checkpoint)
    model = load_model(weights)
    _check_memory(checkpoint, weights, weights.num_bytes())
    weights.load(report)
    kernels = f"{isa()}, {threads} thread{'s' * (threads > 1)}"
    return Loaded(model, {"RAM weights": weights.num_bytes()} | _mapped(checkpoint), kernels)


def _check_memory(checkpoint: Checkpoint, weights: Weights, num_bytes: int) -> None:
    free = available_bytes()
    if num_bytes > free:
        raise StrataError(
            f"{checkpoint.path}: its weights take {num_bytes / 2**30:.1f} GiB of memory, "
            f"{free / 2**30:.1f} GiB are free. Close other programs or take a smaller quantisation; "
            f"--reference reads weights from the file when they are needed, slowly."
        )


def _mapped(checkpoint: Checkpoint) -> dict[str, int]:
    return {"mapped file": sum(tensor.num_bytes for tensor in checkpoint.tensors.values())}
