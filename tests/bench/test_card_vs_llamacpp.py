"""`bench/card_vs_llamacpp.py` as far as it goes without a card: what it asks llama-bench for, its report."""

from dataclasses import replace
from pathlib import Path

import card_vs_llamacpp
import pytest

from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.synthetic import SyntheticCheckpoint

# Dies of a signal unless weights are not laid out anew, as llama.cpp does on some machines.
PROGRAM = """#!/bin/sh
case "$*" in *"--repack 0"*) ;; *) kill -SEGV $$ ;; esac
echo 'sched_reserve:      CUDA0 compute buffer size =    74.86 MiB' >&2
case "$*" in
  *"-n 0"*) echo '{"n_prompt": 512, "n_gen": 0, "n_ubatch": 2048, "samples_ts": [90.0, 100.0, 400.0]}'
            echo '{"n_prompt": 512, "n_gen": 0, "n_ubatch": 4096, "samples_ts": [80.0, 90.0, 90.0]}' ;;
  *) echo '{"n_prompt": 0, "n_gen": 64, "n_ubatch": 2048, "samples_ts": [9.0, 7.0, 8.0]}' ;;
esac
"""
LOG = """\
load_tensors:        CUDA0 model buffer size =  1000.00 MiB
load_tensors:    CUDA_Host model buffer size =  4000.00 MiB
llama_context: constructing llama_context
llama_kv_cache:      CUDA0 KV buffer size =    10.50 MiB
llama_kv_cache:      CUDA0 KV buffer size =     1.50 MiB
sched_reserve:      CUDA0 compute buffer size =   100.00 MiB
sched_reserve:  CUDA_Host compute buffer size =    20.00 MiB
sched_reserve: graph: nodes = 585, splits = 3, input objects = 5, input tensors = 12
~llama_context:      CUDA0 compute buffer size is  100.0000 MiB, matches expectation of  100.0000 MiB
llama_context: constructing llama_context
llama_kv_cache:      CUDA0 KV buffer size =    20.00 MiB
sched_reserve:      CUDA0 compute buffer size =   200.00 MiB
"""
BATCHES = (
    "sched_reserve: graph (pp bs=2048, tg bs=1): nodes = 600 / 585, splits = 31 / 21, input objects = 5 / 5\n"
)


def test_figures_of_a_llama_bench_that_crashes_at_first(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    figures = card_vs_llamacpp.llama_cpp(program, tmp_path / "model.gguf", 30, [512], 64)
    assert (figures["prompt_512"], figures["decode"], figures["vram_mib"]) == (100.0, 8.0, 75)
    assert "-ncmoe 30" in figures["command"] and "--repack 0" in figures["command"]


def test_a_log_tells_what_the_largest_context_takes_and_how_a_step_is_divided() -> None:
    found = card_vs_llamacpp.of_log(LOG)
    assert found == {"vram_mib": 1220, "parts_of_a_step": 3}
    assert card_vs_llamacpp.of_log(LOG + BATCHES)["parts_of_a_step"] == 21


@pytest.mark.parametrize(("shares", "counts"), [([0.08, 0.38, 0.18], [5, 2, 1]), ([0.0, 1.0], [12, 1])])
def test_both_hold_whole_layers(shares: list[float], counts: list[int]) -> None:
    assert card_vs_llamacpp.layers_held(12, shares) == counts


def test_bytes_are_those_of_the_layers_that_llama_cpp_holds() -> None:
    geometry = replace(GEOMETRIES["qwen3.8-flash-next"], layers=12)
    checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, "iq3_xxs"))
    last = {name: info for name, info in checkpoint.tensors.items() if name.startswith("blk.11.ffn_")}
    experts = sum(info.num_bytes for name, info in last.items() if name.endswith("_exps.weight"))
    assert card_vs_llamacpp.expert_bytes(checkpoint, 1) == experts
    assert card_vs_llamacpp.expert_bytes(checkpoint, 12) > 12 * experts  # every fifth has more bits


def test_the_report_divides_ours_by_theirs() -> None:
    ours = {"decode": 100.0, "prompt_512": 50.0, "hit_rate": 0.8, "vram_mib": 9000.4}
    theirs = {"decode": 40.0, "command": "", "vram_mib": 8000}  # its prompts have failed
    assert card_vs_llamacpp.compare("5 of 12 layers", ours, theirs) == [{
        "name": "decode, 5 of 12 layers", "unit": "tokens/s", "ours": 100.0, "theirs": 40.0,
        "ratio": 2.5, "hit_rate": 0.8, "vram_mib_ours": 9000, "vram_mib_theirs": 8000,
    }]  # fmt: skip
