"""`strata doctor --compile`: every launch of the kernels, compiled for every card."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from strata.errors import StrataError
from strata.hardware.cpu import usable_cpus
from strata.options import Options

if TYPE_CHECKING:  # without Triton there is none of this
    from strata.ops.triton.catalog import Launch
    from strata.ops.triton.proof.budgets import Budgets
    from strata.ops.triton.proof.compile_all import Result
    from strata.ops.triton.proof.targets import Target


def run(options: Options) -> None:
    """Compile, and print a row for each kernel and target.

    Raises:
        StrataError: something does not compile or is over its budget; or nothing can be compiled here.
    """
    _require_compiler()
    from strata.ops.triton.catalog import launches
    from strata.ops.triton.proof.budgets import read_budgets

    targets = _chosen_targets(options.targets)
    chosen = launches(options.only)
    if not chosen:
        raise StrataError(f"--only {options.only}: no launch is called so")
    results, missing = _compile(chosen, targets, options.changed)
    if options.rewrite_budgets:
        _rewrite(results)
    budgets = read_budgets()
    rows = [row for result in results for row in _rows(result, budgets)]
    failed = sum(bool(row["problem"]) for row in rows)
    if options.as_json:
        print(json.dumps({"triton": _version(), "not_targeted": missing, "rows": rows}, indent=1))
    else:
        _show(rows, missing, budgets)
    if failed:
        raise StrataError(f"{failed} of {len(rows)} kernels failed")


def _require_compiler() -> None:
    try:
        from triton import knobs
    except ImportError:
        raise StrataError(
            "Triton is not installed here; it comes with CUDA and ROCm builds of PyTorch, "
            "and `pip install triton` adds it to a CPU build on Linux"
        ) from None
    if knobs.runtime.interpret:
        raise StrataError("TRITON_INTERPRET is set: unset it, the interpreter compiles nothing")
    if not hasattr(os, "fork"):
        raise StrataError("doctor --compile needs Linux (WSL will do): each compile is a forked process")


def _version() -> str:
    import triton

    return triton.__version__


def _chosen_targets(names: str | None) -> "list[Target]":
    from strata.ops.triton.proof.targets import TARGETS

    chosen = [name.strip() for name in names.split(",")] if names else list(TARGETS)
    for name in chosen:
        if name not in TARGETS:
            raise StrataError(f"--targets {name}: the targets are {', '.join(TARGETS)}")
    return [TARGETS[name] for name in chosen]


def _compile(
    chosen: "Sequence[Launch]", targets: "Sequence[Target]", only_changed: bool
) -> "tuple[list[Result], dict[str, str]]":
    """The results in the order of launches and targets, and the targets that this Triton does not have."""
    from strata.ops.triton.catalog import launches
    from strata.ops.triton.proof.budgets import read_budgets
    from strata.ops.triton.proof.compile_all import compile_all, lowered
    from strata.ops.triton.proof.targets import own_target

    jobs = len(usable_cpus())
    (probe,) = launches("intrinsics")
    # A thread that refreshes would be forked away from its locks.
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("asking Triton for its targets", total=None)

        def compiled(work: "list[tuple[Launch, Target]]") -> "Iterator[Result]":
            progress.update(task, total=(progress.tasks[task].total or 0) + len(work))
            for result in compile_all(work, jobs, began):
                progress.advance(task)
                yield result

        def began(launch: str, target: str) -> None:
            progress.update(task, description=f"{launch} for {target}", refresh=True)

        missing = lowered(targets, probe, jobs)
        work = [(launch, target) for launch in chosen for target in targets if target.name not in missing]
        first = [pair for pair in work if not only_changed or pair[1] is own_target(pair[0].name)]
        results = list(compiled(first))
        if only_changed:
            named = {result.launch for result in results}
            changed = read_budgets().changed(results) | ({launch.name for launch in chosen} - named)
            results += compiled([pair for pair in work if pair not in first and pair[0].name in changed])
    order = {(launch.name, target.name): place for place, (launch, target) in enumerate(work)}
    return sorted(results, key=lambda result: order[result.launch, result.target]), missing


def _rewrite(results: "Sequence[Result]") -> None:
    from strata.ops.triton.catalog import launches
    from strata.ops.triton.proof.budgets import PATH, read_budgets, write_budgets

    names = [launch.name for launch in launches()]
    sound = [result for result in results if not result.error]
    write_budgets(read_budgets().rewritten(sound, names, _version()))
    Console(stderr=True).print(f"wrote {PATH}", highlight=False)


def _rows(result: "Result", budgets: "Budgets") -> list[dict[str, Any]]:
    """A row for each kernel of a launch, or one for its failure."""
    from strata.ops.triton.proof.budgets import kernels_of

    if result.error:
        return [{"kernel": result.launch, "target": result.target, "problem": result.error}]
    return [
        {"kernel": kernel, "target": result.target, "seconds": round(result.seconds, 2), **asdict(assembly)}
        | {"problem": "; ".join(budgets.of(kernel, result.target).violations(assembly))}
        for kernel, assembly in kernels_of(result)
    ]


def _show(rows: list[dict[str, Any]], missing: dict[str, str], budgets: "Budgets") -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kernel", "target"):
        table.add_column(heading, no_wrap=True)
    for heading in ("registers", "spills", "LDS", "waves", "load"):
        table.add_column(heading, justify="right")
    table.add_column("matrix, dot and signal instructions")
    for row in rows:
        if "registers" not in row:
            table.add_row(row["kernel"], row["target"], *[""] * 5, Text(row["problem"]), style="red")
            continue
        instructions = ", ".join(f"{name} x{count}" for name, count in row["instructions"].items())
        numbers = (row[name] for name in ("registers", "spills", "shared_bytes", "waves", "widest_load"))
        text = " | ".join(part for part in (instructions, row["problem"]) if part)
        style = "red" if row["problem"] else None
        table.add_row(row["kernel"], row["target"], *map(str, numbers), Text(text), style=style)
    console = Console(width=None if Console().is_terminal else 200, highlight=False)
    console.print(table)
    for target, reason in missing.items():
        console.print(f"{target}: Triton {_version()} has no such target ({reason})", markup=False)
    others = {row["target"]: budgets.triton.get(row["target"]) for row in rows}
    for target, version in others.items():
        if version != _version():
            text = f"were made with Triton {version}" if version else "have not been made"
            console.print(f"{target}: budgets {text}; this is {_version()}", markup=False)
