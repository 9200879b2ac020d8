"""`strata doctor --kernels`: rows of checks that agree, disagree, fail and compare nothing."""

import torch

from strata.cli import main
from strata.commands.doctor.kernels import look_at, show
from strata.ops.triton.catalog import Check

CPU = torch.device("cpu")
ONE = torch.ones(1)


def broken(device):
    yield "first", ONE, ONE
    raise RuntimeError("no such\ninstruction")


def test_no_card_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["doctor", "--kernels"]) == 1
    assert capsys.readouterr().err == "strata: PyTorch finds no card here; `strata doctor` says why\n"


def test_rows():
    cases = [(f"case {i}", ONE * (1 + i), ONE) for i in range(5)]
    assert look_at(Check("good", lambda device: iter(cases[:1])), CPU)["problem"] == ""
    bad = look_at(Check("bad", lambda device: iter(cases)), CPU)
    assert (bad["cases"], bad["error"]) == (5, 4.0)
    assert bad["problem"] == "case 1: 1; case 2: 2; case 3: 3; and 1 more"
    assert look_at(Check("broken", broken), CPU)["problem"] == "RuntimeError: no such"
    assert look_at(Check("empty", lambda device: iter([])), CPU)["problem"] == "no case was compared"
    nan = look_at(Check("nan", lambda device: iter([("x", ONE * float("nan"), ONE), *cases])), CPU)
    assert nan["error"] != nan["error"]


def test_the_table(capsys):
    rows = [
        look_at(Check("good", lambda device: iter([("x", ONE, ONE)])), CPU),
        look_at(Check("bad", broken), CPU),
    ]
    show(rows, "A card")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "A card"
    assert lines[2].split() == ["good", "1", "0", "same", "bits", "agrees"]
    assert lines[3].split() == ["bad", "1", "0", "same", "bits", "RuntimeError:", "no", "such"]
