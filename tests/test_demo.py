"""The demo, end to end on the embedded model, and the sums behind its figures."""

import re

import pytest

from strata.client import Delta
from strata.commands.demo import Stopwatch


def test_speeds_are_those_a_client_sees():
    watch = Stopwatch(start=10.0, first=12.0, last=15.0)
    assert watch.speeds(prompt_tokens=100, completion_tokens=31) == (50.0, 10.0)


def test_speeds_without_an_answer_are_zero():
    assert Stopwatch().speeds(100, 0) == (0.0, 0.0)
    assert Stopwatch(start=0.0, first=2.0, last=2.0).speeds(100, 1) == (50.0, 0.0)


def test_a_stopwatch_passes_pieces_on():
    watch = Stopwatch()
    pieces = [Delta("a"), Delta("b")]
    assert list(watch.watch(pieces)) == pieces
    assert watch.start <= watch.first <= watch.last


@pytest.mark.slow
def test_the_demo_answers_and_measures(run_strata):
    answer = run_strata("demo", timeout=240)
    assert answer.returncode == 0, answer.stderr
    story, figures = re.split(r"^load ", answer.stdout, maxsplit=1, flags=re.M)
    assert len(story.split()) > 30
    assert float(re.search(r"prompt\s+([\d.]+) tokens/s", figures)[1]) > 0
    assert float(re.search(r"decode\s+([\d.]+) tokens/s", figures)[1]) > 0
    assert re.search(r"memory\s+[\d.]+ MiB", figures)
    assert "./strata chat" in figures and "./strata serve --model" in figures
