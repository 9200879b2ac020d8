"""A short piece read as its graph does it, among rows that are nobody's, leaves the same bits as alone."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from strata.card import prompt_graph
from strata.card.model import CardModel
from strata.card.prompt_graph import ShortPrompts, graph_lengths
from strata.card.prompts import PromptReader
from strata.formats.geometry import GEOMETRIES
from tests.helpers.card_runs import on_card
from tests.helpers.tiny_models import EXPERTS, HYBRID, TINY, TinyCheckpoint
from tests.helpers.triton_interpreter import repair_bfloat16

repair_bfloat16()

LANES, STEP = 2, 24  # rows from a length to the next
QUANTISED = {"experts": "Q8_0", "experts_down": "Q8_0"}


def delta_net() -> TinyCheckpoint:
    geometry = replace(TINY, architecture="qwen35moe", shared_ff=32, **EXPERTS, **HYBRID)
    return TinyCheckpoint(geometry, QUANTISED)


def streams() -> TinyCheckpoint:
    """A delta net with n-gram memory, then sparse attention."""
    delta = replace(GEOMETRIES["tiny"].delta, value_heads=2, key_heads=1)
    geometry = replace(GEOMETRIES["tiny"], layers=2, width=128, interval=2, delta=delta, **EXPERTS)
    return TinyCheckpoint(geometry, QUANTISED)


class Replayed(ShortPrompts):
    """Its steps are computed in place of graphs of them."""

    def capture(self) -> "Replayed":
        for rows in self._lengths:
            self._graphs[rows] = SimpleNamespace(replay=partial(self._replay, rows))
        return self

    def _replay(self, rows: int) -> None:
        self._logits[rows] = self.step(rows)


def pieces(model: CardModel, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What tables have for tokens `start`, `start + 1`, ..."""
    ids = torch.arange(start, start + count)
    if model.ngrams is None:
        return model.tokens.fetch(ids), None
    table = model.model.ple.table
    numbers = table.row_numbers(ids, table.new_window()).flatten()
    return model.tokens.fetch(ids), model.ngrams.fetch(numbers)


def read_pieces(
    checkpoint: TinyCheckpoint, patch: pytest.MonkeyPatch, cut: bool, graphs: bool
) -> list[torch.Tensor]:
    """Logits and states of a piece; with `cut` of another behind it, which is cut where its state is kept."""
    model = on_card(checkpoint, LANES)
    reader = PromptReader(
        model, SimpleNamespace(store=SimpleNamespace(record_bytes=[], addresses=None)), 0, 64, 1e9
    )
    if graphs:
        patch.setattr(prompt_graph, "_STEP", STEP)
        patch.setattr("strata.card.prompts.ShortPrompts", Replayed)
        reader.capture()
    nobody = torch.zeros(LANES, dtype=torch.int32)
    logits, _ = reader.read(1, 0, *pieces(model, 0, 20), nobody)
    found, layers = [logits.clone()], range(model.num_layers)
    if cut:
        logits, saved = reader.read(1, 20, *pieces(model, 3, 27), nobody, keep=29)
        found += [logits, *(tensor for layer in saved for tensor in layer)]
    return [*found, *(tensor for layer in layers for tensor in model.state_of(layer, 1)), model.counts]


@torch.inference_mode()
@pytest.mark.slow
@pytest.mark.parametrize("make, cut", [(delta_net, True), (streams, False)])
def test_a_piece_among_rows_of_nobody_has_the_bits_it_has_alone(make: Callable, cut: bool, monkeypatch):
    checkpoint = make()
    alone = read_pieces(checkpoint, monkeypatch, cut, graphs=False)
    among = read_pieces(checkpoint, monkeypatch, cut, graphs=True)
    assert len(alone) == len(among) > 3
    for i, (want, got) in enumerate(zip(alone, among, strict=True)):
        assert torch.equal(want, got), f"tensor {i} of {len(alone)} differs"


def test_lengths_hold_every_piece_and_no_much_longer_one():
    assert graph_lengths(512) == graph_lengths(9000) == [512, 384, 256, 128]
    assert graph_lengths(130) == [256, 128]
    assert graph_lengths(1) == [128]
