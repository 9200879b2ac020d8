"""The router's choice against the reference."""

from collections.abc import Iterator

import torch

from strata.ops import router as reference
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.router import route

CASES = ((3, 512, 10, True), (4, 48, 8, False))  # rows, experts, used, normalised


def _run(device: torch.device):
    """Per case its name, what the kernel gave and the counts it left, and what the reference says."""
    for rows, experts, used, normalize in CASES:
        generator = torch.Generator().manual_seed(experts)
        logits = torch.randn(rows, experts + 1, generator=generator) * 3
        logits[1, 5:20] = logits[1].max() + 1  # equal ones
        logits[2, :experts] = 0
        lane = torch.tensor([0, 1, -1, 1][:rows], dtype=torch.int32, device=device)
        counts = torch.zeros(experts, dtype=torch.int32, device=device)
        got = route(logits.to(device), used, normalize, lane, counts)
        want = reference.route(logits[:, :experts], used, normalize)
        counted = torch.bincount(want[0][lane.cpu() >= 0].flatten(), minlength=experts)
        yield f"{used} of {experts}", (*got, counts), (*want, logits[:, experts].sigmoid(), counted)


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
LAUNCHES = [
    Launch(
        "router 10 of 512",
        lambda: route(meta(4, 513), 10, True, meta(4, dtype=torch.int32), meta(512, dtype=torch.int32)),
    )
]
