"""The same text from a card wherever experts are, whoever computes them, and whatever runs beside it.

    python bench/card_identity.py [--tokens 256] [--json FILE]

The embedded model (or `--model FILE`) answers greedily from four prompts: of 20 tokens (read by windows),
100 (a graph whose experts are read in place), 700 (a chunk with streamed experts), and the 700 again with
another end (from a checkpoint). Compared are, for shares of the experts in the card's memory and of the
missed ones that the processor computes: the tokens and the bits of all logits; alone and with three
neighbours; rows one by one and in windows of four; the 100 with their end by windows, the 700 in pieces that
are graphs; and after a second start. Ends with status 1 if one differs.
"""

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import torch

from strata.card.loading import find_card, load_on_card
from strata.engine.card_lane import card_lanes
from strata.engine.messages import SamplingParams
from strata.hardware.machine import this_machine
from strata.models import open_checkpoint
from strata.native import isa
from strata.options import EMBEDDED_MODEL
from strata.plan import Wishes

PROMPTS = {"20": 20, "100": 100, "700": 700}
# Another way to one of these: name, tokens that are read before the others
WAYS = {"100, by windows": 60, "700, in pieces": 300}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--model", type=Path, default=EMBEDDED_MODEL)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="two placements")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    placements = [(held, cpu) for held in (0.0, 0.1, 0.5, 1.0) for cpu in (0.0, 0.5, 1.0)]
    placements += [(0.5, 0.5)]  # a second start
    placements = [(0.0, 0.0), (0.5, 0.5)] if args.quick else placements
    first, results = None, []
    for held, cpu in placements:
        start = time.perf_counter()
        found = run(args, held, cpu)
        first = first or found
        for name, digest in found.items():
            same = digest == first[name.partition(",")[0]]
            results.append({"held": held, "cpu_share": cpu, "run": name, "same": same})
            print(
                f"{held:.1f} held, processor {cpu:.1f}: {name}: {'same' if same else 'DIFFERENT'}", flush=True
            )
        print(f"  {time.perf_counter() - start:.1f} s", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return 0 if all(result["same"] for result in results) else 1


def run(args, held, cpu):
    """Digests of tokens and logits by name."""
    hardware = this_machine(isa=isa())
    number, described = find_card(hardware)
    hardware = msgspec.structs.replace(hardware, cards=(described,))
    checkpoint = open_checkpoint(args.model)
    wishes = Wishes(context=4096, lanes=4, vram_budget_bytes=8 << 30)
    loaded = load_on_card(
        checkpoint, hardware, number, wishes, lambda *_: None, cpu_share=cpu, held_share=held, threads=4
    )
    runner = loaded.runner
    print(f"{runner.cache.residency.held.mean():.2f} of the experts in slots", flush=True)
    lanes = list(card_lanes(runner, 256 << 20, 1024))
    rng = np.random.default_rng(0)
    vocab = runner.model.model.config.vocab_size
    long = rng.integers(300, vocab, 900).tolist()
    found, texts = {}, {}
    for name, length in PROMPTS.items():
        texts[name], found[name] = answer(lanes, runner, [long[:length]], args.tokens)
    for name, begun in WAYS.items():
        lanes[0].reset()
        read(lanes[0], long[:begun])
        _, found[name] = answer(lanes, runner, [long[: PROMPTS[name.partition(",")[0]]]], args.tokens)
    lanes[0].reset()
    read(lanes[0], long[:700])
    branch = long[:600] + long[700:750]  # returns to the checkpoint at 512
    assert lanes[0].timeline.plan(branch).how == "checkpoint"
    texts["branch"], found["branch"] = answer(lanes, runner, [branch], args.tokens)
    lanes[0].reset()
    _, again = answer(lanes, runner, [branch], args.tokens)
    assert again == found["branch"], "a resumed checkpoint gives other text"
    others = [rng.integers(300, vocab, n).tolist() for n in (33, 300, 80)]
    for name, length in PROMPTS.items():
        _, found[f"{name}, neighbours"] = answer(lanes, runner, [long[:length], *others], args.tokens)
    for name in ("20", "700"):
        length = PROMPTS[name]
        found[f"{name}, windows of four"] = verify(lanes[0], runner, long[:length], texts[name])
    print(f"  {runner.cache.hits} hits, {runner.cache.misses} misses, text {texts['20'][:6]}", flush=True)
    runner.close()
    return found


def read(lane, prompt):
    lane.begin(prompt, SamplingParams(temperature=0.0, logprobs=0))
    while lane.prefill() < len(prompt):
        pass


def answer(lanes, runner, prompts, num_tokens):
    """Tokens and digest of the first prompt's answer; the others are answered beside it."""
    lanes = lanes[: len(prompts)]
    for lane, prompt in zip(lanes, prompts, strict=True):
        if lane is not lanes[0] or len(prompts) > 1:
            lane.reset()
        read(lane, prompt)
    tokens, digest = [], hashlib.sha256()
    for _ in range(num_tokens):
        for lane in lanes:
            lane.prepare()
        for index, lane in enumerate(lanes):
            if index == 0 and lane._chosen is None:
                lane._compute()
            if index == 0:
                digest.update(lane._top.tobytes())
                digest.update(str(lane._chosen).encode())
            token = lane.decode()[0]
            if index == 0:
                tokens.append(token.id)
    return tokens, digest.hexdigest()


def verify(lane, runner, prompt, text):
    """The digest that `answer` gives, from windows of four rows over a text that is known."""
    lane.reset()
    read(lane, prompt)
    digest = hashlib.sha256()
    digest.update(lane._top.tobytes())
    digest.update(str(lane._chosen).encode())
    rows = text[:-1]
    for start in range(0, len(rows), 4):
        part = rows[start : start + 4]
        chosen = runner.window([lane.timeline.append(token) for token in part])
        for index, token in enumerate(chosen):
            digest.update(runner.logits(index).tobytes())
            digest.update(str(token).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
