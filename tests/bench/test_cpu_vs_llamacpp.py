"""The benchmark's own arithmetic, and what it does when llama.cpp dies."""

import os
import signal
from pathlib import Path

import cpu_vs_llamacpp
import pytest
from cpu_vs_llamacpp import Case, EngineCrash, EngineProcess, cases, run_case, summary
from helpers.models import tiny_qwen3moe

TINY = tiny_qwen3moe("q4_k", layers=1)


def test_a_result_is_the_ratio_of_medians():
    result = summary("x", [[1.0, 10.0], [4.0, 2.0], [3.0, 1.0]])
    assert (result["ours"], result["theirs"], result["ratio"]) == (3.0, 2.0, 1.5)


def test_cases_are_what_the_issue_names():
    names = [case.name for case in cases(True, Path("smollm2.gguf"), Path())]
    formats = ["Q4_K", "Q3_K", "IQ3_XXS", "IQ4_NL", "Q2_K"]
    assert names == ["SmolLM2-135M Q4_1", *(f"qwen3moe {f}" for f in formats), "qwen4exp IQ3_XXS"]


def test_a_crash_of_llama_cpp_is_told_from_an_error():
    engine = EngineProcess("llama.cpp", Path("missing.gguf"))
    os.kill(engine.process.pid, signal.SIGSEGV)
    with pytest.raises(EngineCrash, match="SIGSEGV"):
        engine.receive()


def test_after_a_crash_llama_cpp_runs_without_repacking(tmp_path, monkeypatch):
    asked = []

    def compare(case, threads, rounds, repack):
        asked.append(repack)
        if repack:
            raise EngineCrash("crashed")
        return [], 1.0

    monkeypatch.setattr(cpu_vs_llamacpp, "compare", compare)
    model, _ = run_case(Case("tiny", tmp_path / "tiny.gguf", 300, TINY), [1], 1)
    assert asked == [True, False]
    assert model["llama.cpp without repacking"] == "crashed"


@pytest.mark.slow
def test_both_engines_run(tmp_path):
    pytest.importorskip("llama_cpp")
    model, results = run_case(Case("tiny", tmp_path / "tiny.gguf", 300, TINY), [1], 1)
    assert [result["name"] for result in results] == ["tiny decode, 1 thread", "tiny prompt, 1 thread"]
    assert all(result["ours"] > 0 and result["theirs"] > 0 for result in results)
    assert model["logits_correlation"] > 0.98
