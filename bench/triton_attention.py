"""Time attention, its caches, the choice of blocks and sampling on the card at hand, after checks.

    PYTHONPATH=src python bench/triton_attention.py --json FILE

Shapes are those of Qwen3.8-Flash-Next (sparse attention, 24/2 heads of 256) and Qwen3.6-35B-A3B (dense, 16/2
of 256). A time is that of a call in a replayed graph of 20, which rotate over the caches of several layers
where the cache of one would stay in the card's L2.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from strata.ops.triton.attention import Parts, attend_prompt, attend_window, plan_attention
from strata.ops.triton.block_selection import Scratch, select_blocks
from strata.ops.triton.checks import attention as dense_checks
from strata.ops.triton.checks import sampling as sampling_checks
from strata.ops.triton.checks import sparse_attention as sparse_checks
from strata.ops.triton.kv import PagedKV, append_kv, gate_of
from strata.ops.triton.rotary import angles
from strata.ops.triton.sampling import Lanes, sample, settings
from strata.ops.triton.sampling import Scratch as SamplingScratch
from strata.ops.triton.sparse_attention import IndexState, append_index

CARD = torch.device("cuda")
CALLS = 20
DIM, KV_HEADS, PAGE, PAIRS, BUDGET = 256, 2, 16, 32, 512


def microseconds(call: Callable[[int], None]) -> float:
    """Of one of CALLS calls, each told its number, in a graph; the best of five replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(0)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(CALLS):
            call(i)
    times = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / CALLS)
    return min(times[1:])


def copy_speed() -> float:
    """GB/s of a copy on the card, bytes read and bytes written counted."""
    source, target = torch.empty(2, 1 << 30, dtype=torch.uint8, device=CARD)
    return 2 * source.nbytes / microseconds(lambda i: target.copy_(source)) / 1000


class Table:
    """Prints and keeps what was measured."""

    def __init__(self):
        self.copy = copy_speed()
        self.rows: list[dict] = []
        print(f"{torch.cuda.get_device_name()}, copies at {self.copy:.0f} GB/s")

    def add(self, name: str, call: Callable[[int], None], num_bytes: float = 0, flops: float = 0) -> None:
        """Time a call that has to move `num_bytes` and to compute `flops`."""
        us = microseconds(call)
        row = {"name": name, "us": round(us, 2)}
        if num_bytes:
            row |= {
                "GB/s": round(num_bytes / us / 1000),
                "of copy": round(num_bytes / us / 1000 / self.copy, 3),
            }
        if flops:
            row["TFLOP/s"] = round(flops / us / 1e6, 1)
        self.rows.append(row)
        print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)


class Layers:
    """Caches of several layers of one lane, so many that L2 does not hold them."""

    def __init__(self, tokens: int, dtype: torch.dtype):
        pages = tokens // PAGE
        self.table = torch.randperm(pages, device=CARD).int()[None].contiguous()
        token_bytes = 2 * KV_HEADS * DIM * dtype.itemsize
        self.token_bytes = token_bytes + (2 * KV_HEADS * DIM // 64 * 2 if dtype == torch.int8 else 0)
        self.count = min(CALLS, max(1, (256 << 20) // (tokens * token_bytes)))
        self.layers = [self._layer(pages, dtype) for _ in range(self.count)]

    def _layer(self, pages: int, dtype: torch.dtype) -> PagedKV:
        kv = PagedKV.new(self.table, pages, KV_HEADS, PAGE, DIM, dtype)
        for tensor in (kv.k, kv.v):
            tensor.copy_(
                (torch.randn(tensor.shape, device=CARD) * (30 if dtype == torch.int8 else 1)).to(dtype)
            )
        for scales in (kv.k_scales, kv.v_scales):
            if scales is not None:
                scales.fill_(1 / 30)
        return kv

    def __getitem__(self, i: int) -> PagedKV:
        return self.layers[i % self.count]


def rows_at(rows: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`lane` and `position` of a lane's rows, the last of them at position `last`."""
    position = torch.arange(last - rows + 1, last + 1, dtype=torch.int32, device=CARD)
    return torch.zeros(rows, dtype=torch.int32, device=CARD), position


def dense(table: Table, heads: int = 16) -> None:
    for dtype in (torch.float16, torch.int8):
        for tokens in (4096, 32768, 131072):
            layers = Layers(tokens, dtype)
            for rows in (1, 4):
                _dense_window(table, layers, heads, rows, tokens, f"{rows} at {tokens}, {dtype}")
            if tokens == 32768:
                for first in (0, tokens - 2048):
                    _dense_prompt(table, layers, heads, 2048, first, f"2048 at {first}, {dtype}")


def _dense_window(table: Table, layers: Layers, heads: int, rows: int, tokens: int, name: str) -> None:
    plan = plan_attention(layers[0], heads)
    lane, position = rows_at(rows, tokens - 1)
    q = torch.randn(rows, heads, DIM, device=CARD)
    out, parts = torch.empty(rows, heads * DIM, device=CARD), Parts.new(plan, rows, CARD)

    def call(i: int) -> None:
        attend_window(q, lane, position, layers[i], plan, DIM**-0.5, parts, out, q)

    table.add(f"dense window of {name}", call, tokens * layers.token_bytes)


def _dense_prompt(table: Table, layers: Layers, heads: int, rows: int, first: int, name: str) -> None:
    plan = plan_attention(layers[0], heads)
    lane, position = rows_at(rows, first + rows - 1)
    q = torch.randn(rows, heads, DIM, device=CARD)
    out = torch.empty(rows, heads * DIM, device=CARD)

    def call(i: int) -> None:
        attend_prompt(q, lane, position, layers[i], plan, DIM**-0.5, out, q)

    table.add(f"dense prompt of {name}", call, flops=4 * heads * DIM * rows * (first + rows / 2))


def sparse(table: Table, heads: int = 24) -> None:
    for tokens in (4096, 32768, 131072, 262144):
        for dtype in (torch.float16, torch.int8) if tokens == 32768 else (torch.float16,):
            layers = Layers(tokens, dtype)
            states = [IndexState.new(layers[i], 4, 128) for i in range(layers.count)]
            for state in states:
                state.block_keys.copy_(torch.randn(state.block_keys.shape, device=CARD))
            for rows in (1, 4, 2048):
                if rows < 16 or tokens == 32768:
                    _sparse(table, layers, states, heads, rows, tokens, f"{rows} at {tokens}, {dtype}")


def _sparse(
    table: Table, layers: Layers, states: list, heads: int, rows: int, tokens: int, name: str
) -> None:
    plan = plan_attention(layers[0], heads, block=4, budget=BUDGET)
    lane, position = rows_at(rows, tokens - 1)
    width = 2 * heads * DIM
    x = torch.randn(rows, width + 2 * KV_HEADS * DIM + 5 * 128, device=CARD)
    q, k, v, iq, raw = x.split([width, KV_HEADS * DIM, KV_HEADS * DIM, 512, 128], 1)
    cos, sin = torch.empty(2, rows, PAIRS, device=CARD)
    inv_freq = 1e7 ** -(torch.arange(PAIRS, device=CARD) / PAIRS)
    table.add(f"angles {name}", lambda i: angles(position, inv_freq, 1.0, cos, sin))
    q_out, iq_out = torch.empty(rows, heads, DIM, device=CARD), torch.empty(rows, 4, 128, device=CARD)
    norm, i_norm = torch.ones(DIM, device=CARD), torch.ones(128, device=CARD)
    scratch = Scratch(min(rows, 256), tokens // 4, BUDGET, CARD)
    blocks = torch.zeros(rows, BUDGET, dtype=torch.int32, device=CARD)
    out = torch.empty(rows, heads * DIM, device=CARD)
    gate = gate_of(q, heads)
    table.add(
        f"append_kv {name}",
        lambda i: append_kv(q, k, v, cos, sin, lane, position, layers[i], q_out, norm, norm, 1e-6),
    )
    rope = (cos, sin)

    def index(i: int) -> None:
        state = states[i % layers.count]
        append_index(iq, raw, rope, rope, lane, position, layers[i], state, i_norm, i_norm, 1e-6, iq_out)

    def choose(i: int) -> None:
        select_blocks(iq_out, lane, position, states[i % layers.count].block_keys, layers[i], scratch, blocks)

    def attend(i: int) -> None:
        if rows > 16:
            attend_prompt(q_out, lane, position, layers[i], plan, DIM**-0.5, out, gate, blocks)
        else:
            attend_window(q_out, lane, position, layers[i], plan, DIM**-0.5, parts, out, gate, blocks)

    parts = None if rows > 16 else Parts.new(plan, rows, CARD)
    keys = BUDGET * 4 + 3
    table.add(f"append_index {name}", index)
    table.add(f"select_blocks {name}", choose, tokens // 4 * 256, 2 * rows * tokens // 4 * 512)
    table.add(f"attend {name}", attend, rows * keys * layers.token_bytes, 4 * rows * heads * DIM * keys)


def sampling(table: Table, vocab: int = 248320) -> None:
    """Logits with the spread of a model's; each setting for 1 and 4 rows."""
    kinds = {
        "greedy": (settings(temperature=0.0), 0),
        "penalties": (settings(temperature=0.0, repetition_penalty=1.1), 0),
        "temperature": (settings(), 0),
        "top-k 20": (settings(0.7), 20),
        "top-p 0.95": (settings(top_p=0.95), 0),
        "top-k 20, top-p 0.8, min-p 0.05": (settings(0.7, top_p=0.8, min_p=0.05), 20),
    }
    for rows in (1, 4):
        ints = {"dtype": torch.int32, "device": CARD}
        logits = torch.randn(rows, vocab, device=CARD) * 2.5
        lane, zeros, ones = torch.arange(rows, **ints), torch.zeros(rows, **ints), torch.ones(rows, **ints)
        mask, chosen = torch.full((rows, vocab // 32), -1, **ints), torch.empty(rows, **ints)
        lanes, scratch = Lanes.new(rows, vocab, CARD), SamplingScratch.new(rows, vocab, CARD)
        for name, (numbers, top_k) in kinds.items():
            lanes.numbers[:] = torch.tensor(numbers, dtype=torch.float64)
            lanes.whole[:, 1] = top_k
            table.add(
                f"sample {rows}, {name}",
                partial(_sample, logits, lane, zeros, ones, mask, lanes, scratch, chosen),
            )


def _sample(logits, lane, zeros, ones, mask, lanes, scratch, chosen, i: int) -> None:
    sample(logits, lane, zeros, zeros, ones, mask, lanes, scratch, chosen)


def check() -> list[dict]:
    """Every check on the card."""
    results = []
    for part in (dense_checks, sparse_checks, sampling_checks):
        for check in part.CHECKS:
            outcomes = list(check.run(CARD))
            failed = [f"{outcome.case}: {outcome.error:.1e}" for outcome in outcomes if not outcome.passed]
            worst = max(outcome.error for outcome in outcomes)
            print(f"{check.name}: {len(outcomes)} cases, error {worst:.1e}, {failed or 'passed'}", flush=True)
            results.append({"check": check.name, "cases": len(outcomes), "error": worst, "failed": failed})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="where to write what was measured")
    arguments = parser.parse_args()
    begin = time.monotonic()
    checks = check()
    print(f"checked in {time.monotonic() - begin:.0f} s")
    table = Table()
    try:
        dense(table)
        sparse(table)
        sampling(table)
    finally:
        result = {"card": torch.cuda.get_device_name(), "copy GB/s": table.copy, "checks": checks}
        arguments.json.write_text(json.dumps(result | {"rows": table.rows}, indent=1))
        print(f"{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
