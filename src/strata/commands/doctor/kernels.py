"""`strata doctor --kernels`: every kernel against its reference, on the card at hand."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from strata.errors import StrataError
from strata.options import Options

if TYPE_CHECKING:
    from strata.ops.triton.catalog import Check


def run(options: Options) -> None:
    """Compare, and print a row for each check.

    Raises:
        StrataError: there is no card that PyTorch can use, or a check failed.
    """
    if not torch.cuda.is_available():  # ROCm builds answer to the same name
        raise StrataError("PyTorch finds no card here; `strata doctor` says why")
    from strata.ops.triton.catalog import checks

    chosen = checks(options.only)
    if not chosen:
        raise StrataError(f"--only {options.only}: no check is called so")
    device = torch.device("cuda")
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        for check in chosen:
            progress.update(task, description=check.name)
            rows.append(look_at(check, device))
            progress.advance(task)
    name = torch.cuda.get_device_name(device)
    if options.as_json:
        print(json.dumps({"card": name, "checks": rows}, indent=1))
    else:
        show(rows, name)
    failed = [row["check"] for row in rows if row["problem"]]
    if failed:
        raise StrataError(f"{len(failed)} of {len(rows)} checks failed: {', '.join(failed)}")


def look_at(check: "Check", device: torch.device) -> dict[str, Any]:
    """What a check gave, as a row: its cases, the largest error, and what is wrong with it if anything is."""
    row = {"check": check.name, "tolerance": check.tolerance, "cases": 0, "error": 0.0, "problem": ""}
    problems = []
    try:
        for outcome in check.run(device):
            row["cases"] += 1
            row["error"] = max(row["error"], outcome.error, key=lambda error: (error != error, error))
            if not outcome.passed:
                problems.append(f"{outcome.case}: {outcome.error:.2g}")
    except Exception as error:  # one kernel that does not run must not hide the others
        problems.append(f"{type(error).__name__}: {error}".splitlines()[0])
    if not row["cases"] and not problems:
        problems.append("no case was compared")
    row["problem"] = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if problems[3:] else "")
    return row


def show(rows: Sequence[dict[str, Any]], card: str) -> None:
    """Print the rows as a table."""
    table = Table(title=card, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    for heading in ("cases", "largest error", "allowed"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        allowed = f"{row['tolerance']:.1g}" if row["tolerance"] else "same bits"
        numbers = (str(row["cases"]), f"{row['error']:.2g}", allowed)
        verdict = Text(row["problem"] or "agrees")
        table.add_row(row["check"], *numbers, verdict, style="red" if row["problem"] else None)
    Console(highlight=False).print(table)
