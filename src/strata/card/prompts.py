"""Prompts on a card: all tokens of a chunk pass a layer before any passes the next.

So the layer's experts are needed for a short time only. Those that the card does not hold are copied beside
the computation of the layers before, into one half of a ring; the other half has the layer's that computes.
What a half has no room for, or the link no time, is read in host memory, where it is, or computed by the
processor: then only what is used.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from strata.card.cache import ExpertCache
from strata.card.decoder import Residual
from strata.card.device import Ticket
from strata.card.hyper_decoder import Streams
from strata.card.model import CardModel
from strata.card.pace import Pace
from strata.card.prompt_graph import ShortPrompts
from strata.card.prompt_share import PromptShare
from strata.card.rows import Rows
from strata.experts.split import Costs
from strata.prompt_memory import SHORT, unpacked_bytes

_FIRST = 0.5  # of a layer's time is over before its experts are wanted

Saved = list[list[torch.Tensor]]  # of each layer, what `CardModel.state_of` gave, in host memory


@dataclass(frozen=True, slots=True)
class Processor:
    """What decides about the processor's share of a prompt's missed experts.

    Args:
        costs: of an expert, computed there or read in place.
        copy: bytes in a second that copies to the ring get.
        share: of the missed experts, that it takes; None: as costs say.
    """

    costs: Costs
    copy: float
    share: float | None = None


@dataclass(slots=True)
class _Part:
    """Some rows of a chunk, and how far they are."""

    end: int  # position behind the last row
    ngrams: torch.Tensor | None
    rows: Rows
    streams: Residual | Streams


class PromptReader:
    """Reads chunks of prompts, one lane's at a time; their rows stand at once.

    Args:
        model: whose state is advanced.
        cache: what the card holds, which must not change while a chunk is read.
        ring_bytes: memory for experts on their way.
        part_rows: of a chunk that pass a layer at once; bounds what lies between its kernels.
        link: bytes per second that copies to the card get.
        processor: what the processor's share of missed experts is to be; None: it has none.
    """

    def __init__(
        self,
        model: CardModel,
        cache: ExpertCache,
        ring_bytes: int,
        part_rows: int,
        link: float,
        processor: Processor | None = None,
    ):
        self._model, self._cache, self._card = model, cache, model.weights.card
        self._part_rows, self._pace = part_rows, Pace(link)
        model.memory.workspace.make_room(unpacked_bytes(part_rows))
        self._half = ring_bytes // 2 // 256 * 256
        self._ring = self._card.empty(2 * self._half)
        self._processor = processor
        if processor is not None:
            self._home = torch.from_numpy(cache.store.addresses).to(self._card.device)
        self._zeros = torch.zeros(model.lanes, dtype=torch.int32, device=self._card.device)
        self._short: ShortPrompts | None = None

    @property
    def ring_bytes(self) -> int:
        """Memory of the ring."""
        return self._ring.numel()

    def read(
        self,
        lane: int,
        first: int,
        embedding: torch.Tensor,
        ngrams: torch.Tensor | None,
        accepted: torch.Tensor,
        keep: int | None = None,
    ) -> tuple[torch.Tensor, Saved | None]:
        """Queue the computation of the tokens from position `first` on.

        Args:
            lane: whose.
            embedding: uint8 `[n, row bytes]` of `CardModel.tokens`.
            ngrams: uint8 `[n, row bytes]` of `CardModel.ngrams`; None where the model has no n-gram table.
            accepted: int32 `[lanes]`, of rows that the step before has left pending, on the card.
            keep: a position behind `first`, up to the chunk's end, where the lane's state is to be copied.

        Returns:
            Logits float32 `[1, vocab]` of the last token, and the state at `keep`.
        """
        num_rows = embedding.shape[0]
        if self._short is not None and num_rows <= SHORT:
            return self._read_short(self._short, lane, first, embedding, ngrams, accepted, keep)
        streamed = None
        if num_rows > SHORT:
            streamed = _Streamed(self._cache, self._ring, self._half, self._pace.room(num_rows))
        share = self._share(streamed)
        parts = self._parts(lane, first, embedding, ngrams, accepted, streamed, share, keep)
        begin = self._card.mark()
        if streamed is not None:
            # Not before the parts' inputs are on the card: these would wait behind the experts on the link.
            streamed.begin_first(begin)
        saved: Saved = []
        for layer in range(self._model.num_layers):
            key = self._model.experts_of(layer)
            for part in parts:
                part.streams = self._model.block(layer, part.streams, part.ngrams, part.rows)
                if part.end == keep:
                    saved.append(self._copy(layer, lane))
            if streamed is not None and key is not None:
                streamed.begin(key + 2, self._card.mark())
        if streamed is not None:
            self._pace.read(num_rows, self._model.num_layers, begin, self._card.mark(), streamed.waits)
        logits = self._model.logits(parts[-1].streams.last())
        return logits, None if keep is None else _to_host(saved)

    def capture(self) -> None:
        """Have graphs for short pieces from now on; a chunk of the largest size has been read."""
        short = ShortPrompts(self._model, min(SHORT, self._model.context), self._short_share())
        self._short = short.capture()

    def _read_short(
        self,
        short: ShortPrompts,
        lane: int,
        first: int,
        embedding: torch.Tensor,
        ngrams: torch.Tensor | None,
        accepted: torch.Tensor,
        keep: int | None,
    ) -> tuple[torch.Tensor, Saved | None]:
        """`read` by graphs, in two pieces where a state is kept between."""
        end, saved = first + len(embedding), []
        for begin, until in pairwise(sorted({first, end if keep is None else keep, end})):
            at = slice(begin - first, until - first)
            stands = accepted if begin == first else self._zeros
            logits = short.read(lane, begin, embedding[at], None if ngrams is None else ngrams[at], stands)
            if until == keep:
                saved = [self._copy(layer, lane) for layer in range(self._model.num_layers)]
        return logits, None if keep is None else _to_host(saved)

    def _copy(self, layer: int, lane: int) -> list[torch.Tensor]:
        """What a layer remembers of a lane at this point of the stream."""
        return [tensor.clone() for tensor in self._model.state_of(layer, lane)]

    def _parts(
        self,
        lane: int,
        first: int,
        embedding: torch.Tensor,
        ngrams: torch.Tensor | None,
        accepted: torch.Tensor,
        streamed: "_Streamed | None",
        share: PromptShare | None,
        keep: int | None,
    ) -> list[_Part]:
        device, end = self._card.device, first + embedding.shape[0]
        experts = {} if streamed is None else {"addresses": streamed.addresses, "gate": streamed.gate}
        cuts = sorted({*range(first, end, self._part_rows), end, *([keep] if keep is not None else [])})
        embedding = embedding.to(device)
        ngrams = None if ngrams is None else ngrams.to(device)
        position = torch.arange(first, end, dtype=torch.int32, device=device)
        lanes = torch.full_like(position, lane)
        parts = []
        for begin, until in pairwise(cuts):
            at = slice(begin - first, until - first)
            inputs = self._model.inputs(embedding[at], None if ngrams is None else ngrams[at])
            stands = accepted if begin == first else self._zeros
            rows = self._model.rows(lanes[at], position[at], stands, commit=True, share=share, **experts)
            parts.append(_Part(until, inputs.ngrams, rows, self._model.embed(inputs)))
        return parts

    def _share(self, streamed: "_Streamed | None") -> PromptShare | None:
        """How the experts that are not on the card by the time of their layer are divided."""
        if self._processor is None:
            return None
        if streamed is None:
            return self._short_share()
        home, sizes = self._cache.store.addresses, self._cache.store.record_bytes
        missed = (streamed.table == home).sum(1).tolist()
        busy = [n * size / self._processor.copy for n, size in zip(streamed.counts, sizes, strict=True)]
        return PromptShare(self._home, self._processor.costs, self._processor.share, missed, busy)

    def _short_share(self) -> PromptShare | None:
        """How missed experts of short pieces are divided: in any layer there may be some."""
        if self._processor is None:
            return None
        layers = len(self._cache.store.record_bytes)
        costs, share = self._processor.costs, self._processor.share
        return PromptShare(self._home, costs, share, [1] * layers, [0.0] * layers)


def _to_host(saved: Saved) -> Saved:
    return [[tensor.cpu() for tensor in layer] for layer in saved]


class _Streamed:
    """The experts of a chunk that are not in the cache, by layers in turns in two halves of a ring.

    Args:
        room: bytes for which there is time while a layer computes; the most used experts are copied.

    Attributes:
        waits: between which points in time copies were waited for.
    """

    def __init__(self, cache: ExpertCache, ring: torch.Tensor, half: int, room: float):
        self._store, self._card, self._ring, self._half = cache.store, cache.card, ring, half
        self._here: dict[int, Ticket] = {}
        self.waits: list[tuple[Ticket, Ticket]] = []
        table = cache.table.current().copy()
        held = cache.residency.held.reshape(table.shape)
        wanted = cache.policy.frequencies().reshape(table.shape)
        self._coming: list[np.ndarray] = []
        for key, size in enumerate(cache.store.record_bytes):
            missing = np.flatnonzero(~held[key])
            often = missing[np.argsort(-wanted[key][missing], kind="stable")]
            most = min(half, _FIRST * room if key == 0 else room) // size
            coming = np.sort(often[: int(most)])
            table[key, coming] = ring.data_ptr() + key % 2 * half + np.arange(len(coming)) * size
            self._coming.append(coming)
        self.table = table
        self.addresses = torch.from_numpy(table).to(cache.card.device)

    @property
    def counts(self) -> list[int]:
        """How many experts of each layer are streamed."""
        return [len(coming) for coming in self._coming]

    def begin_first(self, after: Ticket) -> None:
        """Begin to copy what the first two layers need, once `after` says that the ring is free."""
        for key in range(2):
            self.begin(key, after)

    def begin(self, key: int, after: Ticket) -> None:
        """Begin to copy the experts of a layer, if there is such a layer."""
        if key >= len(self._coming):
            return
        size, coming = self._store.record_bytes[key], self._coming[key]
        bounds = _run_bounds(coming) * size
        at = key % 2 * self._half
        # Cut by torch at once: there are a hundred runs in a layer, and the host has kernels to launch, too.
        records = torch.from_numpy(self._store.records(key).reshape(-1))
        lengths = np.diff(bounds, prepend=0)
        sources = records[: bounds[-1]].split(lengths.tolist())[1::2] if len(bounds) else ()
        targets = self._ring[at : at + len(coming) * size].split(lengths[1::2].tolist()) if sources else ()
        self._here[key] = self._card.copy(list(zip(targets, sources, strict=True)), after)

    def gate(self, key: int) -> None:
        """What is queued from now on finds the experts of a layer in the ring."""
        if (ticket := self._here.pop(key, None)) is not None:  # else a part before has waited
            before = self._card.mark()
            ticket.gate()
            self.waits.append((before, self._card.mark()))


def _run_bounds(numbers: np.ndarray) -> np.ndarray:
    """Where runs of ascending numbers begin and end, in turns: int64 `[2 * runs]`."""
    is_first = np.diff(numbers, prepend=-2) != 1
    is_last = np.diff(numbers, append=np.iinfo(np.int64).max) != 1
    return np.stack([numbers[is_first], numbers[is_last] + 1], axis=1).reshape(-1)
