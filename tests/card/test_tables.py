"""What the card decodes of a table's rows is what the processor decodes, to the bit."""

import pytest
import torch

from strata.card.tables import CardTable
from strata.layers.linear import Embedding
from strata.layers.weights import DecodedWeights
from strata.models import open_checkpoint
from strata.options import EMBEDDED_MODEL

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def weights() -> DecodedWeights:
    return DecodedWeights(open_checkpoint(EMBEDDED_MODEL), 1 << 20)


@pytest.mark.parametrize(("name", "rows"), [("token_embd.weight", 1), ("per_layer_token_embd.weight", 4)])
@pytest.mark.parametrize("tokens", [1, 3, 100])
def test_rows_of_the_embedded_model(weights: DecodedWeights, name: str, rows: int, tokens: int):
    number, width = weights.checkpoint.tensors[name].shape
    layer = Embedding(weights, name, number, width)
    table = CardTable(layer, rows, CPU)
    ids = torch.randint(0, number, (tokens * rows,), generator=torch.Generator().manual_seed(0))
    fetched = table.fetch(ids)
    assert fetched.shape == (tokens, table.row_bytes) and fetched.dtype == torch.uint8
    assert table.row_bytes < 4 * table.width, "blocks are sent, not floats"
    assert torch.equal(table.decode(fetched), layer(ids).view(tokens, table.width))
