"""Which missed experts the processor computes and which the card fetches: both should end together.

Either way gives the same bits, so this decides about time alone, for one layer of one window.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Costs:
    """What a missed expert costs, in seconds.

    Args:
        handshake: until the processor has seen a job, and until the card has seen its end.
        cpu: the processor, for an expert's first row.
        cpu_row: the processor, for each further row.
        link: the card, to bring the expert from host memory and to compute it, however many rows use it.
        host: reading the expert's bytes at all that main memory gives, which both ways share.
        card: what the card has to do besides in a layer: held experts, the shared one.
    """

    handshake: float
    cpu: float
    cpu_row: float
    link: float
    host: float
    card: float = 0.0


def split(rows: np.ndarray, costs: Costs) -> np.ndarray:
    """Indices of the missed experts that the processor takes, ascending.

    It takes those that the fewest rows use (of equal ones the first): its time grows with rows, the
    link's does not. Where two splits end at the same time, it takes fewer. That all are read from one memory
    does not count: what cores alone get of it (`Costs.host`) bounds every split alike, and a card beside them
    may get more.

    Args:
        rows: int `[misses]`, how many rows use each missed expert of the layer.
        costs: of an expert of this layer.
    """
    order = np.argsort(rows, kind="stable")
    return np.sort(order[: num_taken(rows[order], costs)])


def num_taken(rows: np.ndarray, costs: Costs, most: int | None = None) -> int:
    """How many of the missed experts the processor takes, the first ones, of which it may have `most`."""
    return int(np.argmin(_later(rows, costs)[: None if most is None else most + 1]))


def finish_times(rows: np.ndarray, costs: Costs) -> np.ndarray:
    """Seconds until the layer is done if the processor takes the first 0, 1, ..., all: `[misses + 1]`."""
    return np.maximum(_later(rows, costs), costs.host * len(rows))


def _later(rows: np.ndarray, costs: Costs) -> np.ndarray:
    """When the later of both is done, with all the memory's speed for each."""
    misses = len(rows)
    cpu = np.zeros(misses + 1)
    cpu[1:] = costs.handshake + np.cumsum(costs.cpu + costs.cpu_row * (rows - 1))
    card = costs.card + costs.link * np.arange(misses, -1, -1)
    return np.maximum(cpu, card)
