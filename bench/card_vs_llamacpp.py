"""Strata and llama.cpp on one card, both with the same part of the experts in its memory.

    python bench/card_vs_llamacpp.py LLAMA_BENCH [--layers N] [--shares 0.38,0.18,0.08] [--prompts 512,4096]
                                     [--folder DIR] [--json FILE]

LLAMA_BENCH is the program of that name, built for the card (CMake: GGML_CUDA=ON, LLAMA_BUILD_TOOLS=ON).
Both engines get the geometry of Qwen3.8-Flash-Next with made-up weights in IQ3_XXS and without an n-gram
memory, llama.cpp as a GGUF that is written to DIR first. Strata holds a share of the experts' bytes in slots,
llama.cpp the experts of as many layers, rounded up (`--n-cpu-moe`), and computes the others on the processor.
Strata's routes are forced to a made-up trace; llama.cpp's do not matter to where it computes. Shares of
0.38, 0.18 and 0.08 are what cards of 24, 16 and 12 GiB hold of the model. Tokens per second of prompts from
an empty context and of tokens behind the last prompt; medians.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import torch
from card_speed import MIB, hold, load, made_up, measure, say

from strata.formats.synthetic import write_gguf

DECODED = 128


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("llama_bench", type=Path)
    parser.add_argument("--layers", type=int, help="the model's own, unless given")
    parser.add_argument("--shares", default="0.38,0.18,0.08")
    parser.add_argument("--prompts", default="512,4096")
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
    report = {"layers": layers, "cpus": len(os.sched_getaffinity(0)), "torch": torch.__version__}
    held = {float(share): min(layers, math.ceil(float(share) * layers)) for share in args.shares.split(",")}
    theirs = {
        share: llama_cpp(args.llama_bench, path, layers - count, prompts) for share, count in held.items()
    }
    loaded, hardware, learned = load(checkpoint, max(prompts) + 4096, 24576 * MIB)
    cache, results = loaded.runner.cache, []
    for share, count in held.items():
        hold(cache, learned, int(share * int(cache.residency.size.sum())))
        ours = measure(loaded.runner, prompts, DECODED)
        for what in ("decode", *(f"prompt_{length}" for length in prompts)):
            pair = ours[what], theirs[share].get(what, math.nan)
            results.append({
                "name": f"{what}, {share:.2f} of the experts held",
                "ours": round(pair[0], 2), "theirs": round(pair[1], 2), "ratio": round(pair[0] / pair[1], 3),
                "unit": "tokens/s", "layers_held_by_llamacpp": count, "hit_rate": round(ours["hit_rate"], 3),
            })  # fmt: skip
            say(json.dumps(results[-1]))
    loaded.runner.close()
    if args.json:
        report |= {"card": hardware.cards[0].name, "kernels": hardware.cpu.isa, "results": results}
        report["llama.cpp"] = {str(share): figures["command"] for share, figures in theirs.items()}
        args.json.write_text(json.dumps(report, indent=1))


def llama_cpp(program, path, on_processor, prompts):
    """Figures as of `measure`, of llama-bench with the experts of so many layers on the processor.

    Without weights laid out anew for the processor where that crashes (its AMX code does on some machines).
    """
    threads = str(len(os.sched_getaffinity(0)))
    command = [
        str(program), "-m", str(path), "-ngl", "99", "-ncmoe", str(on_processor), "-fa", "on", "-lm", "none",
        "-t", threads, "-b", "2048", "-ub", "2048", "-r", "3", "-o", "jsonl",
    ]  # fmt: skip
    figures = {"command": " ".join(command[3:])}
    wanted = [
        ("-p", ",".join(map(str, prompts)), "-n", "0"),
        ("-p", "0", "-n", str(DECODED), "-d", str(prompts[-1])),
    ]
    for more in wanted:
        for repack in ((), ("--repack", "0")):
            done = subprocess.run([*command, *more, *repack], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            say(f"llama-bench ended with {done.returncode}: {done.stderr[-800:]}")
        if repack:
            figures["command"] += " --repack 0"
        for line in done.stdout.splitlines():
            test = json.loads(line)
            what = f"prompt_{test['n_prompt']}" if test["n_prompt"] else "decode"
            figures[what] = statistics.median(test["samples_ts"])
            say(f"llama.cpp, {on_processor} layers on the processor: {what} {figures[what]:.1f}")
    return figures


if __name__ == "__main__":
    main()
