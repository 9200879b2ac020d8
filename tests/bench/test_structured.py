"""The bench of masks, on a few schemas."""

import numpy as np
import structured

from strata.options import EMBEDDED_MODEL


def test_a_mask_takes_microseconds() -> None:
    """The bound is far from what it takes, for machines that are busy; a mask in Python would exceed it."""
    taken = structured.times(EMBEDDED_MODEL, 6, 16)
    assert len(taken) > 30 and np.median(taken) < 2000
