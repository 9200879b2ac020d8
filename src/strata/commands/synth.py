"""`strata synth`: how fast a model would be here, with made-up weights in place of a download."""

import bisect
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
    from strata.experts.trace import Trace
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
        if options.dense != "as_stored":
            raise StrataError(
                f"--dense {options.dense}: is made while a model is loaded; a file has what --quant says"
            )
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
    from strata.formats.requantized import with_dense
    from strata.hardware.cpu import usable_cpus
    from strata.models.base import PREFILL_CHUNK

    geometry, threads = checkpoint.geometry, options.threads or len(usable_cpus())
    num_tokens = _num_tokens(options, geometry)
    trace = _trace(options, geometry, num_tokens)
    _check_memory(options, checkpoint, threads)
    weights = with_dense(checkpoint, options.dense)
    started = time.perf_counter()
    with _progress("making weights") as report:
        loaded = load(weights, threads, False, None, report)
    load_s = time.perf_counter() - started
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


def _num_tokens(options: Options, geometry: Geometry) -> int:
    prompt, decode = options.prompt_tokens, options.decode_tokens
    if prompt + decode > geometry.context:
        raise StrataError(
            f"--prompt-tokens {prompt} and --decode-tokens {decode} make {prompt + decode} tokens; "
            f"{geometry.name} was made for {geometry.context}"
        )
    return prompt + decode


def _trace(options: Options, geometry: Geometry, num_tokens: int) -> "Trace":
    """The trace that was asked for, or one made up."""
    from strata.experts.trace import Trace, TraceError

    shape = geometry.layers, geometry.expert_count, geometry.used
    if options.trace is None:
        return Trace.generate(num_tokens, *shape)
    trace = Trace.load(options.trace)
    try:
        trace.check_model(*shape)
    except TraceError as error:
        raise TraceError(f"{options.trace}: {error}") from error
    return trace


def _check_memory(options: Options, checkpoint: "SyntheticCheckpoint", threads: int) -> None:
    """Refuse a model without room before any of it is made, and say how much of it there is room for."""
    from strata.commands.doctor.facts import native_isa
    from strata.engine.loading import memory_shortage
    from strata.formats.requantized import with_dense
    from strata.formats.synthetic import SyntheticCheckpoint

    isa, _ = native_isa()
    shortage = (
        memory_shortage(with_dense(checkpoint, options.dense), isa, threads) if isa else ""
    )  # torch reads what it needs
    if not shortage:
        return
    geometry, mix = checkpoint.geometry, find_mix(checkpoint.geometry, options.quant)

    def too_many(layers: int) -> bool:
        smaller = SyntheticCheckpoint(replace(geometry, layers=layers), mix)
        return bool(memory_shortage(with_dense(smaller, options.dense), isa, threads))

    fitting = bisect.bisect_left(range(geometry.layers), True, lo=2, key=too_many) - 1
    room = f"There is room for --layers {fitting}; " if fitting >= 2 else ""
    raise StrataError(
        f"{geometry.name} {options.quant}, {geometry.layers} layers: does not fit. {shortage}. {room}"
        f"fewer --experts or a smaller --quant take less, and --out writes it without holding it in memory."
    )


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
