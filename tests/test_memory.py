"""What a model costs in memory, over what torch costs."""

import subprocess
import sys
from pathlib import Path

import pytest

from strata.options import EMBEDDED_MODEL

STATUS = Path("/proc/self/status")
ANSWER = f"""
import torch

def peak():
    # Not getrusage: its peak counts the process that forked this one, too.
    lines = open("{STATUS}").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024

x = torch.ones(64, 64) @ torch.ones(64, 64)
before = peak()
from strata.models import DecodedWeights, load_model, open_checkpoint
model = load_model(DecodedWeights(open_checkpoint({str(EMBEDDED_MODEL)!r}), cache_bytes=4 << 30))
state = model.new_state()
with torch.inference_mode():
    model.forward(list(range(1000, 1256)), state)
    for token in range(16):
        model.forward([token], state)
print(peak() - before)
"""


@pytest.mark.skipif(not STATUS.exists(), reason="peak memory is read from Linux's /proc")
def test_the_embedded_model_loads_and_answers_within_600_mib_over_torch():
    run = subprocess.run(
        [sys.executable, "-c", ANSWER], capture_output=True, text=True, timeout=120, check=True
    )
    assert 0 < int(run.stdout) < 600  # MiB
