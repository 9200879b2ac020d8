"""Replays of a routing trace under cache rules, token by token: misses in percent of all uses."""

import numpy as np

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


def _flat(trace: Trace) -> np.ndarray:
    """int64 `[tokens, layers * used]`: `layer * experts + expert`."""
    offsets = np.arange(trace.layers)[:, None] * trace.experts
    return (trace.ids.astype(np.int64) + offsets).reshape(len(trace), -1)


def _percent(trace: Trace, misses: list[int]) -> float:
    counted = misses[int(WARM * len(trace)) :]
    return 100 * sum(counted) / (len(counted) * trace.layers * trace.used)
