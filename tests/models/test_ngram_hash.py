"""The n-gram hash: values of transformers' own code at the real model's size, and no dependence on cuts."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from strata.ops.ngram_hash import ngram_rows

# Qwen3.8-Flash-Next (MODELS.md section 2.8)
EOS = 248044
MULTIPLIERS = torch.tensor([23703573157769, 20109073645365, 8052911324071])
PRIMES = [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171]
HEAD_SIZES = torch.tensor([20_000_000 + prime for prime in PRIMES])
HEAD_OFFSETS = HEAD_SIZES.cumsum(0) - HEAD_SIZES

GOLDEN = {
    "at the start": (
        [9707],
        "16410909 39682429 55103279 60931720 87006904 116506179 131512017 152932897 "
        "169641436 182022480 209277433 237891023 256841529 277007269 290665954 300984276",
    ),
    "after two": (
        [123, 456, 789],
        "2491316 28761835 51917996 68359989 88189145 101470006 131395511 157970613 "
        "166816437 197523925 206707499 235951520 251357128 266767674 285239060 317603747",
    ),
    "right after an end of text": (
        [123, EOS, 789],
        "3638435 38536879 59741011 61632217 98586984 118372974 128802874 150777921 "
        "172138699 197135989 212513035 230461933 255865816 262498610 291649546 319451710",
    ),
    "one after an end of text": (
        [123, EOS, 789, 11],
        "15738232 36086389 56272459 64546336 88793584 116878619 129008477 145186093 "
        "176281026 186295716 219783052 229019418 257772494 266882141 289998121 306171756",
    ),
    "an end of text itself": (
        [EOS],
        "9663979 26558231 56120240 74755659 80459717 109265651 132697467 151022725 "
        "170054832 192967038 200687722 225763581 259275737 272983544 297596484 300986548",
    ),
}


def rows(tokens: list[int], window: list[int]) -> torch.Tensor:
    return ngram_rows(torch.tensor(tokens), torch.tensor(window), MULTIPLIERS, HEAD_SIZES, HEAD_OFFSETS, EOS)


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_values(case: str):
    tokens, expected = GOLDEN[case]
    assert rows(tokens, [EOS, EOS])[-1].tolist() == [int(row) for row in expected.split()]


@settings(max_examples=50, deadline=None)
@given(
    tokens=st.lists(st.sampled_from([EOS, 0, 11, 123, 248319]), min_size=1, max_size=12),
    cut=st.integers(min_value=0, max_value=11),
)
def test_a_cut_changes_nothing(tokens: list[int], cut: int):
    whole = rows(tokens, [EOS, EOS])
    head, tail = tokens[:cut], tokens[cut:]
    parts = [rows(head, [EOS, EOS])] if head else []
    if tail:
        parts.append(rows(tail, [EOS, EOS, *head][-2:]))
    assert torch.equal(torch.cat(parts), whole)
    assert bool((whole >= HEAD_OFFSETS).all()) and bool((whole < HEAD_OFFSETS + HEAD_SIZES).all())
