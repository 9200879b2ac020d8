"""Half of a surrogate pair in JSON, as programs leave it that cut text by UTF-16's units."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serve.surrogates import replace_halves

PIECES = st.sampled_from(
    ["a", "\\", '"', "\n", "é", "\U0001f600", "\ud83d", "\ude00", "\ufffd", "u", "ud83d"]
)


@given(st.lists(PIECES))
def test_halves_are_replaced_and_all_else_stays(pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # Python's own pairing
    assert json.loads(replace_halves(json.dumps(text))) == whole


@pytest.mark.parametrize("unit", ["\\", "\\ud83d", "\\\\ud83d", "\\ud83d\\ude00", "\\n"])
def test_hostile_text_is_fast(unit: str) -> None:
    start = time.process_time()
    replace_halves(unit * (2**21 // len(unit)))
    assert time.process_time() - start < 2
