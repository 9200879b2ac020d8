"""What is launched without Triton's looking at it anew is what Triton would launch."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("target, kernels, remembered", [("sm_80", 54, 18), ("gfx1100", 72, 24)])
def test_a_remembered_launch_goes_where_tritons_own_would(
    target: str, kernels: int, remembered: int, tmp_path
):
    """A Radeon's kernels also depend on whether memory is below 2 GiB."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-m", "tests.helpers.launched", target],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert list(map(int, told.split())) == [kernels, remembered]
