"""The planner's formula for prompts against what the engine's own code asks for, at real shapes."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

MODELS = [
    ("qwen3.8-flash-next", "iq3_xxs"),
    ("qwen3.6-35b-a3b", "iq4_xs"),
    ("qwen3-30b-a3b", "q4_k"),
    ("tiny", "q2_0"),
]


def test_a_chunk_takes_what_the_planner_says():
    command = [sys.executable, "-m", "tests.helpers.rehearsed_memory", "4096", "2048"]
    done = subprocess.run(
        [*command, *(word for model in MODELS for word in model)],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    lines = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(lines) == len(MODELS)
    for model, (measured, formula) in zip(MODELS, lines, strict=True):
        assert 0.97 * measured <= formula <= 1.25 * measured, f"{model}: takes {measured}, planned {formula}"
