"""The step's breakdown must see native calls wherever layers make them."""

import json
import subprocess
import sys
from pathlib import Path

from synthetic import Qwen3Moe, write

SCRIPT = Path(__file__).parents[2] / "bench" / "cpu_step.py"


def test_native_calls_are_counted_and_the_rest_is_outside(tmp_path):
    shape = Qwen3Moe(
        "Q4_K", 2, 300, width=256, heads=4, kv_heads=2, head_length=64, expert_count=8, used=2, ff=256
    )
    path, report = write(shape, tmp_path / "model.gguf"), tmp_path / "report.json"
    # a process of its own: the calls stay replaced
    arguments = [path, "--threads", "1", "--steps", "4", "--json", report]
    subprocess.run([sys.executable, SCRIPT, *arguments], check=True, stdout=subprocess.DEVNULL)
    result = json.loads(report.read_text())
    calls = {name: count for name, (count, _) in result["calls"].items()}
    assert calls["experts"] == shape.layers  # once a layer in each step
    assert 0 < result["outside_share"] < 1
