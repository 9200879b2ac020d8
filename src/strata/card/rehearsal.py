"""A model's steps rehearsed: the engine's own code on tensors without memory, for a card that is not there.

So it is known what a model's steps launch and allocate before its weights are read, and in processes that do
not touch the card.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from strata.card.host_experts import JobPlaces
from strata.card.model import CardModel
from strata.card.prompts import Processor, PromptReader
from strata.card.sampling import CardSampler
from strata.card.weights import CardWeights
from strata.card.window import Window
from strata.experts.split import Costs
from strata.formats.checkpoint import Checkpoint, TensorInfo
from strata.models import load_model
from strata.native import Experts
from strata.ops.triton.float_matmul import WINDOW_ROWS


class Header(Checkpoint):
    """A checkpoint's keys, names and shapes, which another process can be sent; `read` gives shapes alone.

    Args:
        checkpoint: whose.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.path, self.architecture = Path(checkpoint.path), checkpoint.architecture
        self.metadata: dict[str, Any] = dict(checkpoint.metadata)
        self.tensors: dict[str, TensorInfo] = dict(checkpoint.tensors)

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        shape = self.tensors[name].shape
        return torch.empty(shape if index is None else shape[1:], device="meta")

    def raw(self, name: str, index: int | None = None) -> np.ndarray:
        """Zeros that take no memory."""
        info = self.tensors[name]
        shape = info.shape if index is None else info.shape[1:]
        return np.broadcast_to(np.uint8(0), (*shape[:-1], info.num_bytes // math.prod(info.shape[:-1])))

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return torch.empty(len(rows), self.tensors[name].shape[1], device="meta")


class _Now:
    """Copies that take no time."""

    def done(self) -> bool:
        return True

    def gate(self) -> None:
        pass

    def seconds_since(self, earlier: "_Now") -> float:
        return 0.0


class NoCard:
    """What `card.device.Card` does, without a card."""

    device = torch.device("meta")

    def empty(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: _Now | None = None) -> _Now:
        return _Now()

    def mark(self) -> _Now:
        return _Now()

    def synchronize(self) -> None:
        pass


class _Shapes(CardWeights):
    """Weights of a header."""

    def scale(self, name: str, index: int | None = None) -> torch.Tensor | None:
        found = super().scale(name, index)
        return None if found is None else torch.ones(found.shape)

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        return self.checkpoint.read(name, index)

    def load_experts(self, num_layers: int, progress: Callable[[int, int], None]) -> list[Experts]:
        shapes = [self.expert_shape(key) for key in range(num_layers)]
        experts = self.stacks[0][0].experts if shapes else 0
        self.store = SimpleNamespace(
            record_bytes=[shape.record_bytes for shape in shapes],
            addresses=np.zeros((num_layers, experts), np.int64),
            records=lambda layer: np.empty((0, shapes[layer].record_bytes), np.uint8),
        )
        return []

    def _pack_planes(self, name: str, planes: np.ndarray) -> None:
        pass


class _Model(CardModel):
    """Its experts are where they are needed."""

    def experts_of(self, layer: int) -> None:
        return None

    def keep(self, layers: Sequence[int]) -> None:
        """Forget all blocks but these."""
        self._decoder.blocks = [self._decoder.blocks[layer] for layer in layers]


@dataclass(frozen=True, slots=True)
class Stage:
    """What a rehearsal is of.

    Args:
        lanes, context, kv_type: of `CardModel`.
        take: of `CardModel`; where it has only zeros, the processor has no share.
        part_rows: of `PromptReader`.
    """

    lanes: int
    context: int
    kv_type: torch.dtype
    take: Sequence[int] | None
    part_rows: int


class Rehearsal:
    """A model on no card. Triton's driver must be one that launches nothing (`ops.triton.proof.fake_driver`).

    Args:
        header: of the model.
        stage: how it would be loaded.
    """

    def __init__(self, header: Header, stage: Stage):
        card = NoCard()
        weights = _Shapes(header, card)
        model = load_model(weights)
        layers = len(model.expert_layers())
        weights.load_experts(layers, lambda done, total: None)
        addresses, config = weights.store.addresses, model.config
        cache = SimpleNamespace(
            card=card,
            store=weights.store,
            table=SimpleNamespace(
                tensor=torch.empty(addresses.shape, dtype=torch.int64, device=card.device),
                current=lambda: addresses,
            ),
            slots=torch.empty(2, dtype=torch.int64, device=card.device),
            residency=SimpleNamespace(held=np.zeros(addresses.shape, bool)),
            policy=SimpleNamespace(frequencies=lambda: np.zeros(addresses.shape, np.float32)),
        )
        host = None
        if any(stage.take or ()):
            used = config.expert_used_count
            host = JobPlaces(card, config.embedding_length, WINDOW_ROWS, used)
        self._header = header
        self.model = _Model(
            model, weights, cache, stage.lanes, stage.context, stage.kv_type, host, stage.take
        )
        self._sampler = CardSampler(stage.lanes, config.vocab_size, card.device)
        processor = None if host is None else Processor(Costs(0, 0, 0, 0, 0), 1.0)
        self._reader = PromptReader(self.model, cache, 0, stage.part_rows, 1.0, processor)

    def without_repeats(self) -> "Rehearsal":
        """Leave out blocks whose tensors are like another's: they launch the same; returns itself."""
        kinds: dict[frozenset[tuple[str, tuple[int, ...], str]], int] = {}
        for layer in range(self.model.num_layers):
            begin = f"blk.{layer}."
            tensors = [t for name, t in self._header.tensors.items() if name.startswith(begin)]
            kinds.setdefault(frozenset((t.name[len(begin) :], t.shape, t.format) for t in tensors), layer)
        self.model.keep(list(kinds.values()))
        return self

    def windows(self, sizes: Iterable[int]) -> None:
        """Go through windows of so many rows."""
        for size in sizes:
            Window(self.model, self._sampler, size).step()

    def prompt(self, rows: int) -> None:
        """Go through a chunk of a prompt, and the choice of the token that follows it."""
        tables = (self.model.tokens, self.model.ngrams)
        embedding, ngrams = (
            None if table is None else torch.empty(rows, table.row_bytes, dtype=torch.uint8)
            for table in tables
        )
        accepted = torch.zeros(self.model.lanes, dtype=torch.int32, device="meta")
        self._sampler.commit(accepted)
        logits, _ = self._reader.read(0, 0, embedding, ngrams, accepted)
        self._sampler.choose_next(logits, 0, 0, 0, None)
