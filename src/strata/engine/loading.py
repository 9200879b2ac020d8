"""From a checkpoint to a model that is ready to compute: which kernels, how many threads, how much memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import psutil
import torch

from strata.engine.messages import ExpertLayout, MemoryPart
from strata.errors import StrataError
from strata.formats.checkpoint import Checkpoint
from strata.formats.description import ModelDescription
from strata.hardware.description import Cpu, Hardware, Ram
from strata.hardware.memory import available_bytes
from strata.layers.weights import Weights
from strata.models import DecodedWeights, Model, load_model
from strata.plan import SMALLEST_CONTEXT, Wishes, plan

_TABLES = {
    "token_embd.weight": "token embedding",
    "per_layer_token_embd.weight": "n-gram table",
    "ple_ngram_embd.weight": "n-gram table",
}
Report = Callable[[int, int], None]  # bytes done, bytes to do


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, and what to tell the person about it."""

    model: Model
    memory: list[MemoryPart]
    kernels: str
    experts: ExpertLayout | None  # None: a dense model


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
    weights = DecodedWeights(checkpoint, cache_bytes)
    model = load_model(weights)
    decoded = sum(4 * math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
    stored = sum(
        tensor.num_bytes for name, tensor in checkpoint.tensors.items() if name not in weights.tables
    )
    memory = [
        MemoryPart("decoded weights, at most", "RAM", min(cache_bytes, decoded)),
        MemoryPart("weights", "mapped file", stored),
        *_tables(weights),
    ]
    return Loaded(model, memory, f"torch {torch.__version__}, float32 ({why})", _layout(model, "mapped file"))


def _layout(model: Model, tier: Literal["RAM", "mapped file"]) -> ExpertLayout | None:
    layers, config = list(model.expert_layers()), model.config
    return ExpertLayout(layers, config.expert_count, config.expert_used_count, tier) if layers else None


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
    dense, experts = weights.matrix_bytes(), weights.expert_bytes()
    _check_memory(checkpoint, isa(), threads)
    weights.load(report)
    kernels = f"{isa()}, {threads} thread{'s' * (threads > 1)}"
    memory = [MemoryPart("dense weights", "RAM", dense), MemoryPart("experts", "RAM", experts)]
    memory = [part for part in memory if part.bytes] + _tables(weights)
    return Loaded(model, memory, kernels, _layout(model, "RAM"))


def _check_memory(checkpoint: Checkpoint, native_isa: str, threads: int) -> None:
    """Refuse a model that the planner sees no room for."""
    if shortage := memory_shortage(checkpoint, native_isa, threads):
        raise StrataError(
            f"{checkpoint.path}: does not fit. {shortage}. Close other programs or take a smaller "
            f"quantisation; --reference reads weights from the file when they are needed, slowly."
        )


def memory_shortage(checkpoint: Checkpoint, native_isa: str, threads: int) -> str:
    """What the planner says where memory has no room for all weights now; "" where it has."""
    hardware = Hardware(
        cpu=Cpu(name="", cores=threads, isa=native_isa),
        ram=Ram(total_bytes=psutil.virtual_memory().total, available_bytes=available_bytes() + _own_bytes()),
    )
    wishes = Wishes(context=SMALLEST_CONTEXT, use_card=False)
    made = plan(hardware, ModelDescription.of_checkpoint(checkpoint), wishes)
    return made.reasons[0] if made.used("RAM") > made.ram_budget else ""


def _own_bytes() -> int:
    """What this process holds already, which the planner counts as runtime."""
    return psutil.Process().memory_info().rss


def _tables(weights: Weights) -> list[MemoryPart]:
    """Tables of which only the rows in use are read, through the file's mapping."""
    sizes = {name: weights.checkpoint.tensors[name].num_bytes for name in weights.tables}
    return [MemoryPart(_TABLES.get(name, name), "mapped file", size) for name, size in sizes.items()]
