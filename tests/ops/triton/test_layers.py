"""What the kernels between products refuse, and the laziness that they are allowed."""

import pytest
import torch

from strata.ops.triton.delta_net import DeltaNetState, DeltaNetWeights, gated_delta_net
from strata.ops.triton.embedding import EmbeddingTable
from strata.ops.triton.float_matmul import float_matmul
from strata.ops.triton.norm import rms_norm
from strata.ops.triton.workspace import Workspace

CPU = torch.device("cpu")


def delta_net(lane: list[int], accepted: list[int], state: DeltaNetState, **more) -> torch.Tensor:
    weights = DeltaNetWeights(
        torch.ones(64, 4), -torch.ones(2), torch.ones(2), torch.ones(16), 1e-6, 1, True, True
    )
    rows = (torch.ones(len(lane), width) for width in (64, 32, 2, 2))
    lane, accepted = (torch.tensor(x, dtype=torch.int32) for x in (lane, accepted))
    return gated_delta_net(*rows, weights, state, lane, accepted, commit=False, **more)


def new_state(lanes: int) -> DeltaNetState:
    weights = DeltaNetWeights(
        torch.ones(64, 4), -torch.ones(2), torch.ones(2), torch.ones(16), 1e-6, 1, True, True
    )
    return DeltaNetState.zeros(lanes, weights, 16, CPU)


def test_a_lane_without_rows_is_left_alone():
    state = new_state(3)
    for tensor in (state.memory, state.past, state.pending, state.pending_gates):
        tensor.uniform_()
    before = [t.clone() for t in (state.memory, state.past, state.pending, state.pending_gates)]
    delta_net([0, 0, -1, 2], [0, 0, 0], state)
    after = (state.memory, state.past, state.pending, state.pending_gates)
    for was, now in zip(before, after, strict=True):
        assert torch.equal(was[1], now[1])
    assert torch.equal(before[0], state.memory)  # nothing stands yet
    assert not torch.equal(before[2][0, :2], state.pending[0, :2])


def test_heads_that_are_no_block_are_not_quantised():
    quantized = torch.empty(1, 32, dtype=torch.int8), torch.empty(1, 2)
    with pytest.raises(ValueError, match="a head of 16 values is no block of 128 activations"):
        delta_net([0], [0], new_state(1), quantized=quantized)
    codes = torch.empty(1, 2, 100, dtype=torch.int8), torch.empty(1, 2)
    with pytest.raises(ValueError, match="groups of 100 are no whole blocks of 128"):
        rms_norm(torch.ones(1, 2, 100), torch.ones(2, 100), 1e-6, codes)


def test_a_workspace_that_is_too_small_is_an_error():
    with pytest.raises(
        ValueError, match="the workspace holds 10 sums and 1 tiles, this product needs 640 and 2"
    ):
        float_matmul(torch.ones(1, 8), torch.ones(40, 8), Workspace(CPU, 10, 1))


def test_a_format_without_decoder_names_those_that_have_one():
    with pytest.raises(
        ValueError, match="rows of IQ1_S cannot be read on the card, only F32, F16, BF16, Q8_0"
    ):
        EmbeddingTable.of("IQ1_S", torch.empty(1, 50, dtype=torch.uint8), 256, CPU)
