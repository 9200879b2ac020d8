"""The figures of `bench/dense_kl.py`, of distributions that can be reckoned by hand."""

import dense_kl
import numpy as np
import pytest

from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.requantized import RequantizedCheckpoint
from strata.formats.synthetic import SyntheticCheckpoint


def test_divergence_is_that_of_the_definition():
    want = [np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))]
    got = [np.log(np.array([[0.25, 0.75], [0.9, 0.1]], np.float32)) + 3]  # logits need no norm
    figures = dense_kl.compare(want, got, [[0, 1]])
    first = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert figures["largest KL"] == pytest.approx(first, rel=1e-5)
    assert figures["mean KL"] == pytest.approx(first / 2, rel=1e-5)
    assert figures["same likeliest token"] == 0.5
    assert figures["perplexity"] == pytest.approx(1 / 0.75, rel=1e-5)


def test_parts_are_parts_of_the_whole():
    """Routers are none of it, hyper-connections are."""
    geometry = GEOMETRIES["tiny"]
    stored = SyntheticCheckpoint(geometry, find_mix(geometry, "iq3_xxs"))

    def changed(checkpoint) -> set[str]:
        return {name for name, tensor in checkpoint.tensors.items() if tensor != stored.tensors[name]}

    everything = changed(RequantizedCheckpoint(stored))
    streams, routers = (
        changed(dense_kl.PartlyRequantized(stored, pattern)) for pattern in dense_kl.PARTS.values()
    )
    assert "blk.0.hc_attn_down.weight" in streams and streams < everything
    assert routers and not routers & everything
