"""A model on a card that is none: Triton's interpreter computes on the processor's memory."""

import torch

from strata.card.cache import ExpertCache
from strata.card.model import CardModel
from strata.card.rows import Inputs, Rows
from strata.card.weights import CardWeights
from strata.formats.checkpoint import Checkpoint
from strata.models import load_model
from tests.card.fakes import FakeCard


def on_card(checkpoint: Checkpoint, lanes: int = 2, context: int = 64) -> CardModel:
    """The model; `.model` is the same one on the processor's kernels."""
    card = FakeCard()
    weights = CardWeights(checkpoint, card)
    model = load_model(weights)
    CardModel.require(model)
    weights.load_experts(len(model.expert_layers()), lambda done, total: None)
    return CardModel(model, weights, ExpertCache(card, weights.store), lanes, context)


def rows_of(model: CardModel, lane: list[int], position: list[int], accepted: list[int]) -> Rows:
    """`Rows` of a window."""
    return model.rows(*(torch.tensor(x, dtype=torch.int32) for x in (lane, position, accepted)), commit=False)


def window(
    model: CardModel, lane: list[int], position: list[int], tokens: list[int], accepted: list[int]
) -> torch.Tensor:
    """Logits of a window, float32 `[rows, vocab]`."""
    embedding = model.model.token_embd(torch.tensor(tokens))
    return model.step(Inputs(embedding, None), rows_of(model, lane, position, accepted))
