"""What a model costs in memory, over what torch costs."""

import subprocess
import sys

import pytest

from strata.options import EMBEDDED_MODEL

resource = pytest.importorskip("resource", reason="peak memory is read from POSIX's getrusage")

PEAK = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 if sys.platform == 'darwin' else 1024)"
ANSWER = f"""
import resource, sys, torch
x = torch.ones(64, 64) @ torch.ones(64, 64)
before = {PEAK}
from strata.models import load_model, open_checkpoint
model = load_model(open_checkpoint({str(EMBEDDED_MODEL)!r}), cache_bytes=4 << 30)
state = model.new_state()
with torch.inference_mode():
    model.forward(list(range(1000, 1256)), state)
    for token in range(16):
        model.forward([token], state)
print({PEAK} - before)
"""


def test_the_embedded_model_loads_and_answers_within_600_mib_over_torch():
    run = subprocess.run(
        [sys.executable, "-c", ANSWER], capture_output=True, text=True, timeout=120, check=True
    )
    assert 0 < int(run.stdout) < 600  # MiB
