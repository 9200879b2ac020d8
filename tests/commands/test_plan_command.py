"""`strata plan` as a person sees it."""

import json
import re
from functools import partial

import pytest
from rich.console import Console

from strata.cli import main
from strata.hardware.description import Card, Cpu, Hardware, Ram
from strata.options import EMBEDDED_MODEL
from strata.plan import GIB, Plan

PC = ["--card", "rtx-5070", "--ram", "64g", "--memory-bandwidth", "62", "--cores", "6"]


@pytest.fixture
def strata(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    return run


def test_a_known_model_on_a_described_machine(strata):
    text = strata("plan", "qwen3.8-flash-next", "--quant", "q2_0", *PC)
    assert text.startswith("qwen3.8-flash-next q2_0 on RTX 5070: fits\n")
    for part in ("expert slots", "dense weights", "experts, pinned", "n-gram table", "experts missed"):
        assert part in text
    assert "prompt of 512: " in text and "assumed" not in text
    assert "prompt of 32768" not in text, "longer than the context of that plan"


def test_without_a_quantisation_each_gets_a_line(strata):
    text = strata("plan", "qwen3.8-flash-next", *PC)
    assert text.startswith("qwen3.8-flash-next on RTX 5070; memory in GiB\n")
    lines = [line.split() for line in text.splitlines()]
    assert [line[1] for line in lines if len(line) > 1].count("yes") == 7 and "iq1_m" not in text
    (refused,) = [line for line in text.splitlines() if "short" in line]
    assert refused == "- ud-q4_k_xl: RAM: needs 75.0 GiB, has 59.0 GiB: 16.0 GiB short"


@pytest.mark.parametrize("width", [60, 80])
def test_nothing_is_cut_off_in_a_narrow_terminal(strata, monkeypatch, width):
    terminal = partial(Console, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr("strata.commands.plan.Console", terminal)
    for card, quant in (("rtx 5090", None), ("16g", None), ("16g", "iq3_xxs"), ("none", "iq3_xxs")):
        arguments = ["--card", card, "--ram", "32g", *(["--quant", quant] if quant else [])]
        text = strata("plan", "qwen3.8-flash-next", *arguments)
        assert all(len(line) <= width for line in text.splitlines()) and "…" not in text
        # what goes on below is indented, and words stay whole
        reason = next(line for line in text.replace("\n  ", " ").splitlines() if line.startswith("- "))
        assert re.match(r"- ([\w-]+: )?RAM: needs [\d.]+ GiB, has 27\.0 GiB: [\d.]+ GiB short", reason)


def test_what_does_not_fit_says_what_would_help(strata):
    text = strata("plan", "qwen3.8-flash-next", "--quant", "iq3_xxs", "--card", "24g", "--ram", "32")
    assert "does not fit" in text and "each of these would make it fit: " in text and "more RAM" in text


def test_json_is_the_plan(strata):
    made = Plan.from_json(strata("plan", "qwen3-30b-a3b", "--quant", "q4_k", "--json", *PC))
    assert made.fits and made.model == "qwen3-30b-a3b q4_k" and made.card == "RTX 5070"
    assert len(json.loads(strata("plan", "qwen3-30b-a3b", "--json", *PC))) == 7


def test_budgets_context_and_lanes_are_wishes(strata):
    arguments = ["--context", "16384", "--lanes", "2", "--vram-budget-mib", "8192", "--kv", "int8", "--json"]
    made = Plan.from_json(strata("plan", "qwen3.8-flash-next", "--quant", "q2_0", *arguments, *PC))
    assert (made.context, made.lanes, made.vram_budget) == (16384, 2, 8 * GIB)
    text = strata("plan", "qwen3.8-flash-next", "--quant", "q2_0", "--ram-budget-mib", "16384", *PC)
    assert "does not fit" in text and "has 16.0 GiB" in text


def test_a_file_on_the_processor(strata):
    text = strata("plan", str(EMBEDDED_MODEL), "--card", "none")
    assert "on the processor: fits" in text and "VRAM" not in text


def test_a_machine_in_a_file(strata, tmp_path):
    card = Card(name="Radeon", arch="gfx1201", vram_bytes=16 * GIB, free_bytes=15 * GIB, bandwidth=640e9)
    ram = Ram(total_bytes=64 * GIB, available_bytes=60 * GIB)
    file = tmp_path / "pc.json"
    file.write_text(Hardware(cpu=Cpu(name="x", cores=8), ram=ram, cards=(card,)).to_json())
    text = strata("plan", "qwen3.6-35b-a3b", "--quant", "iq4_xs", "--hardware", str(file))
    assert "on Radeon: fits" in text and "prompt of 512: unknown tokens/s" in text
    assert "not known, assumed: Radeon: PCIe 4 x 16" in text
    file.write_text(json.dumps({"hardware": json.loads(file.read_text()), "findings": []}))
    assert strata("plan", "qwen3.6-35b-a3b", "--quant", "iq4_xs", "--hardware", str(file)) == text


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["nosuch.gguf"], "known models are qwen3.8-flash-next"),
        (["qwen3-30b-a3b", "--quant", "q9"], "qwen3-30b-a3b comes in q2_k"),
        (["tiny", "--card", "rtx 9999"], "--card rtx 9999: known are 8g, 12g"),
        ([str(EMBEDDED_MODEL), "--quant", "q2_0"], "is for known models"),
        (["tiny", "--hardware", "missing.json"], "missing.json: cannot be read"),
    ],
)
def test_mistakes_are_named(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *arguments]) == 1
    assert says in capsys.readouterr().err


def test_a_size_that_is_none_is_wrong_usage(capsys):
    assert main(["plan", "tiny", "--ram", "much"]) == 2
    assert "--ram" in capsys.readouterr().err
