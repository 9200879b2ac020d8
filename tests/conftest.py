"""What every test may use."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# Triton decides when it is imported, here or by whichever library comes first, whether kernels run in its
# interpreter; in this process they do (tests/ops/triton).
os.environ["TRITON_INTERPRET"] = "1"

# A busy machine is no failure; whatever else Hypothesis chose for here (in CI: the same examples) stays.
settings.register_profile("strata", settings.default, deadline=None)
settings.load_profile("strata")

ROOT = Path(__file__).resolve().parents[1]


def clean_environment() -> dict[str, str]:
    """The environment without the variables that Strata itself reads, and without Triton's interpreter."""
    ours = ("STRATA_CONFIG", "STRATA_API_KEY", "HF_ENDPOINT", "TRITON_INTERPRET")
    return {name: value for name, value in os.environ.items() if name not in ours}


@pytest.fixture
def run_strata(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_strata("logits", "--out", ...)`: the command line in a process of its own, in an empty folder."""

    def run(
        *arguments: str, timeout: float = 60, piped: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "strata", *arguments],
            cwd=tmp_path,
            env=clean_environment() | variables,
            capture_output=True,
            text=True,
            timeout=timeout,
            input=piped,
        )

    return run
