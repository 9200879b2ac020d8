"""`strata doctor --compile`, on this machine's Triton and for cards that are not here."""

import json

import pytest

from strata.cli import main
from strata.commands.doctor import compile
from strata.ops.triton.catalog import launches
from strata.ops.triton.proof.assembly import Assembly
from strata.ops.triton.proof.budgets import Budget, Budgets
from strata.ops.triton.proof.compile_all import Result
from strata.ops.triton.proof.fake_driver import Compiled

pytest.importorskip("triton")


# One of each shape of work; all launches take minutes for a target.
QUICK = "intrinsics,doorbell,router*,attend_window 16*,delta_net window,quantized_matmul Q4_K 2560x2560 1"


def compiled(run_strata, *arguments: str) -> tuple[dict[str, dict], dict[str, str]]:
    """The rows by `kernel for target`, all within their budgets, and the targets that are not there."""
    answer = run_strata("doctor", "--compile", "--json", *arguments, timeout=1500)
    assert answer.stdout, answer.stderr
    found = json.loads(answer.stdout)
    rows = {f"{row['kernel']} for {row['target']}": row for row in found["rows"]}
    assert not {name: row["problem"] for name, row in rows.items() if row["problem"]}
    assert answer.returncode == 0 and rows
    return rows, found["not_targeted"]


@pytest.mark.timeout(1600)
@pytest.mark.slow
def test_every_launch_compiles_within_its_budget(run_strata):
    """On one target; the others: `strata doctor --compile`."""
    compiled(run_strata, "--targets", "gfx1100")


@pytest.mark.timeout(1600)
def test_representative_launches_compile_within_their_budgets(run_strata):
    """gfx1030 is no target of Triton from 3.9."""
    assert all(launches(pattern) for pattern in QUICK.split(","))
    targets = ("gfx1030", "gfx1102", "sm_89")
    rows, missing = compiled(run_strata, "--targets", ",".join(targets), "--only", QUICK)
    mine = {target: rows.get(f"intrinsics: _bytes_kernel for {target}") for target in targets}
    assert mine["gfx1102"]["instructions"] == {"v_dot4_i32_iu8": 4} and mine["gfx1102"]["registers"] > 0
    assert set(mine["sm_89"]["instructions"]) == {"dp4a.s32.s32", "dp4a.u32.s32"}
    assert mine["gfx1030"] or "unsupported target" in missing["gfx1030"]


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
