"""What an engine computes with, once a model is loaded: on a card, on the processor, or from a script."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from strata.engine.lane import Lane
from strata.engine.messages import ExpertLayout, MemoryPart
from strata.layers.expert_counts import ExpertCounts
from strata.models import Model


def _nothing() -> None:
    """There is nothing to close, or nothing to tell."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """Lanes, and what to tell the person about the model that they share.

    Attributes:
        lanes: each answers one request at a time.
        model: that they share.
        context: most tokens that a lane has room for.
        memory: what it takes.
        kernels: what computes.
        experts: where they are; None: a dense model.
        counts: how often each expert was chosen, by layers that have some.
        held: which experts a card has in its own memory, bool `[layers * experts]`; None without a card.
        found: how many experts steps have found there, and not found; None without a card.
        close: to be called when nothing is computed any more.
    """

    lanes: list[Lane]
    model: Model
    context: int
    memory: list[MemoryPart]
    kernels: str
    experts: ExpertLayout | None
    counts: list[ExpertCounts] = field(default_factory=list)
    held: Callable[[], np.ndarray | None] = _nothing
    found: Callable[[], tuple[int, int] | None] = _nothing
    close: Callable[[], None] = _nothing
