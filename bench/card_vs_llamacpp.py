"""Strata and llama.cpp on one card, both with as many bytes of experts in its memory.

    python bench/card_vs_llamacpp.py LLAMA_BENCH [--layers N] [--shares 0.38,0.18,0.08] [--prompts 512,4096]
                                     [--tokens 64] [--folder DIR] [--json FILE]

LLAMA_BENCH is the program of that name, built for the card (CMake: GGML_CUDA=ON, LLAMA_BUILD_TOOLS=ON).
Both engines get the geometry of Qwen3.8-Flash-Next with made-up weights in IQ3_XXS and without an n-gram
memory, llama.cpp as a GGUF that is written to DIR first. llama.cpp holds the experts of as many layers as
are nearest to a share (`--n-cpu-moe`) and computes the others on the processor; of prompts it takes the
better of two sizes of its batches. Strata holds experts in slots of as many bytes. Its routes are first those
of a made-up trace, to which llama.cpp's cannot be forced, then those of the made-up routers, as llama.cpp's
are. Where llama.cpp computes does not depend on them; how many experts a prompt uses does. Shares of 0.38,
0.18 and 0.08 are what cards of 24, 16 and 12 GiB hold of the model.

Tokens per second of prompts from an empty context (medians) and of tokens behind the last prompt (means). Of
llama.cpp's log is told what it takes of the card, its runtime apart, and into how many parts it divides a
step: two and two more for each layer whose experts the processor has, if the card computes all else. The logs
stay in DIR.
"""

import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

import torch
from card_speed import MIB, hold, load, made_up, measure, say

from strata.formats.synthetic import SyntheticCheckpoint, write_gguf

UBATCHES = "2048,4096"
ROUTES = ("trace", "routers")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("llama_bench", type=Path)
    parser.add_argument("--layers", type=int, help="the model's own, unless given")
    parser.add_argument("--shares", default="0.38,0.18,0.08")
    parser.add_argument("--prompts", default="512,4096")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    prompts = [int(length) for length in args.prompts.split(",")]
    checkpoint = made_up("qwen3.8-flash-next", "iq3_xxs", args.layers, ngram_rows=0)
    layers = checkpoint.geometry.layers
    path = args.folder / f"flash-next-{layers}.gguf"
    if not path.exists():
        write_gguf(checkpoint, path, lambda done, total: None)
    say(f"{path}: {path.stat().st_size / 1e9:.1f} GB")
    counts = layers_held(layers, [float(share) for share in args.shares.split(",")])
    ours = {}
    for routes in ROUTES:
        card, kernels, ours[routes] = strata(checkpoint, counts, prompts, args.tokens, routes)
    report = {"card": card, "kernels": kernels, "cpus": len(os.sched_getaffinity(0))}
    report |= {"torch": torch.__version__, "layers": layers, "results": [], "strata": ours, "llama.cpp": {}}
    for count in counts:
        theirs = llama_cpp(args.llama_bench, path, layers - count, prompts, args.tokens)
        report["llama.cpp"][count] = theirs
        for routes in ROUTES:
            held = f"experts of {count} of {layers} layers held, routes of the {routes}"
            report["results"] += compare(held, ours[routes][count], theirs)
        if args.json:
            args.json.write_text(json.dumps(report, indent=1))


def layers_held(layers: int, shares: list[float]) -> list[int]:
    """The layers nearest to these shares of all, at least one; most first."""
    return sorted({min(layers, max(1, round(share * layers))) for share in shares}, reverse=True)


def expert_bytes(checkpoint: SyntheticCheckpoint, count: int) -> int:
    """Of the last `count` layers, which are those that llama.cpp holds."""
    first = checkpoint.geometry.layers - count
    experts = (info for info in checkpoint.tensors.values() if len(info.shape) == 3)
    return sum(info.num_bytes for info in experts if int(info.name.split(".")[1]) >= first)


def strata(
    checkpoint: SyntheticCheckpoint, counts: list[int], prompts: list[int], tokens: int, routes: str
) -> tuple[str, str, dict[int, dict[str, float]]]:
    """Name of the card, the processor's kernels, and Strata's figures by layers that llama.cpp holds."""
    gc.collect()
    torch.cuda.empty_cache()  # what an earlier model has left
    rooms = {count: expert_bytes(checkpoint, count) for count in counts}
    most = rooms[counts[0]] / expert_bytes(checkpoint, checkpoint.geometry.layers)
    context = max(prompts) + 4096
    loaded, hardware, learned = load(
        checkpoint, context, 24576 * MIB, held_share=most, forced=routes == "trace"
    )
    cache, card, figures = loaded.runner.cache, hardware.cards[0], {}
    if routes == "routers":  # what the trace's earlier part is to the trace, other prompts are to these
        measure(loaded.runner, prompts, 8)
        learned = cache.policy.frequency.copy()
    without_slots = card.free_bytes - torch.cuda.mem_get_info()[0] - cache.num_bytes
    for count, room in rooms.items():
        hold(cache, learned, room)
        figures[count] = measure(loaded.runner, prompts, tokens)
        figures[count]["decode"] = figures[count].pop("decode_mean")  # llama-bench's are means
        figures[count]["vram_mib"] = (without_slots + cache.num_bytes) / MIB
        say(f"Strata, routes of the {routes}, as many bytes as {count} layers: {figures[count]}")
    loaded.runner.close()
    return card.name, hardware.cpu.isa, figures


def compare(held: str, ours: dict[str, float], theirs: dict) -> list[dict]:
    """What is published: Strata over llama.cpp for every figure that both have; `held` says of what."""
    results = []
    for what in (key for key in ours if key.startswith(("decode", "prompt")) and key in theirs):
        results.append({
            "name": f"{what}, {held}", "unit": "tokens/s",
            "ours": round(ours[what], 2), "theirs": round(theirs[what], 2),
            "ratio": round(ours[what] / theirs[what], 3), "hit_rate": round(ours["hit_rate"], 3),
            "vram_mib_ours": round(ours["vram_mib"]), "vram_mib_theirs": theirs["vram_mib"],
        })  # fmt: skip
        say(json.dumps(results[-1]))
    return results


def llama_cpp(program: Path, path: Path, on_processor: int, prompts: list[int], tokens: int) -> dict:
    """Figures as of `measure`, of llama-bench with the experts of so many layers on the processor.

    Without weights laid out anew for the processor where that crashes (its AMX code does on some machines).
    """
    threads = str(len(os.sched_getaffinity(0)))
    command = [
        str(program), "-m", str(path), "-ngl", "99", "-ncmoe", str(on_processor), "-fa", "on", "-lm", "none",
        "-t", threads, "-b", "4096", "-r", "3", "-o", "jsonl", "-v",
    ]  # fmt: skip
    figures: dict = {"command": " ".join(command[3:])}
    wanted = {
        "decode": ("-p", "0", "-n", str(tokens), "-d", str(prompts[-1]), "-ub", UBATCHES.split(",")[0]),
        "prompts": ("-p", ",".join(map(str, prompts)), "-n", "0", "-ub", UBATCHES),
    }
    for name, more in wanted.items():
        file = path.with_name(f"llama-bench-{on_processor}-{name}.log")
        for repack in ((), ("--repack", "0")):
            code = llama_bench([*command, *more, *repack], file, figures)
            log = file.read_text(errors="replace")
            if code == 0:
                break
            say(f"llama-bench ended with {code}: {log[-800:]}")
        if repack:
            figures["command"] += " --repack 0"
        figures |= of_log(log)
        say(f"llama.cpp, {on_processor} layers on the processor: {figures}")
    return figures


def llama_bench(command: list[str], log: Path, figures: dict) -> int:
    """Run it and note the better of equal tests, as they end; returns how it ended."""
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        for line in process.stdout:
            test = json.loads(line)
            what = f"prompt_{test['n_prompt']}" if test["n_prompt"] else "decode"
            speed = statistics.median(test["samples_ts"])
            say(f"{what}, batches of {test['n_ubatch']}: {speed:.1f}")
            figures[what] = max(speed, figures.get(what, 0.0))
    return process.returncode


def of_log(log: str) -> dict[str, int]:
    """What llama.cpp's log tells: MiB of the card in its buffers, and parts of a step of one token."""
    model, *contexts = log.split("constructing llama_context")
    sizes = [
        sum(map(float, re.findall(r"CUDA0 [^\n]*buffer size = *([\d.]+) MiB", part)))
        for part in (model, *contexts)
    ]
    parts = re.findall(r"splits = (\d+)(?: / (\d+))?", log)
    found = {"vram_mib": round(sizes[0] + max(sizes[1:], default=0.0))}
    return found | ({"parts_of_a_step": int(parts[-1][1] or parts[-1][0])} if parts else {})


if __name__ == "__main__":
    main()
