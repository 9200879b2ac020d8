"""Strata and FreeToken 0.1.3 on one card, both with the same number of experts in its memory.

    python bench/card_vs_freetoken.py SITE --json FILE [--layers 12] [--shares 1,0.38,0.18,0.08]
                                      [--routes text|uniform]

SITE is a folder that FreeToken was installed to; `bench/freetoken_child.py`, which runs it, says how. Both
engines get the geometry of Qwen3.8-Flash-Next with made-up weights, experts in NVFP4 and all else in BF16, as
in the release that FreeToken reads, and both are forced to the same routes by position: `text` have the
published skew and persistence, `uniform` are the worst case for a cache. Shares of 0.38, 0.18 and 0.08 are
what cards of 24, 16 and 12 GiB hold of the model. FreeToken's strategies are `offload`, where missed experts
come over the link, and `hybrid`, where the processor computes some of them, as many as its own `bench bw`
finds right; `fused` refuses NVFP4, so that `offload` with a share of 1 stands for all experts held. It wants
a slot for each expert of a layer at least: with 12 layers a share of 0.08 becomes 0.083, for both. Its n-gram
table is all zeros and never read, Strata's has 100,000 rows for each head in main memory.

Tokens per second of prompts of 512 and 4096 and of the tokens behind them; medians; one sequence, no drafts,
greedy, no server on either side. FreeToken's prompts take slots of its cache, so that its first 64 tokens
behind a prompt are not counted; `hybrid`'s hits are counted in runs of their own. With few layers prompts
take a larger part of its slots than they would of the whole model's, and below two slots for each expert of a
layer it does not read the next layer's experts ahead. Strata keeps 64 of its slots free for copies under way.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from card_speed import MIB, TRACED, hold, load, made_up_routes, measure, say
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from strata.experts.trace import Trace
from strata.formats.geometry import GEOMETRIES, Geometry
from strata.formats.mixes import Mix
from strata.formats.synthetic import SyntheticCheckpoint

CHILD = Path(__file__).with_name("freetoken_child.py")
PROMPTS, TOKENS, SETTLED, CONTEXT = (512, 4096), 320, 64, 8192
FIGURES = [f"{what}_{length}" for what in ("decode", "prompt") for length in PROMPTS]
LIMITS = {"bench bw": 120, "offload": 300, "hybrid": 240}  # seconds; the first start of an engine compiles
LAST_LINES = 15  # of the log of what failed

_BF16 = (
    "token_embd", "output", "query_key", "value", "attn_output", "gate", "ssm_out", "ssm_ba", "hyper",
    "inject", "indexer", "router", "shared", "shared_down", "ple_key", "ple_value",
)  # fmt: skip
MIX = Mix(
    dict.fromkeys(_BF16, "BF16") | {"experts": "NVFP4", "experts_down": "NVFP4", "ngram_table": "IQ4_NL"}
)
# In the checkpoint's names, what ModelOpt left as it was.
NOT_QUANTIZED = [
    "lm_head", "*.embed_tokens", "*.self_attn", "*.linear_attn", "*hyper_connection*", "*.mlp.gate",
    "*.mlp.shared_expert", "*.mlp.shared_expert_gate", "*.ple",
]  # fmt: skip


def main() -> None:
    args = arguments()
    torch.set_grad_enabled(False)
    geometry = GEOMETRIES["qwen3.8-flash-next"]
    geometry = replace(geometry, layers=args.layers, hyper=replace(geometry.hyper, ngram_rows=100_000))
    slots = slots_of(geometry, [float(share) for share in args.shares.split(",")])
    routes = made_up_routes(geometry) if args.routes == "text" else uniform_routes(geometry)
    card, kernels, ours = strata(geometry, routes, slots)
    report = {"card": card, "kernels": kernels, "cpus": len(os.sched_getaffinity(0))}
    report |= {"torch": torch.__version__, "layers": args.layers, "routes": args.routes}
    report |= {"results": [], "strata": ours, "freetoken": {}}
    for name, ran in freetoken(args.site, args.logs, geometry, routes[0], slots):
        report["freetoken"][name] = ran
        for result in compare(geometry, name, ours, ran["figures"]):
            say(json.dumps(result))
            report["results"].append(result)
        args.json.write_text(json.dumps(report, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--shares", default="1,0.38,0.18,0.08")
    parser.add_argument("--routes", choices=("text", "uniform"), default="text")
    parser.add_argument("--json", type=Path, required=True, help="FreeToken's logs are put beside it")
    args = parser.parse_args()
    if not (args.site / "freetoken").is_dir():
        parser.error(f"{args.site}: FreeToken is not installed there; {CHILD.name} says how")
    args.logs = args.json.with_suffix(".logs")
    args.logs.mkdir(parents=True, exist_ok=True)
    return args


def slots_of(geometry: Geometry, shares: list[float]) -> list[int]:
    """Slots for such shares of all experts, at least one for each expert of a layer; most slots first."""
    least, total = geometry.expert_count, geometry.layers * geometry.expert_count
    return sorted({min(total, max(least, math.ceil(share * total))) for share in shares}, reverse=True)


def uniform_routes(geometry: Geometry) -> tuple[Trace, np.ndarray]:
    """As `card_speed.made_up_routes`, with every expert as likely as any other at any time."""
    rng, experts, used = np.random.default_rng(0), geometry.expert_count, geometry.used
    layers = [
        np.argpartition(rng.random((TRACED, experts), np.float32), used, axis=1)[:, :used]
        for _ in range(geometry.layers)
    ]
    learned = np.zeros(geometry.layers * experts, np.float32)
    return Trace(np.stack(layers, axis=1).astype(np.int16), experts), learned


def strata(
    geometry: Geometry, routes: tuple[Trace, np.ndarray], slots: list[int]
) -> tuple[str, str, dict[int, dict[str, float]]]:
    """Name of the card, the processor's kernels, and Strata's figures by number of slots."""
    all_held = geometry.layers * geometry.expert_count
    most = None if slots == [all_held] else slots[0] / all_held
    loaded, hardware, learned = load(
        SyntheticCheckpoint(geometry, MIX), CONTEXT, 24576 * MIB, routes=routes, held_share=most
    )
    cache, figures = loaded.runner.cache, {}
    for count in slots:
        hold(cache, learned, round(count * cache.mean_bytes))
        figures[count] = {"held": int(cache.residency.held.sum())}
        for length in PROMPTS:
            measured = measure(loaded.runner, [length], TOKENS)
            figures[count] |= {f"decode_{length}": measured["decode"], **measured}
        say(f"strata, {count} slots: {figures[count]}")
    loaded.runner.close()
    return hardware.cards[0].name, hardware.cpu.isa, figures


def compare(
    geometry: Geometry, strategy: str, ours: dict[int, dict[str, float]], theirs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What is published: Strata over FreeToken for every figure that both have."""
    results = []
    for their in theirs:
        count = their["slots"]
        share = count / (geometry.layers * geometry.expert_count)
        results += [
            {
                "name": f"{figure}, {strategy}, {share:.3f} of the experts held",
                "unit": "tokens/s",
                "ours": round(ours[count][figure], 2),
                "theirs": round(their[figure], 2),
                "ratio": round(ours[count][figure] / their[figure], 3),
                "held_ours": ours[count]["held"],
                "held_theirs": count,
                "hit_ours": round(ours[count]["hit_rate"], 3),
                "hit_theirs": round(their["hit_rate"], 3),
            }
            for figure in FIGURES
        ]
    return results


def freetoken(
    site: Path, logs: Path, geometry: Geometry, trace: Trace, slots: list[int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name of each run of FreeToken, and seconds, error or None, log, and figures for numbers of slots."""
    model, routes = logs / "model", logs / "routes.npy"
    write_model(model, geometry)
    np.save(routes, trace.ids)
    all_held = geometry.layers * geometry.expert_count
    yield "offload", engine("offload", site, logs, geometry, slots)
    if fewer := [count for count in slots if count < all_held]:  # else `hybrid` has nothing to divide
        bandwidth = [sys.executable, "-m", "freetoken.cli", "bench", "bw", "--dtype", "nvfp4"]
        yield "bench bw", run(bandwidth, site, logs / "bench_bw.log", LIMITS["bench bw"]) | {"figures": []}
        yield "hybrid", engine("hybrid", site, logs, geometry, fewer)


def engine(strategy: str, site: Path, logs: Path, geometry: Geometry, slots: list[int]) -> dict[str, Any]:
    """Measure FreeToken with a strategy."""
    asked, got = logs / f"{strategy}.json", logs / f"{strategy}.jsonl"
    got.write_text("")
    request = {
        "model": str(logs / "model"), "routes": str(logs / "routes.npy"), "strategy": strategy,
        "context": CONTEXT, "experts": geometry.expert_count, "vocab": geometry.vocab, "prompts": PROMPTS,
        "tokens": TOKENS, "settled": SETTLED, "slots": slots,
    }  # fmt: skip
    asked.write_text(json.dumps(request))
    ran = run(
        [sys.executable, str(CHILD), str(asked), str(got)], site, logs / f"{strategy}.log", LIMITS[strategy]
    )
    return ran | {"figures": [json.loads(line) for line in got.read_text().splitlines()]}


def run(command: list[str], site: Path, log: Path, limit: float) -> dict[str, Any]:
    """Run FreeToken for so many seconds at most; an error holds the last lines of its log."""
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    variables |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}  # it opens a process group of one
    start, error = time.perf_counter(), None
    say(f"{' '.join(command)}\n  for {limit} s at most, log in {log}")
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | variables,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
            error = f"ended with {code}" if code else None
        except subprocess.TimeoutExpired:
            error = f"had not ended after {limit} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            process.wait()
    seconds = round(time.perf_counter() - start, 1)
    if error:
        error += ": " + "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
    say(f"  {error or 'done'}, after {seconds} s")
    return {"seconds": seconds, "error": error, "log": log.name}


def write_model(folder: Path, geometry: Geometry) -> None:
    """What FreeToken reads of a model besides its weights: a configuration, and a tokenizer of one token."""
    folder.mkdir(exist_ok=True)
    end = "<|endoftext|>"
    Tokenizer(WordLevel({end: 0}, end)).save(str(folder / "tokenizer.json"))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    config = {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "text_config": text_config(geometry),
        "quantization_config": {
            "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": NOT_QUANTIZED,
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def text_config(geometry: Geometry) -> dict[str, Any]:
    """The original's `text_config` for a geometry of qwen4exp."""
    delta, hyper = geometry.delta, geometry.hyper
    kinds = ("linear_attention", "full_attention")
    return {
        "model_type": "qwen4_exp_text",
        "dtype": "bfloat16",
        "hidden_size": geometry.width,
        "num_hidden_layers": geometry.layers,
        "vocab_size": geometry.vocab,
        "max_position_embeddings": geometry.context,
        "eos_token_id": geometry.eos,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": geometry.tied,
        "layer_types": [kinds[geometry.has_attention(layer)] for layer in range(geometry.layers)],
        "full_attention_interval": geometry.interval,
        "num_attention_heads": geometry.heads,
        "num_key_value_heads": geometry.kv_heads,
        "head_dim": geometry.head_length,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": geometry.rope_base,
            "partial_rotary_factor": geometry.rope_dimensions / geometry.head_length,
        },
        "output_gate_type": "sigmoid",
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        "linear_key_head_dim": delta.state,
        "linear_value_head_dim": delta.state,
        "linear_conv_kernel_dim": delta.kernel,
        "num_experts": geometry.expert_count,
        "num_experts_per_tok": geometry.used,
        "moe_intermediate_size": geometry.ff,
        "shared_expert_intermediate_size": geometry.shared_ff,
        "indexer_n_heads": hyper.index_heads,
        "indexer_kv_heads": 1,
        "indexer_head_dim": hyper.index_length,
        "indexer_budget": hyper.top_k,
        "indexer_compress_ratio": hyper.block,
        "hc_count": hyper.streams,
        "hc_lowrank": hyper.low_rank,
        "ple_layer_ids": [2],  # counted from 1
        "ple_embed_dim": 2 * hyper.ngram_heads * hyper.ngram_length,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": hyper.ngram_heads,
        "ngram_vocab_size_base": hyper.ngram_rows,
        "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": 1,
    }


if __name__ == "__main__":
    main()
