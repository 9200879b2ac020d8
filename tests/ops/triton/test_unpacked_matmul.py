"""Tiles of matrices as bytes: what the checks run in the interpreter is a Radeon's, this is NVIDIA's."""

import pytest
import torch

from strata.ops.triton import unpacked_matmul
from strata.ops.triton.catalog import checks
from strata.ops.triton.planes import ACTIVATION_BLOCK


@pytest.mark.parametrize("format", ["Q4_K", "Q3_K", "Q8_0", "Q2_0", "NVFP4"])
def test_whole_blocks_have_the_same_bits(format: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unpacked_matmul, "_shape", lambda _: (64, 128, ACTIVATION_BLOCK, 2))
    (check,) = checks(f"grouped_matmul {format}")
    outcomes = [outcome for outcome in check.run(torch.device("cpu")) if "unpacked" in outcome.case]
    assert outcomes and all(outcome.passed for outcome in outcomes)
