"""`strata doctor --compile`, on this machine's Triton and for cards that are not here."""

import json

import pytest

from strata.cli import main
from strata.commands.doctor import compile
from strata.ops.triton.proof.assembly import Assembly
from strata.ops.triton.proof.budgets import Budget, Budgets
from strata.ops.triton.proof.compile_all import Result
from strata.ops.triton.proof.fake_driver import Compiled

pytest.importorskip("triton")


def test_every_launch_compiles_within_its_budget(run_strata):
    """The rest of the targets: `strata doctor --compile`. gfx1030 is no target of Triton from 3.9."""
    answer = run_strata("doctor", "--compile", "--json", "--targets", "gfx1030,gfx1100,sm_80", timeout=600)
    found = json.loads(answer.stdout)
    problems = {
        f"{row['kernel']} for {row['target']}": row["problem"] for row in found["rows"] if row["problem"]
    }
    assert not problems
    assert answer.returncode == 0
    mine = {row["target"]: row for row in found["rows"] if row["kernel"].startswith("intrinsics: ")}
    assert mine["gfx1100"]["instructions"] == {"v_dot4_i32_iu8": 4} and mine["gfx1100"]["registers"] > 0
    assert set(mine["sm_80"]["instructions"]) == {"dp4a.s32.s32", "dp4a.u32.s32"}
    assert "gfx1030" in mine or "unsupported target" in found["not_targeted"]["gfx1030"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--targets", "gfx9000"), "strata: --targets gfx9000: the targets are gfx906, gfx1030,"),
        (("--only", "nothing*"), "strata: --only nothing*: no launch is called so\n"),
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
    result = Result("op", "gfx1100", (Compiled("k", 4, code),), seconds=1.0)
    rows = compile._rows(result, Budgets("3.9", {})) + compile._rows(
        Result("op", "sm_80", error="[x]"), Budgets("", {})
    )
    compile._show(rows, {"gfx1030": "why"}, "3.9")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "op: k gfx1100 10 3 0 16 128 v_dot4 x2 | 3 spills, 0 allowed"
    assert lines[2] == "op sm_80 [x]"
    assert lines[3].startswith("gfx1030: Triton ") and lines[3].endswith(" has no such target (why)")


def test_rows_say_what_is_wrong():
    code = Assembly(10, 3, 0, 16, {"v_dot4": 2}, 128)
    result = Result("op", "gfx1100", (Compiled("k", 4, code),), seconds=1.0)
    budgets = Budgets("3.9", {"op: k": {"gfx1100": Budget(2, ("v_wmma",))}})
    (row,) = compile._rows(result, budgets)
    assert row["problem"] == "3 spills, 2 allowed; no v_wmma any more"
    (row,) = compile._rows(Result("op", "gfx1100", error="LLVM ERROR"), budgets)
    assert row == {"kernel": "op", "target": "gfx1100", "problem": "LLVM ERROR"}
