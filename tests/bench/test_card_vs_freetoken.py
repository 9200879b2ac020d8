"""`bench/card_vs_freetoken.py` as far as it goes without a card: its slots, routes, model and report."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import card_vs_freetoken
import numpy as np
import psutil
import pytest

from strata.experts.trace import Trace
from strata.formats.geometry import GEOMETRIES
from strata.formats.synthetic import SyntheticCheckpoint

FLASH_NEXT = GEOMETRIES["qwen3.8-flash-next"]
TWELVE = replace(FLASH_NEXT, layers=12)
# What FreeToken 0.1.3's parser of qwen4_exp reads and has no default for.
READ = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "hidden_act", "max_position_embeddings", "rope_parameters", "rms_norm_eps",
    "layer_types", "eos_token_id", "linear_num_key_heads", "linear_num_value_heads",
    "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "num_experts",
    "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "indexer_n_heads",
    "indexer_kv_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio", "hc_count",
    "hc_lowrank", "ple_layer_ids", "ple_embed_dim", "ple_conv_kernel_size", "ngram_size",
    "heads_per_ngram", "ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by", "split_ngram_parts",
)  # fmt: skip


def test_slots_are_shares_and_at_least_a_layers_experts():
    assert card_vs_freetoken.slots_of(TWELVE, [1, 0.38, 0.18, 0.08]) == [6144, 2335, 1106, 512]
    assert card_vs_freetoken.slots_of(FLASH_NEXT, [0.08]) == [1967]


def test_uniform_routes_use_all_experts_alike():
    trace, learned = card_vs_freetoken.uniform_routes(GEOMETRIES["tiny"])  # whose checks find repetitions
    counts = trace.counts(0, len(trace))
    assert counts.shape == (4, 16) and not learned.any()
    expected = len(trace) * 4 / 16
    assert np.abs(counts - expected).max() < 5 * expected**0.5


def test_the_model_has_what_freetoken_reads(tmp_path: Path):
    card_vs_freetoken.write_model(tmp_path / "model", TWELVE)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    text = config["text_config"]
    assert not [key for key in READ if key not in text]
    assert [i for i, kind in enumerate(text["layer_types"]) if kind == "full_attention"] == [3, 7, 11]
    assert text["layer_types"][text["ple_layer_ids"][0] - 1] == "linear_attention"
    assert text["rope_parameters"]["partial_rotary_factor"] * text["head_dim"] == 64


@pytest.mark.slow
def test_transformers_reads_the_model(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    card_vs_freetoken.write_model(tmp_path / "model", TWELVE)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "model")
    assert (config.text_config.num_experts, config.text_config.hc_lowrank) == (512, 320)
    assert config.quantization_config["quant_algo"] == "NVFP4"
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "model").eos_token_id == 0


def test_only_experts_are_quantised():
    tensors = SyntheticCheckpoint(TWELVE, card_vs_freetoken.MIX).tensors.values()
    formats = {tensor.format for tensor in tensors if len(tensor.shape) == 3}
    others = {tensor.format for tensor in tensors if len(tensor.shape) == 2}
    assert (formats, others) == ({"NVFP4"}, {"BF16", "F32", "IQ4_NL"})


def test_a_run_that_fails_tells_how(tmp_path: Path):
    command = [sys.executable, "-c", "import sys; print('first'); sys.exit('no card')"]
    ran = card_vs_freetoken.run(command, tmp_path, tmp_path / "log", 60)
    assert ran["error"] == "ended with 1: first\nno card"


def test_a_run_that_takes_too_long_ends_with_what_it_has_started(tmp_path: Path):
    pid = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 600 & echo $! > {pid}; wait"]
    ran = card_vs_freetoken.run(command, tmp_path, tmp_path / "log", 1)
    assert ran["error"].startswith("had not ended after 1 s")
    deadline = time.monotonic() + 30  # it was killed, and dies soon
    while not is_over(int(pid.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_over(pid: int) -> bool:
    """Whether a process has ended; where nobody waits for orphans, it stays a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_report_divides_ours_by_theirs():
    figures = dict.fromkeys(card_vs_freetoken.FIGURES, 300.0)
    ours = {512: figures | {"held": 448, "hit_rate": 0.5}, 6144: figures | {"held": 6144, "hit_rate": 1.0}}
    their = dict.fromkeys(card_vs_freetoken.FIGURES, 100.0) | {"slots": 512, "hit_rate": 0.4}
    assert card_vs_freetoken.compare(TWELVE, "hybrid", ours, []) == []  # it has failed
    results = card_vs_freetoken.compare(TWELVE, "offload", ours, [their])
    assert len(results) == 4
    assert results[0] == {
        "name": "decode_512, offload, 0.083 of the experts held", "unit": "tokens/s", "ours": 300.0,
        "theirs": 100.0, "ratio": 3.0, "held_ours": 448, "held_theirs": 512,
        "hit_ours": 0.5, "hit_theirs": 0.4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("slots", "names"), [([6144], ["offload"]), ([6144, 512], ["offload", "bench bw", "hybrid"])]
)
def test_hybrid_runs_where_experts_are_missed(tmp_path: Path, monkeypatch, slots, names):
    asked = []

    def run(command, site, log, limit):
        if command[1] != "-m":
            asked.append(json.loads(Path(command[2]).read_text())["slots"])
        return {"seconds": 1.0, "error": None, "log": log.name}

    monkeypatch.setattr(card_vs_freetoken, "run", run)
    trace = Trace(np.zeros((8, 12, 1), np.int16), 512)
    runs = dict(card_vs_freetoken.freetoken(tmp_path, tmp_path, TWELVE, trace, slots))
    assert list(runs) == names and all(ran["figures"] == [] for ran in runs.values())
    assert asked == [slots, [512]][: len(asked)] and len(asked) == len(names) - ("bench bw" in names)
