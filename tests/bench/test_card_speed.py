"""`bench/card_speed.py` as far as it goes without a card: the past that it makes up."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

import card_speed

from strata.card.mixers import CardAttention
from strata.card.window import Row
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.synthetic import SyntheticCheckpoint
from strata.ops.triton.kv import PagedKV
from strata.ops.triton.sparse_attention import IndexState
from tests.card.test_lanes import new_lanes
from tests.card.token_model import VOCAB
from tests.helpers.card_runs import on_card


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_a_past_fills_every_page(dtype: torch.dtype) -> None:
    table = torch.arange(6, dtype=torch.int32).view(1, 6)
    kv = PagedKV.new(table, pages=6, kv_heads=2, page=32, dim=128, dtype=dtype)
    index = IndexState.new(kv, block=16, dim=64)
    card_speed.fill(kv, index)
    scales = (1.0, 1.0) if kv.k_scales is None else (kv.k_scales.float(), kv.v_scales.float())
    for pages, scale in zip((kv.k, kv.v), scales, strict=True):
        values = pages.float().unflatten(-1, (2, 64)) * (scale if kv.k_scales is None else scale[..., None])
        assert values.std(dim=(1, 2, 3, 4)).min() > 0.5 and values.abs().max() < 8
    assert index.block_keys.float().std(dim=(1, 2)).min() > 0.5 and index.ring.std() > 0.5


def test_every_layer_that_attends_gets_a_past() -> None:
    tiny = GEOMETRIES["tiny"]
    model = on_card(SyntheticCheckpoint(tiny, find_mix(tiny, "ud-iq3_xxs")))
    card_speed.make_up_past(model)
    mixers = [block.mixer for block in model._decoder.blocks]
    attending = [mixer for mixer in mixers if isinstance(mixer, CardAttention)]
    assert 0 < len(attending) < len(mixers)
    assert all(mixer._kv.k.any() and mixer._index._state.block_keys.any() for mixer in attending)


@pytest.mark.parametrize("recurrent", [False, True])
def test_tokens_behind_a_past_are_decoded_at_its_end(recurrent: bool, monkeypatch) -> None:
    positions: list[int] = []

    def window(rows: list[Row]) -> list[int]:
        positions.extend(row.position for row in rows)
        return [0] * len(rows)

    monkeypatch.setattr(card_speed, "make_up_past", lambda model: None)
    with new_lanes(1, recurrent) as (_, runner):
        runner.window, runner.model.model.config = window, SimpleNamespace(vocab_size=VOCAB)
        result = card_speed.measure_behind(runner, [20, 150], 6)
    assert positions == [*range(20, 26), *range(150, 156)]  # nothing before was read
    assert result["decode_behind_20"] > 0 and result["decode_behind_150"] > 0
