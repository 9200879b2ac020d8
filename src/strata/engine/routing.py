"""Routes by a trace in place of the router's choice, and the recording of what routers choose.

Made-up weights choose experts evenly, which no cache likes: forced to a trace, a synthetic model uses its
experts as a real one does.
"""

from collections.abc import Callable

import numpy as np
import torch

from strata.experts.trace import Trace, TraceError
from strata.layers.moe import Experts
from strata.models.base import Model
from strata.ops.router import shares_of

Route = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # as `Experts.route`


class TraceRouter:
    """Sends a layer's rows where a trace says: token after token, and at its end from its start again.

    Args:
        ids: int16 `[tokens, used]`.
        normalize: divide the chosen probabilities by their sum.
    """

    def __init__(self, ids: np.ndarray, normalize: bool):
        self._ids = torch.from_numpy(ids.astype(np.int64))
        self._normalize = normalize
        self._position = 0

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Experts.route`."""
        rows = torch.arange(self._position, self._position + logits.shape[0]) % len(self._ids)
        self._position += logits.shape[0]
        experts = self._ids[rows]
        return experts, shares_of(logits, experts, self._normalize)


def force_routes(model: Model, trace: Trace) -> None:
    """Have the routers of `model` choose as `trace` says from now on.

    Raises:
        TraceError: it is of another model: layers, experts or experts of a token differ.
    """
    layers = model.expert_layers()
    first = next(iter(layers.values()), None)
    experts, used = (len(first.counts.total), first.expert_used_count) if first else (0, 0)
    trace.check_model(len(layers), experts, used)
    for index, layer in enumerate(layers.values()):
        layer.route = TraceRouter(np.ascontiguousarray(trace.ids[:, index]), layer.normalize)


class RouteRecorder:
    """Keeps what the routers of `model` choose from now on; the rows of one call after the other."""

    def __init__(self, model: Model):
        self._layers = list(model.expert_layers().values())
        if not self._layers:
            raise TraceError("the model has no experts, so that there is no trace of them")
        self._ids: list[list[np.ndarray]] = [[] for _ in self._layers]
        for experts, ids in zip(self._layers, self._ids, strict=True):
            experts.route = _recording(experts, ids)

    def trace(self) -> Trace:
        """What was recorded."""
        layers = [np.concatenate(ids) for ids in self._ids]
        return Trace(np.stack(layers, axis=1), len(self._layers[0].counts.total))


def _recording(experts: Experts, kept: list[np.ndarray]) -> Route:
    route = experts.route

    def recorded(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids, shares = route(logits)
        kept.append(ids.numpy().astype(np.int16))
        return ids, shares

    return recorded
