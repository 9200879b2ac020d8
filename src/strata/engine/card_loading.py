"""Whether an engine runs on a card, and a model on one."""

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

from strata.engine.loaded import LoadedEngine
from strata.engine.messages import EngineConfig, ExpertLayout, MemoryPart
from strata.errors import StrataError, UnsupportedModelError
from strata.experts.policy import LearnedError, load_frequency, save_frequency
from strata.formats.checkpoint import Checkpoint
from strata.hardware.bandwidth import memory_bandwidth
from strata.hardware.machine import this_machine
from strata.layers.expert_counts import ExpertCounts
from strata.plan import Wishes

Report = Callable[[int, int], None]  # bytes done, bytes to do


def load_on_card(
    checkpoint: Checkpoint, config: EngineConfig, threads: int, report: Report, say: Callable[[str], None]
) -> LoadedEngine | None:
    """The model on the card that the configuration names, or on the best there is.

    Args:
        checkpoint: the model.
        config: of the engine.
        threads: of the processor's share.
        report: gets the progress of reading.
        say: is told what is done after that.

    Returns:
        None where the processor is to compute: as asked for; or because there is no card, the model does not
        run on one yet or does not fit, and none was asked for. Then a line on standard error says why.

    Raises:
        StrataError: the card that was asked for cannot be used.
    """
    asked = config.card not in ("none", "auto")
    if asked and config.reference:
        raise StrataError("--reference computes on the processor; leave --card away")
    if asked and not torch.cuda.is_available():
        raise StrataError(
            f"--card {config.card}: PyTorch {torch.__version__} sees no card; it must be a build for CUDA or "
            f"ROCm, and the driver must run (`strata doctor` shows the machine's cards)"
        )
    if config.card == "none" or config.reference or not torch.cuda.is_available():
        return None
    # Triton and what is built on it take a second to import, which engines without a card save.
    try:
        from strata.card.device import out_of_memory
        from strata.card.loading import DoesNotFitError
    except ImportError as error:
        return _without(_missing(error), asked)
    try:
        return _load(checkpoint, config, threads, report, say)
    except (UnsupportedModelError, DoesNotFitError) as error:
        return _without(error, asked)
    except torch.OutOfMemoryError as error:
        raise out_of_memory() from error


def _without(error: StrataError, asked: bool) -> None:
    """Say why the processor computes; raise where a card was asked for."""
    if asked:
        raise error
    print(f"the processor computes: {error}", file=sys.stderr, flush=True)


def _missing(error: ImportError) -> StrataError:
    """What to install for a card."""
    if (error.name or "").partition(".")[0] == "triton":
        return StrataError("kernels for cards need Triton: `pip install triton` (Windows: `triton-windows`)")
    return StrataError(
        f"a part that cards need is missing, as where Strata was built without a C++ compiler: {error}"
    )


def _load(
    checkpoint: Checkpoint, config: EngineConfig, threads: int, report: Report, say: Callable[[str], None]
) -> LoadedEngine:
    from strata.card import loading
    from strata.engine.card_lane import card_lanes
    from strata.native import isa

    hardware = this_machine(isa=isa())
    found = loading.find_card(hardware, None if config.card == "auto" else int(config.card))
    if found is None:
        raise StrataError(f"--card {config.card}: there are {torch.cuda.device_count()}, counted from 0")
    number, card = found
    cpu = msgspec.structs.replace(
        hardware.cpu, cores=threads, memory_bandwidth=memory_bandwidth(threads, 256 << 20)
    )
    hardware = msgspec.structs.replace(hardware, cards=(card,), cpu=cpu)
    counts: list[ExpertCounts] = []
    learned = _Learned(checkpoint)
    loaded = loading.load_on_card(
        checkpoint,
        hardware,
        number,
        _wishes(config),
        report,
        say,
        learn=lambda uses, tokens: _count(counts, uses, tokens),
        frequency=learned.read(),
        threads=threads,
    )
    runner = loaded.runner
    model, layers = runner.model.model, runner.model.model.expert_layers()
    counts += [ExpertCounts(model.config.expert_count) for _ in layers]
    memory = [MemoryPart(purpose, "VRAM", size) for purpose, size in loaded.memory.items()]
    if loaded.host_bytes:
        memory.append(MemoryPart("experts", "RAM", loaded.host_bytes))

    def close() -> None:
        learned.write(runner.cache.policy.frequency)  # first: to let much memory go takes seconds
        runner.close()

    return LoadedEngine(
        lanes=list(card_lanes(runner, config.checkpoint_bytes, loaded.plan.prefill_chunk)),
        model=model,
        context=loaded.plan.context,
        memory=memory,
        kernels=f"{card.name} ({card.arch}), {isa()} {threads} thread{'s' * (threads > 1)}",
        experts=_layout(list(layers), model.config, loaded.host_bytes > 0),
        counts=counts,
        held=lambda: runner.cache.residency.held,
        found=lambda: (runner.cache.hits, runner.cache.misses),
        close=close,
    )


def _wishes(config: EngineConfig) -> Wishes:
    return Wishes(
        context=config.context,
        lanes=config.lanes,
        vram_budget_bytes=config.vram_budget_bytes,
        vram_reserve_bytes=config.vram_reserve_bytes,
        kv=config.kv,
    )


def _layout(layers: list[int], config, has_experts: bool) -> ExpertLayout | None:
    if not has_experts:
        return None
    return ExpertLayout(layers, config.expert_count, config.expert_used_count, "VRAM and RAM")


def _count(counts: list[ExpertCounts], uses: np.ndarray, tokens: int) -> None:
    for layer, of_layer in zip(counts, uses, strict=True):
        layer.add(torch.from_numpy(of_layer), tokens)


class _Learned:
    """The order of experts that a run has learned, kept for the next one of the same file."""

    def __init__(self, checkpoint: Checkpoint):
        size = sum(tensor.num_bytes for tensor in checkpoint.tensors.values())
        self._model = f"{checkpoint.path.name} {size}"
        name = hashlib.sha256(self._model.encode()).hexdigest()[:16]
        base = os.environ.get("LOCALAPPDATA") if os.name == "nt" else os.environ.get("XDG_CACHE_HOME")
        folder = Path(base or os.path.expanduser("~/.cache"))
        self._path = folder / "strata" / "experts" / f"{name}.npz"
        self._checkpoint = checkpoint

    def read(self) -> np.ndarray | None:
        """float32 `[layers * experts]`; None where nothing was learned yet."""
        if not os.path.exists(self._path):  # which takes a folder that cannot be read for empty
            return None
        try:
            return load_frequency(self._path, self._experts(), self._model)
        except LearnedError as error:
            print(f"{error} (not used)", file=sys.stderr, flush=True)
            return None

    def write(self, frequency: np.ndarray) -> None:
        """Keep it; where that is not possible the next run begins without."""
        if not frequency.any():
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_frequency(self._path, frequency, self._model)
        except OSError as error:
            print(f"{self._path}: not written: {error}", file=sys.stderr, flush=True)

    def _experts(self) -> int:
        from strata.formats.description import ModelDescription

        model = ModelDescription.of_checkpoint(self._checkpoint)
        return len(model.expert_bytes) * model.expert_count
