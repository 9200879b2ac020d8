"""Microseconds of the ops between the products, native and in torch, for one token and for a prompt.

    python bench/cpu_ops.py [--threads N] [--json FILE]

Sizes are SmolLM2-135M's, Qwen3-30B-A3B's and Qwen3-Next's. Native and torch take turns; each figure is the
fastest of many short runs, which other programs on the machine disturb least.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from strata.native import isa, ops, set_num_threads
from strata.ops import reference

PROMPT, CONTEXT = 512, 4096
Call = Callable[[object], object]  # of a set of ops


def fastest(call: Call, set_of_ops: object, seconds: float) -> float:
    """Microseconds of the fastest run within `seconds`."""
    best, end = float("inf"), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call(set_of_ops)
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def small_ops(n: int) -> Iterator[tuple[str, Call]]:
    x, weight = torch.randn(n, 576), torch.randn(576)
    yield f"rms_norm [{n}, 576]", lambda o: o.rms_norm(x, weight, 1e-5)
    yield f"add_rms_norm [{n}, 576]", lambda o: o.add_rms_norm(x, x, weight, 1e-5)
    q, cos, sin = torch.randn(n, 32, 128), torch.randn(n, 64), torch.randn(n, 64)
    yield f"rotate [{n}, 32, 128]", lambda o: o.rotate(q, cos, sin)
    gate = torch.randn(n, 1536)
    yield f"swiglu [{n}, 1536]", lambda o: o.swiglu(gate, gate)
    logits = torch.randn(n, 128)
    yield f"route [{n}, 128] to 8", lambda o: o.route(logits, 8)
    streams, gates, strength = torch.randn(n, 4, 2560), torch.randn(n, 4 * 2560), torch.randn(n, 4)
    yield f"read_streams [{n}, 4, 2560]", lambda o: o.read_streams(streams, gates)
    yield f"write_streams [{n}, 4, 2560]", lambda o: o.write_streams(streams, streams[:, 0], strength)


def attention(n: int, heads: int, kv_heads: int, dim: int, context: int) -> tuple[str, Call]:
    q, k = torch.randn(n, heads * dim), torch.randn(n, kv_heads * dim)
    cos, sin = torch.randn(n, dim // 2), torch.randn(n, dim // 2)
    keys, values = torch.randn(2, context, kv_heads, dim)
    name = f"attend_cached {n} of {context}, {heads}/{kv_heads} heads of {dim}"
    return name, lambda o: o.attend_cached(q, k, k, cos, sin, keys, values, context - n, dim**-0.5)


def sparse_attention(n: int) -> Iterator[tuple[str, Call]]:
    q, keys = torch.randn(n, 16, 128), torch.randn(CONTEXT, 2, 128)
    positions = torch.stack([torch.randperm(CONTEXT)[:2048] for _ in range(n)])
    visible = torch.ones(n, 2048, dtype=torch.bool)
    name = f"attend_gathered {n}, 2048 of {CONTEXT}"
    yield name, lambda o: o.attend_gathered(q, keys, keys, 0.1, positions, visible)
    queries, block_keys, complete = (
        torch.randn(n, 4, 128),
        torch.randn(CONTEXT, 128),
        torch.full((n,), CONTEXT),
    )
    name = f"select_blocks {n}, 128 of {CONTEXT}"
    yield name, lambda o: o.select_blocks(queries, block_keys, complete, 128)


def delta_net(n: int) -> tuple[str, Call]:
    key_heads, heads, dim = 16, 32, 128
    channels = (2 * key_heads + heads) * dim
    qkv, z, beta = torch.randn(n, channels), torch.randn(n, heads * dim), torch.randn(n, heads)
    weights = (torch.randn(channels, 4), -torch.rand(heads), torch.randn(heads), torch.randn(dim), 1e-6)
    past, state = torch.zeros(3, channels), torch.zeros(heads, dim, dim)
    return f"gated_delta_net {n}, {heads} heads", lambda o: o.gated_delta_net(
        qkv, z, beta, beta, *weights, past, state, 0, True, False, in_place=True
    )


def cases() -> Iterator[tuple[str, Call]]:
    for n in (1, PROMPT):
        yield from small_ops(n)
        yield attention(n, 9, 3, 64, PROMPT)
        yield attention(n, 32, 4, 128, PROMPT)
        yield attention(n, 32, 4, 128, CONTEXT)
        yield delta_net(n)
    yield from sparse_attention(1)
    yield from sparse_attention(64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    set_num_threads(args.threads)
    torch.set_num_threads(args.threads)
    print(f"{isa()} kernels, {args.threads} threads; microseconds")
    results = []
    for name, call in cases():
        turns = [
            (fastest(call, ops, args.seconds / 2), fastest(call, reference, args.seconds / 2))
            for _ in range(2)
        ]
        native, torch_time = (min(times) for times in zip(*turns, strict=True))
        results.append({"name": name, "native_us": native, "torch_us": torch_time})
        print(f"{name:46} {native:10.1f}  torch {torch_time:10.1f}  {torch_time / native:5.1f}x", flush=True)
    if args.json:
        machine = {"processor": platform.processor() or platform.machine(), "isa": isa()}
        args.json.write_text(
            json.dumps({"machine": machine, "threads": args.threads, "results": results}, indent=1)
        )


if __name__ == "__main__":
    main()
