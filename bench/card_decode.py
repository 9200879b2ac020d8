"""Decoding on a card: the embedded model against the processor, then Qwen3.8-Flash-Next's real geometry.

    python bench/card_decode.py [--layers 48] [--steps 64] [--share 1.0] [--json FILE]

First the trained tiny model: logits of windows of 1, 3 and 4 rows beside the processor's. Then made-up
weights in the real geometry, experts in IQ3_XXS: a step of one row is captured and replayed. Of the experts'
bytes `--share` is in the card's memory.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from strata.card.cache import ExpertCache
from strata.card.device import Card
from strata.card.host_experts import HostExperts
from strata.card.model import CardModel
from strata.card.weights import CardWeights
from strata.card.window import Row, Window
from strata.engine.loading import load
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.synthetic import SyntheticCheckpoint
from strata.models import load_model, open_checkpoint
from strata.options import EMBEDDED_MODEL


def say(*words):
    print(*words, flush=True)


def build(checkpoint, share, lanes=1, context=4096, max_rows=4, cpu_share=0.0):
    start = time.perf_counter()
    card = Card()
    weights = CardWeights(checkpoint, card)
    model = load_model(weights)
    layers = weights.load_experts(lambda *_: None)
    say(f"experts in host memory after {time.perf_counter() - start:.1f} s")
    total = sum(weights.store.record_bytes) * weights.store.addresses.shape[1]
    cache = ExpertCache(card, weights.store, int(share * total), slack=0 if share >= 1 else 32)
    cache.fill(range(weights.store.addresses.size))
    say(
        f"{cache.residency.held.mean():.2f} of the experts in {cache.num_bytes / 1e9:.2f} GB of slots "
        f"after {time.perf_counter() - start:.1f} s"
    )
    host = None
    if cpu_share:
        used = model.config.expert_used_count
        take = [round(cpu_share * missed) for missed in range(max_rows * used + 1)]
        host = HostExperts(card, layers, model.config.embedding_length, max_rows, used, take)
    on_card = CardModel(model, weights, cache, lanes, context, host=host)
    say(f"dense {weights.dense_bytes / 1e9:.2f} GB, in all {torch.cuda.memory_allocated() / 1e9:.2f} GB")
    return on_card, cache


def rows_of(on_card, tokens, first, history, lane=0):
    model = on_card.model
    ids = torch.tensor(tokens)
    embedding = model.token_embd(ids)
    ngrams = [None] * len(tokens)
    if model.ple is not None:
        window = model.ple.table.new_window()
        past = torch.tensor(history[-len(window) :], dtype=window.dtype)
        if len(past):
            window[-len(past) :] = past
        ngrams = model.ple.table(ids, window)
    return [Row(lane, first + i, embedding[i], ngrams[i]) for i in range(len(tokens))]


def check_tiny():
    first = None
    for share, cpu_share in ((0.5, 0.0), (0.0, 0.0), (1.0, 0.0), (0.1, 0.5), (0.5, 1.0), (0.0, 1.0)):
        logits = logits_of_tiny(share, cpu_share)
        first = logits if first is None else first
        say(f"tiny, {share} held, the processor takes {cpu_share}: same bits {np.array_equal(first, logits)}")


def logits_of_tiny(share, cpu_share):
    checkpoint = open_checkpoint(EMBEDDED_MODEL)
    on_card, _ = build(checkpoint, share, lanes=2, context=256, cpu_share=cpu_share)
    reference = load(open_checkpoint(EMBEDDED_MODEL), 8, False, None, lambda *_: None).model
    tokens = [(37 * i) % 7000 + 300 for i in range(24)]
    want = reference.forward(tokens, reference.new_state(), all_logits=True).numpy()
    windows = {n: Window(on_card, n) for n in (1, 3, 4)}
    results = {}
    for name, cuts in {"one by one": [1] * 24, "four": [4] * 6, "mixed": [1, 3, 4, 4, 1, 1, 3, 3, 4]}.items():
        on_card.reset(0)
        got, at, accepted = [], 0, [0, 0]
        for n in cuts:
            windows[n].run(rows_of(on_card, tokens[at : at + n], at, tokens[:at]), accepted)
            got.append(windows[n].wait()[:n].copy())
            at, accepted = at + n, [n, 0]
        results[name] = np.concatenate(got)
        error = np.abs(results[name] - want).max() / np.abs(want).max()
        choices = (results[name].argmax(1) == want.argmax(1)).mean()
        same = np.array_equal(results[name], results["one by one"])
        say(f"tiny, {name}: error {error:.2e}, same choices {choices:.2f}, same bits as one by one {same}")
    if on_card.host is not None:
        on_card.host.close()
    on_card.weights.store.close()
    return results["one by one"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--cpu-share", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    check_tiny()
    geometry = replace(GEOMETRIES["qwen3.8-flash-next"], layers=args.layers)
    geometry = replace(geometry, hyper=replace(geometry.hyper, ngram_rows=100_000))
    checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, "iq3_xxs"))
    on_card, _ = build(checkpoint, args.share, cpu_share=args.cpu_share)
    start = time.perf_counter()
    window = Window(on_card, 1)
    say(f"captured in {time.perf_counter() - start:.1f} s")
    tokens = np.random.default_rng(0).integers(0, geometry.vocab, args.steps + 8).tolist()
    times = []
    for i, token in enumerate(tokens):
        rows = rows_of(on_card, [token], i, tokens[:i])
        t = time.perf_counter()
        window.run(rows, [min(i, 1)])
        logits = window.wait()
        times.append(time.perf_counter() - t)
        assert np.isfinite(logits).all()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(20):
        window._graph.replay()
    end.record()
    end.synchronize()
    replay = begin.elapsed_time(end) / 20
    step = 1e3 * statistics.median(times[8:])
    say(
        f"{args.layers} layers: a step takes {step:.2f} ms with its waiting, {replay:.2f} ms on the card: "
        f"{1e3 / step:.0f} tokens/s"
    )
    if args.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            window._graph.replay()
            torch.cuda.synchronize()
        say(profile.key_averages().table(sort_by="cuda_time_total", row_limit=30, max_name_column_width=60))
    if args.json:
        args.json.write_text(json.dumps({"layers": args.layers, "step_ms": step, "card_ms": replay}))


if __name__ == "__main__":
    main()
