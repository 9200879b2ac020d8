"""The router's choice against the reference."""

from collections.abc import Iterator
from itertools import product

import torch

from strata.ops import router as reference
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.router import route

CASES = ((3, 512, 10, True), (4, 48, 8, False))  # rows, experts, used, normalised


def _run(device: torch.device):
    """Per case its name, what the kernel gave and the counts it left, and what the reference says."""
    for (rows, experts, used, normalize), force in product(CASES, (False, True)):
        generator = torch.Generator().manual_seed(experts)
        logits = torch.randn(rows, experts, generator=generator) * 3
        x, gate = torch.randn(rows, 600, generator=generator), torch.randn(1, 600, generator=generator) / 20
        gate = gate.bfloat16()
        logits[1, 5:20] = logits[1].max() + 1  # equal ones
        logits[2] = 0
        lane = torch.tensor([0, 1, -1, 1][:rows], dtype=torch.int32, device=device)
        counts = torch.zeros(experts, dtype=torch.int32, device=device)
        position = torch.arange(7, 7 + rows, dtype=torch.int32, device=device)
        trace = torch.stack([torch.randperm(experts, generator=generator)[:used] for _ in range(5)]).short()
        forced = trace.to(device) if force else None
        shared_gate = x.to(device), gate.to(device)
        got = route(logits.to(device), used, normalize, lane, counts, position, forced, shared_gate)
        if force:
            ids = trace[position.cpu() % 5].long()
            want = ids, reference.shares_of(logits, ids, normalize)
        else:
            want = reference.route(logits, used, normalize)
        some = (lane >= 0).cpu()
        counted = torch.bincount(want[0][some].flatten(), minlength=experts)
        got = [part[some.to(device)] for part in got]
        want = [part[some] for part in (*want, (x.double() @ gate.double().T)[:, 0].sigmoid().float())]
        name = f"{used} of {experts}{', forced' if force else ''}"
        yield name, (*got, counts), (*want, counted)


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for name, (ids, _, _, counts), (want_ids, _, _, counted) in _run(device):
        yield f"{name}, experts", ids, want_ids.int()
        yield f"{name}, counts", counts, counted.int()
    logits, lane = torch.full((1, 16), float("nan")), torch.zeros(1, dtype=torch.int32)
    ids, _, _ = route(
        logits.to(device), 2, True, lane.to(device), torch.zeros_like(logits[0], dtype=torch.int32).to(device)
    )
    yield "NaN", ids, torch.tensor([[0, 1]], dtype=torch.int32)


def _compare_weights(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for name, (_, weights, shared, _), (_, want, want_shared, _) in _run(device):
        yield f"{name}, weights", weights, want
        yield f"{name}, shared", shared, want_shared


CHECKS = [Check("router", _compare), Check("router, weights", _compare_weights, 1e-6)]


def _launch(experts: int, used: int, shared: bool) -> Launch:
    lane, counts = meta(4, dtype=torch.int32), meta(experts, dtype=torch.int32)
    gate = (meta(4, 2560), meta(1, 2560)) if shared else None
    return Launch(
        f"router {used} of {experts}",
        lambda: route(meta(4, experts), used, True, lane, counts, shared_gate=gate),
    )


LAUNCHES = [_launch(512, 10, True), _launch(128, 8, False), _launch(8, 2, False)]
