"""Compiling for cards that are not here: a fake driver, children that may die, and budgets."""

import faulthandler
import json
import multiprocessing
import os
import time

import pytest

from strata.ops.triton.catalog import Launch
from strata.ops.triton.proof import compile_all as module
from strata.ops.triton.proof.assembly import Assembly
from strata.ops.triton.proof.budgets import Budget, Budgets, code_of, read_budgets, write_budgets
from strata.ops.triton.proof.compile_all import Result, compile_all
from strata.ops.triton.proof.fake_driver import Compiled, _read
from strata.ops.triton.proof.targets import OWN_TARGETS, TARGETS, own_target

TARGET = TARGETS["gfx1100"]


def refuse() -> None:
    os.write(2, b"x.py:3: error: unsupported target\n")  # as MLIR does
    raise RuntimeError("PassManager::run failed")


def abort() -> None:
    faulthandler.disable()  # pytest's
    os.write(2, b"LLVM ERROR: Cannot select: f16 = fma\n")
    os.abort()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (refuse, "RuntimeError: PassManager::run failed: unsupported target"),
        (abort, "the compiler ended with SIGABRT LLVM ERROR: Cannot select: f16 = fma"),
        (lambda: os._exit(3), "the compiler ended with exit code 3"),
        (lambda: None, "the launch has launched no kernel"),
    ],
)
def test_a_launch_that_fails_is_one_row(call, error):
    (result,) = compile_all([(Launch("x", call), TARGET)], jobs=2)
    assert (result.launch, result.target, result.kernels) == ("x", "gfx1100", ())
    assert result.error.startswith(error)


def test_a_child_goes_on_until_one_has_died():
    """What is printed for one launch is not said of the next."""
    calls = (refuse, lambda: 1 / 0, abort, refuse)
    results = compile_all([(Launch(str(i), call), TARGET) for i, call in enumerate(calls)], jobs=1)
    errors = [result.error for result in results]
    assert errors[0] == errors[3] == "RuntimeError: PassManager::run failed: unsupported target"
    assert errors[1] == "ZeroDivisionError: division by zero"
    assert errors[2].startswith("the compiler ended with SIGABRT LLVM ERROR")


def test_a_compiler_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    start = time.monotonic()
    (result,) = compile_all([(Launch("x", lambda: time.sleep(60)), TARGET)], jobs=1)
    assert result.error == "not done after 0 s" and time.monotonic() - start < 30


def test_no_more_children_than_jobs_and_none_left_behind():
    started = []
    work = [(Launch(str(i), lambda: time.sleep(60)), TARGET) for i in range(3)] + [
        (Launch("quick", lambda: None), TARGET)
    ]
    results = compile_all(work[::-1], 2, lambda launch, target: started.append(launch))
    assert next(results).launch == "quick"
    assert started == ["quick", "2"]
    results.close()
    assert not multiprocessing.active_children()


def test_a_kernel_that_is_launched_early_must_wait(tmp_path):
    """Else it would read what kernels before it have not written; no run need ever show that."""
    files = {
        ".json": json.dumps({"shared": 0, "num_warps": 1, "launch_pdl": True}),
        ".ttir": "",
        ".ptx": "ret;",
    }
    for suffix, text in files.items():
        (tmp_path / f"k{suffix}").write_text(text)
    paths = tuple(str(tmp_path / f"k{suffix}") for suffix in files)
    with pytest.raises(
        RuntimeError, match="k is launched as a dependent kernel, but does not call begin_kernel"
    ):
        _read("k", paths, TARGETS["sm_90"])


def assembly(spills: int = 0, **instructions: int) -> Assembly:
    return Assembly(10, spills, 0, 16, instructions, 128)


def result(launch: str, target: str, *kernels: tuple[str, Assembly], code: str = "") -> Result:
    return Result(launch, target, tuple(Compiled(name, 4, code, each) for name, each in kernels))


def test_more_spills_and_lost_instructions_are_violations():
    budget = Budget(spills=2, instructions=("v_dot4", "v_wmma"))
    assert budget.violations(assembly(2, v_dot4=1, v_wmma=1, v_more=1)) == []
    assert budget.violations(assembly(3, v_dot4=1)) == ["3 spills, 2 allowed", "no v_wmma any more"]
    assert Budgets({}, {}, {}).of("any", "sm_80").violations(assembly(1)) == ["1 spills, 0 allowed"]


def test_budgets_are_rewritten_for_what_was_compiled(tmp_path):
    old = Budgets(
        {"gfx1030": "3.7", "gfx1100": "3.8"},
        {"b": "digest", "no launch": "digest"},
        {
            "a: k": {"gfx1030,gfx1100": Budget(4), "sm_80": Budget(0, "", ("mma",))},
            "a: k #2": {"gfx1100": Budget(6, "large")},
            "a: gone": {"gfx1100": Budget(1)},
            "b: k": {"gfx1100": Budget(0, "", ("v_dot4",))},
            "no launch: k": {"gfx1100": Budget(9)},
        },
    )
    kernels = (("k", assembly(0, v_dot4=3)), ("k", assembly(7)), ("clean", assembly()))
    new = old.rewritten([result("a", t, *kernels) for t in ("gfx1100", "gfx1101")], ["a", "b"], "3.9")
    assert new == Budgets(
        {"gfx1030": "3.7", "gfx1100": "3.8"},
        {"b": "digest"},
        {
            "a: k": {
                "gfx1030": Budget(4),
                "gfx1100,gfx1101": Budget(0, "", ("v_dot4",)),
                "sm_80": Budget(0, "", ("mma",)),
            },
            "a: k #2": {"gfx1100": Budget(7, "large"), "gfx1101": Budget(7)},
            "b: k": {"gfx1100": Budget(0, "", ("v_dot4",))},
        },
    )
    write_budgets(new, tmp_path / "b.json")
    assert read_budgets(tmp_path / "b.json") == new
    assert new.of("a: k", "gfx1030") == Budget(4) and new.of("a: k", "sm_90") == Budget()


def test_a_version_is_that_of_all_launches():
    old = Budgets({"gfx1100": "3.8"}, {}, {})
    first, second = (result(launch, "gfx1100", ("k", assembly())) for launch in ("a", "b"))
    assert old.rewritten([first], ["a", "b"], "3.9").triton == {"gfx1100": "3.8"}
    assert old.rewritten([first, second], ["a", "b"], "3.9").triton == {"gfx1100": "3.9"}


def test_a_digest_stands_for_all_targets():
    """So it is taken only where all have been compiled, and one that is known to be wrong goes."""
    kernel = ("k", assembly())
    old = [result("a", target, kernel, code="old") for target in OWN_TARGETS]
    new = [result("a", target, kernel, code="new") for target in OWN_TARGETS]
    own = OWN_TARGETS.index(own_target("a").name)
    made = Budgets({}, {}, {}).rewritten(old, ["a"], "3.9")
    assert made.code == {"a": code_of(old[0])}
    assert made.changed([old[own]]) == set() and made.changed([new[own]]) == {"a"}
    assert Budgets({}, {}, {}).changed([new[own]]) == set()
    assert made.rewritten([old[own]], ["a"], "3.9").code == made.code
    assert made.rewritten([new[own]], ["a"], "3.9").code == {}
    assert made.rewritten(new, ["a"], "3.9").code == {"a": code_of(new[0])}


def test_budgets_name_targets_that_exist_and_say_why_there_are_spills():
    budgets = read_budgets()
    assert set(budgets.triton) <= set(TARGETS)
    for kernel, by_targets in budgets.kernels.items():
        assert {name for names in by_targets for name in names.split(",")} <= set(TARGETS)
        assert all(budget.reason for budget in by_targets.values() if budget.spills), kernel
