"""`bench/card_vs_llamacpp.py` as far as it goes without a card: what it asks llama-bench for."""

from pathlib import Path

import card_vs_llamacpp

# Dies of a signal unless weights are not laid out anew, as llama.cpp does on some machines.
PROGRAM = """#!/bin/sh
case "$*" in *"--repack 0"*) ;; *) kill -SEGV $$ ;; esac
case "$*" in
  *"-n 0"*) echo '{"n_prompt": 512, "n_gen": 0, "samples_ts": [90.0, 100.0, 400.0]}' ;;
  *) echo '{"n_prompt": 0, "n_gen": 128, "samples_ts": [9.0, 7.0, 8.0]}' ;;
esac
"""


def test_figures_of_a_llama_bench_that_crashes_at_first(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    figures = card_vs_llamacpp.llama_cpp(program, tmp_path / "model.gguf", 30, [512])
    assert (figures["prompt_512"], figures["decode"]) == (100.0, 8.0)
    assert "-ncmoe 30" in figures["command"] and "--repack 0" in figures["command"]
