"""What each kernel's machine code may cost and must contain, checked in as `budgets.json`.

A kernel that the file does not name may not spill. `strata doctor --compile --rewrite-budgets` writes what it
finds; a diff of the file then shows what a change has cost. A budget with spills says why they stay.

The file also has a digest of each launch, as it is compiled for its own target (`targets.own_target`). While
that is the same, so is what the compiler is given for the other targets, and what the file says of them needs
no proof: `strata doctor --compile --changed` compiles the rest.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from strata.ops.triton.proof.assembly import Assembly
from strata.ops.triton.proof.compile_all import Result
from strata.ops.triton.proof.targets import OWN_TARGETS, TARGETS, own_target

PATH = Path(__file__).with_name("budgets.json")


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of one kernel on one target: the most spills, why they stay, the instructions that must be there."""

    spills: int = 0
    reason: str = ""
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
        triton: target -> the version with which every launch was compiled for it; others allocate registers
            differently.
        code: launch -> digest, see `code_of`.
        kernels: kernel -> comma-separated targets -> budget.
    """

    triton: dict[str, str]
    code: dict[str, str]
    kernels: dict[str, dict[str, Budget]]

    def of(self, kernel: str, target: str) -> Budget:
        """The budget of a kernel, named as `kernels_of` does."""
        by_targets = self.kernels.get(kernel, {})
        return next((budget for names, budget in by_targets.items() if target in names.split(",")), Budget())

    def rewritten(self, results: Sequence[Result], launches: Sequence[str], triton: str) -> "Budgets":
        """Budgets with what `results` found; those of other targets stay, those of no launch go.

        Args:
            launches: the names of all that there are.
            triton: the version that `results` come from.
        """
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
                reason = self.of(kernel, result.target).reason if assembly.spills else ""
                budget = Budget(assembly.spills, reason, tuple(sorted(assembly.instructions)))
                table.setdefault(kernel, {})[result.target] = budget
        grouped = {kernel: _grouped(table[kernel]) for kernel in sorted(table)}
        pairs = {(each.launch, each.target) for each in results}
        whole = [name for name in TARGETS if all((launch, name) in pairs for launch in launches)]
        return Budgets(
            dict(sorted((self.triton | dict.fromkeys(whole, triton)).items())),
            {name: digest for name, digest in sorted(self._code(results).items()) if name in launches},
            {kernel: budgets for kernel, budgets in grouped.items() if budgets},
        )

    def _code(self, results: Sequence[Result]) -> dict[str, str]:
        """Digests; what has changed gets a new one if it was compiled for all targets, else it has none."""
        compiled: dict[str, set[str]] = {}
        for result in results:
            compiled.setdefault(result.launch, set()).add(result.target)
        code = dict(self.code)
        for result in results:
            name, digest = result.launch, code_of(result)
            if own_target(name).name == result.target and code.get(name) != digest:
                code.pop(name, None)
                if compiled[name].issuperset(OWN_TARGETS):
                    code[name] = digest
        return code

    def changed(self, results: Iterable[Result]) -> set[str]:
        """Of launches that were compiled for their own targets, those that the budgets are not of.

        None as long as there is a target without budgets: then nothing could be told.
        """
        if not set(OWN_TARGETS) <= set(self.triton):
            return set()
        return {each.launch for each in results if self.code.get(each.launch) != code_of(each)}


def code_of(result: Result) -> str:
    """A digest of all that a launch has compiled."""
    return hashlib.sha256("".join(kernel.code for kernel in result.kernels).encode()).hexdigest()[:16]


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
    """Write budgets as a file whose diffs can be read: a budget has one line."""
    path.write_text(_text(msgspec.to_builtins(budgets)) + "\n")


def _text(value: dict[str, Any], depth: int = 0) -> str:
    if depth == 3 or not value:
        return json.dumps(value)
    indent = " " * (depth + 1)
    lines = []
    for name, item in value.items():
        text = _text(item, depth + 1) if isinstance(item, dict) else json.dumps(item)
        lines.append(f"{indent}{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + f"\n{indent[1:]}}}"
