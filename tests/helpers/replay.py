"""Replays of a routing trace under cache rules, token by token: misses in percent of all uses."""

import numpy as np

from strata.experts.policy import Policy, Residency, slot_classes
from strata.experts.trace import Trace

WARM = 0.3  # share of the trace that is not counted


def lru(trace: Trace, shares: list[float]) -> list[float]:
    """The least recently used of all layers' experts goes; a token's layers follow each other."""
    num_experts = trace.layers * trace.experts
    last = np.full(num_experts, -1, np.int64)
    order = np.repeat(np.arange(trace.layers), trace.used)
    distances = []
    for token, used in enumerate(_flat(trace)):
        if token >= WARM * len(trace):
            distances.append(num_experts - np.searchsorted(np.sort(last), last[used], side="right"))
        last[used] = token * trace.layers + order
    stack = np.concatenate(distances)
    return [100 * float((stack >= share * num_experts).mean()) for share in shares]


def belady(trace: Trace, share: float) -> float:
    """The one that is not needed for longest goes: the least that any rule can miss."""
    flat, num_experts = _flat(trace), trace.layers * trace.experts
    next_use = np.full(num_experts, 1 << 40, np.int64)
    after = np.empty(flat.shape, np.int64)
    for token in range(len(trace) - 1, -1, -1):
        after[token] = next_use[flat[token]]
        next_use[flat[token]] = token
    held, capacity, misses = np.zeros(num_experts, bool), int(share * num_experts), []
    for token, used in enumerate(flat):
        misses.append((~held[used]).sum())
        next_use[used] = after[token]
        held[used] = True
        ids = np.flatnonzero(held)
        surplus = len(ids) - capacity
        if surplus > 0:
            held[ids[np.argpartition(-next_use[ids], surplus - 1)[:surplus]]] = False
    return _percent(trace, misses)


def ours(
    trace: Trace,
    share: float,
    moves_per_layer: float = 0.5,
    expert_bytes: int = 1000,
    learned: np.ndarray | None = None,
) -> float:
    """`Policy` with moves that land one window later, while the next window is under way."""
    num_experts = trace.layers * trace.experts
    sizes = np.full(num_experts, expert_bytes)
    slack = 2 * max(1, int(moves_per_layer * trace.layers))
    slots = slot_classes(sizes, int((share * num_experts + slack) * 1024))
    residency, policy = Residency(sizes, slots, slack), Policy(num_experts, learned)
    for move in residency.fill(np.random.default_rng(0).permutation(num_experts)):
        residency.land(move)
    misses, under_way = [], []
    for token, used in enumerate(_flat(trace)):
        window = residency.launch()
        misses.append((residency.slot_of[used] < 0).sum())
        policy.observe(trace.counts(token, token + 1).reshape(-1))
        for move in under_way:
            residency.land(move)
        residency.finish(window)
        under_way = policy.moves(residency, slack // 2)
    return _percent(trace, misses)


def _flat(trace: Trace) -> np.ndarray:
    """int64 `[tokens, layers * used]`: `layer * experts + expert`."""
    offsets = np.arange(trace.layers)[:, None] * trace.experts
    return (trace.ids.astype(np.int64) + offsets).reshape(len(trace), -1)


def _percent(trace: Trace, misses: list[int]) -> float:
    counted = misses[int(WARM * len(trace)) :]
    return 100 * sum(counted) / (len(counted) * trace.layers * trace.used)
