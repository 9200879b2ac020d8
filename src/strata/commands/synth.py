"""`strata synth`: how fast a model would be here, with made-up weights in place of a download."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

from strata.errors import StrataError
from strata.formats.geometry import GEOMETRIES, Geometry
from strata.formats.mixes import find_mix, mixes_of
from strata.options import Options

if TYPE_CHECKING:  # torch comes with it, and --help shall not wait
    from strata.formats.synthetic import SyntheticCheckpoint


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run came to; times in seconds."""

    model: str
    layers: int
    kernels: str
    memory_bytes: int
    load_s: float
    prompt_tokens: int
    prompt_s: float
    decoded_tokens: int
    decode_s: float


def run(options: Options, model: str) -> None:
    """Make the model up and write it, or run it and print tokens per second."""
    from strata.formats.synthetic import SyntheticCheckpoint, write_gguf

    geometry = _geometry(options, model)
    checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, options.quant))
    if options.gguf is not None:
        with _progress("writing") as report:
            write_gguf(checkpoint, options.gguf, report)
        print(f"{options.gguf}: {options.gguf.stat().st_size / 1e9:.2f} GB")
        return
    measured = _measure(options, checkpoint)
    print(msgspec.json.encode(measured).decode() if options.as_json else _text(measured))


def _geometry(options: Options, model: str) -> Geometry:
    geometry = GEOMETRIES.get(model)
    if geometry is None:
        raise StrataError(f"{model}: known models are {', '.join(GEOMETRIES)}")
    if options.quant is None:
        raise StrataError(f"--quant is missing: {model} comes in {', '.join(mixes_of(geometry))}")
    experts = options.experts or geometry.expert_count
    return replace(
        geometry,
        layers=options.layers or geometry.layers,
        expert_count=experts,
        used=min(geometry.used, experts),
    )


def _measure(options: Options, checkpoint: "SyntheticCheckpoint") -> Measured:
    """Load on the engine's kernels, read a prompt, decode."""
    import torch

    from strata.engine.loading import load
    from strata.engine.routing import force_routes
    from strata.experts.trace import Trace
    from strata.hardware.cpu import usable_cpus
    from strata.models.base import PREFILL_CHUNK

    geometry = checkpoint.geometry
    started = time.perf_counter()
    with _progress("making weights") as report:
        loaded = load(checkpoint, options.threads or len(usable_cpus()), False, None, report)
    load_s = time.perf_counter() - started
    num_tokens = options.prompt_tokens + options.decode_tokens
    if options.trace is not None:
        trace = Trace.load(options.trace)
    else:
        layers = len(loaded.model.expert_layers())
        trace = Trace.generate(num_tokens, layers, geometry.expert_count, geometry.used)
    force_routes(loaded.model, trace)
    tokens = np.random.default_rng(0).integers(0, geometry.vocab, num_tokens).tolist()
    state = loaded.model.new_state()
    with torch.inference_mode():
        started = time.perf_counter()
        for start in range(0, options.prompt_tokens, PREFILL_CHUNK):
            part = tokens[start : min(start + PREFILL_CHUNK, options.prompt_tokens)]
            loaded.model.forward(part, state)
        read = time.perf_counter()
        for token in tokens[options.prompt_tokens :]:
            loaded.model.forward([token], state)
        decoded = time.perf_counter()
    return Measured(
        model=f"{geometry.name} {options.quant}", layers=geometry.layers, kernels=loaded.kernels,
        memory_bytes=sum(part.bytes for part in loaded.memory if part.tier == "RAM"), load_s=load_s,
        prompt_tokens=options.prompt_tokens, prompt_s=read - started,
        decoded_tokens=options.decode_tokens, decode_s=decoded - read,
    )  # fmt: skip


def _text(measured: Measured) -> str:
    return (
        f"{measured.model}, {measured.layers} layers, made-up weights; {measured.kernels}\n"
        f"{measured.memory_bytes / 2**30:.1f} GiB in memory after {measured.load_s:.1f} s\n"
        f"prompt of {measured.prompt_tokens}: {measured.prompt_tokens / measured.prompt_s:.1f} tokens/s\n"
        f"decoding {measured.decoded_tokens}: {measured.decoded_tokens / measured.decode_s:.1f} tokens/s"
    )


@contextmanager
def _progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; yields what takes bytes done and bytes to do."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield report
