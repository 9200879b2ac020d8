"""Reads of hyper-connections on a card, in Triton's interpreter, beside the processor's kernels."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from strata.card.hyper_decoder import CardHyperConnection, Streams
from strata.card.weights import CardWeights
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.requantized import with_dense
from strata.formats.synthetic import SyntheticCheckpoint
from strata.layers.hyper_connection import HyperConnection
from strata.models.config import ModelConfig
from strata.ops.triton.catalog import largest_error
from strata.ops.triton.streams import QuantizedHyperConnection
from strata.ops.triton.workspace import Workspace
from tests.card.fakes import FakeCard
from tests.helpers.triton_interpreter import repair_bfloat16

repair_bfloat16()

STREAMS, WIDTH = 2, 128


def module_of(quant: str, dense: str, width: int = WIDTH) -> tuple[HyperConnection, CardWeights]:
    tiny = GEOMETRIES["tiny"]
    hyper = replace(tiny.hyper, streams=STREAMS)
    geometry = replace(tiny, layers=1, width=width, hyper=hyper, expert_count=2, used=1)
    checkpoint = with_dense(SyntheticCheckpoint(geometry, find_mix(geometry, quant)), dense)
    weights = CardWeights(checkpoint, FakeCard())
    return HyperConnection(weights, "blk.0.hc_attn", ModelConfig.from_checkpoint(checkpoint)), weights


def on_card(module: HyperConnection, weights: CardWeights) -> CardHyperConnection:
    return CardHyperConnection(module, SimpleNamespace(weights=weights, workspace=Workspace("cpu", 1, 1)))


@torch.inference_mode()
@pytest.mark.parametrize(
    ("quant", "dense"),
    [("iq3_xxs", "q8_0"), ("ud-iq3_xxs", "as_stored")],
    ids=["--dense q8_0", "Q8_0 with floats for inject"],
)
def test_a_read_of_quantised_matrices_is_the_processors(quant: str, dense: str):
    """All products are the same, to the bit; the norm before differs in its last bits."""
    module, weights = module_of(quant, dense)
    card = on_card(module, weights)
    assert isinstance(card._weights, QuantizedHyperConnection)
    residual = torch.randn(1, STREAMS, WIDTH, generator=torch.Generator().manual_seed(0))
    want, logits = module.read(residual)
    written, x, inject = card.read(Streams(residual))
    assert torch.equal(written, residual)
    assert largest_error(x.x, want) < 1e-5
    assert largest_error(inject, 2 * torch.sigmoid(logits / STREAMS)) < 1e-5


@pytest.mark.parametrize(
    ("quant", "dense", "width"), [("iq3_xxs", "as_stored", WIDTH), ("iq3_xxs", "q8_0", 32)]
)
def test_floats_and_narrow_streams_are_multiplied_as_floats(quant: str, dense: str, width: int):
    """Blocks of 128 activations must not reach over two streams."""
    assert not isinstance(on_card(*module_of(quant, dense, width))._weights, QuantizedHyperConnection)
