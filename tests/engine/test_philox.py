"""Known answers of Random123 1.14 (`kat_vectors`, philox4x32 10), and what the sampler builds on."""

import numpy as np
import pytest

from strata.engine.philox import philox4x32, uniform


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        # Digits of pi; the key's words are a4093822 and 299f31d0.
        ("243f6a88 85a308d3 13198a2e 03707344", 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers(counter: str, key: int, words: str) -> None:
    def parse(text: str) -> np.ndarray:
        return np.array([int(word, 16) for word in text.split()], np.uint32)

    # Among others: a counter's numbers do not depend on its neighbours.
    counters = np.stack([parse("1 2 3 4"), parse(counter)])
    np.testing.assert_array_equal(philox4x32(counters, key)[1], parse(words))


def test_uniform_depends_on_key_position_and_id_only() -> None:
    ids = np.arange(1000)
    u = uniform(7, 5, ids)
    np.testing.assert_array_equal(uniform(7, 5, ids[::-1]), u[::-1])
    np.testing.assert_array_equal(uniform(7, 5, ids[100:101]), u[100:101])
    for other in (uniform(8, 5, ids), uniform(7, 6, ids), uniform(7 + 2**32, 5, ids)):
        assert not np.any(other == u)


def test_uniform_is_uniform_and_open() -> None:
    u = uniform(1, 0, np.arange(200_000))
    assert u.min() > 0 and u.max() < 1
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    chi_square = float(((counts - 2000) ** 2 / 2000).sum())
    assert 50 < chi_square < 160  # 99 degrees of freedom: p between 1e-4 and 1 - 1e-5
