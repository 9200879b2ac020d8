"""Tokens per second on a card, with the memory of smaller ones: a known model with made-up weights.

    python bench/card_speed.py [--model NAME] [--quant NAME] [--budgets all,24576,16384,12288] [--layers N]
                               [--dense q8_0] [--kv int8] [--depths 4096,131072] [--json FILE]

The real geometry, of Qwen3.8-Flash-Next in IQ3_XXS unless another is named. Its routers' choices are forced
to a made-up trace with the published skew and persistence (`strata.experts.trace`). The model is loaded once,
as for 24 GiB (for `all` alone, as for the whole card: then the processor has no share); for each budget (MiB
of the card that Strata may use, its runtime included) the experts' slots are given out anew, in the order of
an earlier part of the trace. Then prompts are read and tokens decoded while the policy
goes on exchanging experts. Medians of three prompts, and of the decoded tokens' times. With `--depths`,
tokens are also decoded behind so many tokens that were not read: keys and values of all positions are made
up, so that 128K tokens cost nothing; the recurrent states are those of a beginning.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import torch

from strata.card import loading
from strata.card.mixers import CardAttention
from strata.choices import KV, Dense
from strata.engine.card_lane import card_lanes
from strata.engine.messages import SamplingParams
from strata.experts.trace import Trace
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.requantized import with_dense
from strata.formats.synthetic import SyntheticCheckpoint
from strata.hardware.bandwidth import memory_bandwidth
from strata.hardware.machine import this_machine
from strata.native import isa
from strata.plan import Wishes

MIB = 1 << 20
LEARNED = 2048  # tokens of the trace that slots are given out by at first
TRACED = 8192  # tokens that are then used by position, from the start again at the end


def say(*words):
    print(*words, flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budgets", default="all,24576,16384,12288")
    parser.add_argument("--model", choices=GEOMETRIES, default="qwen3.8-flash-next")
    parser.add_argument("--quant", default="iq3_xxs")
    parser.add_argument("--dense", choices=get_args(Dense), default="as_stored")
    parser.add_argument("--layers", type=int, help="the model's own, unless given")
    parser.add_argument("--prompts", type=lengths, default=[512, 4096], metavar="N,N")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--context", type=int, default=40960, help="more where --depths are larger")
    parser.add_argument("--kv", choices=get_args(KV), default="f16")
    parser.add_argument("--depths", type=lengths, default=[], metavar="N,N")
    parser.add_argument("--cpu-share", type=float)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    checkpoint = made_up(args.model, args.quant, args.layers, ngram_rows=100_000)
    planned = None if args.budgets == "all" else 24576 * MIB
    context = max(args.context, *(depth + args.tokens + 1 for depth in args.depths), 0)
    loaded, hardware, learned = load(checkpoint, context, planned, args.cpu_share, args.dense, args.kv)
    card, cpu = hardware.cards[0], hardware.cpu
    cache = loaded.runner.cache
    without_slots = card.free_bytes - torch.cuda.mem_get_info()[0] - cache.num_bytes
    total, results = int(cache.residency.size.sum()), []
    for budget in args.budgets.split(","):
        hold(cache, learned, total if budget == "all" else int(budget) * MIB - without_slots)
        result = measure(loaded.runner, args.prompts, args.tokens)
        result |= measure_behind(loaded.runner, args.depths, args.tokens)
        if args.profile:
            profile_step(loaded.runner)
            profile_prompt(loaded.runner, min(args.prompts[-1], 4096))
        result |= {"budget_mib": budget, "slots": cache.num_bytes / 1e9, "held": cache.residency.held.mean()}
        results.append(result)
        say(json.dumps(result, default=float))
    if args.json:
        report = {"card": card.name, "cores": cpu.cores, "isa": cpu.isa, "memory": loaded.memory}
        report |= {"model": args.model, "quant": args.quant, "layers": checkpoint.geometry.layers}
        report |= {"dense": args.dense, "kv": args.kv, "context": context}
        report |= {"chunk": loaded.plan.prefill_chunk, "results": results}
        args.json.write_text(json.dumps(report, indent=1, default=float))
    loaded.runner.close()


def lengths(text):
    """Numbers of tokens, as options give them."""
    return [int(length) for length in text.split(",")]


def made_up(model, quant, layers=None, **hyper):
    """A model with made-up weights; `hyper` changes what only some have."""
    geometry = GEOMETRIES[model]
    geometry = replace(geometry, layers=layers or geometry.layers)
    if geometry.hyper is not None:
        geometry = replace(geometry, hyper=replace(geometry.hyper, **hyper))
    return SyntheticCheckpoint(geometry, find_mix(geometry, quant))


def made_up_routes(geometry):
    """A trace, and how often an earlier part of it used each expert, float32 `[layers * experts]`."""
    trace = Trace.generate(LEARNED + TRACED, geometry.layers, geometry.expert_count, geometry.used)
    learned = trace.counts(0, LEARNED).reshape(-1).astype(np.float32)
    return Trace(trace.ids[LEARNED:], trace.experts), learned


def load(
    checkpoint, context, budget, cpu_share=None, dense="as_stored", kv="f16", routes=None, held_share=None,
    forced=True,
):  # fmt: skip
    """The model on the card, forced to a trace; the machine; how often an earlier part used each expert.

    `routes` are as of `made_up_routes`, which makes them otherwise. Give `held_share` to hold less later than
    there is room for: where all experts are held, the processor has no share.
    """
    start, geometry = time.perf_counter(), checkpoint.geometry
    hardware = this_machine(isa=isa())
    found = loading.find_card(hardware)
    if found is None:
        raise SystemExit("PyTorch sees no card: there is nothing to measure")
    number, card = found
    cpu = msgspec.structs.replace(hardware.cpu, memory_bandwidth=memory_bandwidth(hardware.cpu.cores))
    hardware = msgspec.structs.replace(hardware, cards=(card,), cpu=cpu)
    say(f"{card.name}, {cpu.cores} cores {cpu.isa}, memory {cpu.memory_bandwidth / 1e9:.0f} GB/s")
    trace, learned = routes or made_up_routes(geometry)
    say(f"trace after {time.perf_counter() - start:.1f} s")
    wishes = Wishes(context=context, lanes=1, vram_budget_bytes=budget, kv=kv)
    loaded = loading.load_on_card(
        with_dense(checkpoint, dense), hardware, number, wishes, lambda *_: None, frequency=learned,
        trace=trace if forced else None, cpu_share=cpu_share, held_share=held_share,
    )  # fmt: skip
    misses = loaded.runner.model.memory.misses
    say(f"loaded after {time.perf_counter() - start:.1f} s; {loaded.memory}")
    say(f"processor takes {misses.take[:21].tolist() if misses else 0} of 0, 1, ... 20 missed experts")
    return loaded, hardware, learned


def hold(cache, learned, room):
    """Give out slots of so many bytes anew."""
    total = int(cache.residency.size.sum())
    torch.cuda.synchronize()
    cache.policy.frequency[:], cache.policy.recent[:] = learned, 0
    cache.allocate(min(room, total), 0 if room >= total else 64)
    cache.fill(np.argsort(-cache.policy.frequency, kind="stable").tolist())


def measure(runner, prompts, tokens):
    """Tokens per second of prompts of these lengths, and of as many tokens behind the last.

    Medians of three, behind one that does not count, as llama-bench has it; of the longest there is one.
    """
    lane = next(iter(card_lanes(runner, 0, 8192)))
    vocab = runner.model.model.config.vocab_size
    rng, result = np.random.default_rng(0), {}
    for length in prompts:
        times = []
        for _ in range(4 if length <= 4096 else 1):
            lane.reset()
            prompt = rng.integers(0, vocab, length).tolist()
            start = time.perf_counter()
            lane.begin(prompt, SamplingParams(temperature=0.0))
            while lane.prefill() < length:
                pass
            times.append(time.perf_counter() - start)
        result[f"prompt_{length}"] = length / statistics.median(times[1:] or times)
    return result | decode(runner, lane, tokens)


def measure_behind(runner, depths, tokens):
    """Tokens per second of so many tokens, behind each of these numbers of tokens that were not read."""
    lane = next(iter(card_lanes(runner, 0)))
    rng, result = np.random.default_rng(0), {}
    for depth in depths:
        lane.reset()
        make_up_past(runner.model)
        prompt = rng.integers(0, runner.model.model.config.vocab_size, depth + 1).tolist()
        lane.timeline.tokens = prompt[:-1]  # as if they were in the lane's state
        lane.begin(prompt, SamplingParams(temperature=0.0))
        lane.prefill()
        result |= {f"{name}_behind_{depth}": value for name, value in decode(runner, lane, tokens).items()}
    return result


def decode(runner, lane, tokens):
    """Tokens per second of so many tokens behind those in a lane."""
    cache, times = runner.cache, []
    cache.hits = cache.misses = 0
    for _ in range(tokens):
        start = time.perf_counter()
        lane.prepare()
        lane.decode()
        times.append(time.perf_counter() - start)
    return {
        "decode": 1 / statistics.median(times[4:]),
        "decode_mean": (len(times) - 4) / sum(times[4:]),
        "hit_rate": cache.hits / max(1, cache.hits + cache.misses),
    }


def make_up_past(model):
    """Give every position of a card's model keys, values and what sparse attention chooses by."""
    for block in model._decoder.blocks:
        if isinstance(block.mixer, CardAttention):
            index = block.mixer._index
            fill(block.mixer._kv, None if index is None else index._state)


def fill(kv, index):
    """Write values of deviation one or so into `PagedKV` and `IndexState` (or None)."""
    for pages, scales in ((kv.k, kv.k_scales), (kv.v, kv.v_scales)):
        if scales is None:
            pages.normal_()
        else:
            pages.random_(-127, 128)
            scales.fill_(1 / 64)
    if index is not None:
        index.ring.normal_()
        index.block_keys.normal_()


def profile_step(runner):
    """What of a step is the card's, in replays one behind the other, and what launching it takes."""
    graph, replays = runner._windows[1]._graph, 20
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    torch.cuda.synchronize()
    launches = []
    first.record()
    for _ in range(replays):
        start = time.perf_counter()
        graph.replay()
        launches.append(time.perf_counter() - start)
    last.record()
    torch.cuda.synchronize()
    alone = first.elapsed_time(last) / replays
    say(f"a step alone {alone:.3f} ms; its first launch took the host {1e3 * launches[0]:.3f} ms")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    say_kernels(profile)


def profile_prompt(runner, length):
    """What of a prompt's time each kernel takes."""
    lane = next(iter(card_lanes(runner, 0, 8192)))
    lane.reset()
    lane.begin(list(range(length)), SamplingParams(temperature=0.0))
    say(f"a prompt of {length} tokens:")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        while lane.prefill() < length:
            pass
        torch.cuda.synchronize()
    say_kernels(profile)


def say_kernels(profile):
    """A line for each kernel: its share, its time in all and for a launch, and its launches."""
    events = [event for event in profile.key_averages() if event.device_time_total]
    total, count = (sum(getattr(event, name) for event in events) for name in ("device_time_total", "count"))
    say(f"{count} kernels and copies, {total / 1000:.3f} ms")
    for event in sorted(events, key=lambda event: -event.device_time_total)[:30]:
        time = event.device_time_total
        each = f"{event.count:5} of {time / event.count:9.2f} us"
        say(f"{time / total:6.1%} {time / 1000:9.3f} ms {each}  {event.key[:60]}")


if __name__ == "__main__":
    main()
