"""`strata doctor --compile`, on this machine's Triton and for cards that are not here."""

import json

import pytest

from strata.cli import main
from strata.commands.doctor import compile
from strata.ops.triton.proof.assembly import Assembly
from strata.ops.triton.proof.budgets import Budget, Budgets, read_budgets
from strata.ops.triton.proof.compile_all import Result
from strata.ops.triton.proof.fake_driver import Compiled
from strata.ops.triton.proof.targets import OWN_TARGETS

triton = pytest.importorskip("triton")


@pytest.mark.timeout(3600)
@pytest.mark.slow
def test_kernels_compile_within_their_budgets(run_strata):
    """Every launch for one target; those whose code is not what the budgets were made of, for all of them."""
    versions = {read_budgets().triton.get(target, triton.__version__) for target in OWN_TARGETS}
    if versions != {triton.__version__}:
        pytest.skip(f"the budgets are of Triton {versions}, not {triton.__version__}: --rewrite-budgets")
    answer = run_strata("doctor", "--compile", "--changed", "--json", timeout=3500)
    assert answer.stdout, answer.stderr
    found = json.loads(answer.stdout)
    assert not {(row["kernel"], row["target"]): row["problem"] for row in found["rows"] if row["problem"]}
    assert answer.returncode == 0
    assert {row["target"] for row in found["rows"]} >= set(OWN_TARGETS)


def test_targets_that_triton_does_not_have_are_named(run_strata):
    """gfx1030 is none from 3.9 on."""
    arguments = ("--json", "--targets", "gfx1030,gfx1102,sm_89", "--only", "intrinsics")
    found = json.loads(run_strata("doctor", "--compile", *arguments).stdout)
    instructions = {row["target"]: row["instructions"] for row in found["rows"]}
    assert instructions["gfx1102"] == {"v_dot4_i32_iu8": 4}
    assert set(instructions["sm_89"]) == {"dp4a.s32.s32", "dp4a.u32.s32"}
    assert "gfx1030" in instructions or "unsupported target" in found["not_targeted"]["gfx1030"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--targets", "gfx9000"), "strata: --targets gfx9000: the targets are gfx906, gfx1030,"),
        (("--only", "nothing*"), "strata: --only nothing*: no launch is called so\n"),
        (("--changed", "--targets", "sm_80"), "strata: --changed chooses the targets: it goes without"),
    ],
)
def test_what_is_not_there_is_named(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(compile, "_require_compiler", lambda: None)
    assert main(["doctor", "--compile", *arguments]) == 1
    assert capsys.readouterr().err.startswith(message)


def test_the_interpreter_is_refused(capsys):
    assert main(["doctor", "--compile"]) == 1
    assert "TRITON_INTERPRET is set: unset it" in capsys.readouterr().err


def test_the_table(capsys):
    code = Assembly(10, 3, 0, 16, {"v_dot4": 2}, 128)
    result = Result("op", "gfx1100", (Compiled("k", 4, "", code),), seconds=1.0)
    budgets = Budgets({"gfx1100": "3.0", "sm_80": triton.__version__}, {}, {})
    rows = compile._rows(result, budgets) + compile._rows(Result("op", "sm_80", error="[x]"), budgets)
    compile._show(rows, {"gfx1030": "why"}, budgets)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "op: k gfx1100 10 3 0 16 128 v_dot4 x2 | 3 spills, 0 allowed"
    assert lines[2] == "op sm_80 [x]"
    assert lines[3].startswith("gfx1030: Triton ") and lines[3].endswith(" has no such target (why)")
    assert lines[4:] == [f"gfx1100: budgets were made with Triton 3.0; this is {triton.__version__}"]


def test_rows_say_what_is_wrong():
    code = Assembly(10, 3, 0, 16, {"v_dot4": 2}, 128)
    result = Result("op", "gfx1100", (Compiled("k", 4, "", code),), seconds=1.0)
    budgets = Budgets({}, {}, {"op: k": {"gfx1100": Budget(2, "", ("v_wmma",))}})
    (row,) = compile._rows(result, budgets)
    assert row["problem"] == "3 spills, 2 allowed; no v_wmma any more"
    (row,) = compile._rows(Result("op", "gfx1100", error="LLVM ERROR"), budgets)
    assert row == {"kernel": "op", "target": "gfx1100", "problem": "LLVM ERROR"}
