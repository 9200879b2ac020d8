"""Matrices in their planes: the checks load a block's steps ahead, cards with few registers one at a time."""

import pytest
import torch

from strata.ops.triton import grouped_matmul
from strata.ops.triton.catalog import checks


@pytest.mark.parametrize("format", ["Q4_K", "Q3_K", "Q8_0", "Q2_0", "NVFP4", "IQ3_XXS"])
def test_steps_one_at_a_time_have_the_same_bits(format: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grouped_matmul, "_shape", lambda rows: (256, 64, 1))
    (check,) = checks(f"grouped_matmul {format}")
    outcomes = [outcome for outcome in check.run(torch.device("cpu")) if "unpacked" not in outcome.case]
    assert outcomes and all(outcome.passed for outcome in outcomes)
