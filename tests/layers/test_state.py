"""Bytes of states and checkpoints, by which their number is limited."""

import torch

from strata.layers.state import SequenceState, saved_bytes
from tests.engine.fakes import Recurrence


def test_saved_bytes():
    nested = [None, (torch.zeros(3), torch.zeros(2, dtype=torch.int64)), {"a": [torch.zeros(1)]}]
    assert saved_bytes(nested) == 12 + 16 + 4


def test_a_checkpoint_knows_its_bytes():
    assert SequenceState([Recurrence(), Recurrence()], recurrent=True).checkpoint().num_bytes == 2 * 8
