"""The step's breakdown must see native calls wherever layers make them."""

import json
import subprocess
import sys
from pathlib import Path

from helpers.models import tiny_qwen3moe

from strata.formats.synthetic import write_gguf

SCRIPT = Path(__file__).parents[2] / "bench" / "cpu_step.py"


def test_native_calls_are_counted_and_the_rest_is_outside(tmp_path):
    model = tiny_qwen3moe("q4_k", layers=2)
    path, report = tmp_path / "model.gguf", tmp_path / "report.json"
    write_gguf(model, path, lambda done, total: None)
    # a process of its own: the calls stay replaced
    arguments = [path, "--threads", "1", "--steps", "4", "--json", report]
    subprocess.run([sys.executable, SCRIPT, *arguments], check=True, stdout=subprocess.DEVNULL)
    result = json.loads(report.read_text())
    calls = {name: count for name, (count, _) in result["calls"].items()}
    assert calls["experts"] == model.geometry.layers  # once a layer in each step
    assert 0 < result["outside_share"] < 1
