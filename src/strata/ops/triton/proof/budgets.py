"""What each kernel's machine code may cost and must contain, checked in as `budgets.json`.

A kernel that the file does not name may not spill. `strata doctor --compile --rewrite-budgets` writes what it
finds; a diff of the file then shows what a change has cost.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from strata.ops.triton.proof.assembly import Assembly
from strata.ops.triton.proof.compile_all import Result

PATH = Path(__file__).with_name("budgets.json")


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of one kernel on one target: the most spills, and the instructions that must be there."""

    spills: int = 0
    instructions: tuple[str, ...] = ()

    def violations(self, assembly: Assembly) -> list[str]:
        """What is worse than the budget, as text."""
        complaints = []
        if assembly.spills > self.spills:
            complaints.append(f"{assembly.spills} spills, {self.spills} allowed")
        complaints += [
            f"no {name} any more" for name in self.instructions if name not in assembly.instructions
        ]
        return complaints


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All budgets.

    Attributes:
        triton: the version that they were made with; others may allocate registers differently.
        kernels: kernel -> comma-separated targets -> budget.
    """

    triton: str
    kernels: dict[str, dict[str, Budget]]

    def of(self, kernel: str, target: str) -> Budget:
        """The budget of a kernel, named as `kernels_of` does."""
        by_targets = self.kernels.get(kernel, {})
        return next((budget for names, budget in by_targets.items() if target in names.split(",")), Budget())

    def rewritten(self, results: Iterable[Result], launches: Sequence[str], triton: str) -> "Budgets":
        """Budgets with what `results` found; those of other targets stay, those of no launch go."""
        table: dict[str, dict[str, Budget]] = {}
        for kernel, by_targets in self.kernels.items():
            if _launch_of(kernel) in launches:
                table[kernel] = {
                    target: budget for names, budget in by_targets.items() for target in names.split(",")
                }
        for result in results:
            for kernel, budgets in table.items():  # also of kernels that the launch no longer has
                if _launch_of(kernel) == result.launch:
                    budgets.pop(result.target, None)
            for kernel, assembly in kernels_of(result):
                budget = Budget(assembly.spills, tuple(sorted(assembly.instructions)))
                table.setdefault(kernel, {})[result.target] = budget
        grouped = {kernel: _grouped(table[kernel]) for kernel in sorted(table)}
        return Budgets(triton, {kernel: budgets for kernel, budgets in grouped.items() if budgets})


def _launch_of(kernel: str) -> str:
    return kernel.rpartition(": ")[0]


def _grouped(budgets: dict[str, Budget]) -> dict[str, Budget]:
    """Targets with the same budget under one key; those with the default one left out."""
    groups: dict[Budget, list[str]] = {}
    for target in sorted(budgets):
        groups.setdefault(budgets[target], []).append(target)
    return {",".join(names): budget for budget, names in groups.items() if budget != Budget()}


def kernels_of(result: Result) -> Iterator[tuple[str, Assembly]]:
    """The kernels of a result, named `launch: kernel`; further specialisations of one kernel get a number."""
    seen: Counter[str] = Counter()
    for compiled in result.kernels:
        seen[compiled.name] += 1
        number = f" #{seen[compiled.name]}" if seen[compiled.name] > 1 else ""
        yield f"{result.launch}: {compiled.name}{number}", compiled.assembly


def read_budgets(path: Path = PATH) -> Budgets:
    """The checked-in budgets."""
    return msgspec.json.decode(path.read_bytes(), type=Budgets)


def write_budgets(budgets: Budgets, path: Path = PATH) -> None:
    """Write budgets as a file whose diffs can be read."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(budgets), indent=1) + b"\n")
