"""How long a layer of a prompt's chunk takes a card, and so how much can be copied beside it.

Copies of experts that end while the card computes cost nothing. Of those for which it would have to wait,
only the used ones are worth the link's time, and which these are is known when the layer's router has run.
"""

from dataclasses import dataclass
from math import inf

from strata.card.device import Ticket


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Points in time of a chunk: its first and last, and between which it waited for copies."""

    rows: int
    layers: int
    begin: Ticket
    end: Ticket
    waits: list[tuple[Ticket, Ticket]]


class Pace:
    """Seconds of chunks of different lengths, by the last ones of each.

    Args:
        link: bytes per second that copies to the card get.
    """

    def __init__(self, link: float):
        self._link = link
        self._row_seconds: dict[int, float] = {}  # by the power of two that holds a chunk's rows
        self._last: _Chunk | None = None

    def room(self, rows: int) -> float:
        """Bytes that are copied while a layer computes so many rows; without end where nothing is known."""
        self._learn()
        if not self._row_seconds:
            return inf
        nearest = min(self._row_seconds, key=lambda power: abs(power - rows.bit_length()))
        return self._link * self._row_seconds[nearest] * rows

    def read(
        self, rows: int, layers: int, begin: Ticket, end: Ticket, waits: list[tuple[Ticket, Ticket]]
    ) -> None:
        """Note a chunk of `rows` that passes `layers` from `begin` to `end`, and waits for copies."""
        self._last = _Chunk(rows, layers, begin, end, waits)

    def _learn(self) -> None:
        chunk = self._last
        if chunk is None or not chunk.end.done():
            return
        waited = sum(after.seconds_since(before) for before, after in chunk.waits)
        seconds = chunk.end.seconds_since(chunk.begin) - waited
        if seconds > 0:
            power, row_seconds = chunk.rows.bit_length(), seconds / chunk.layers / chunk.rows
            # Reading in place counts as computing: with half of the last one, room does not swing.
            self._row_seconds[power] = (self._row_seconds.get(power, row_seconds) + row_seconds) / 2
        self._last = None
