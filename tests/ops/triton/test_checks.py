"""Every registered check in the interpreter: what `strata doctor --kernels` runs on a card."""

import pytest
import torch

from strata.ops.triton.catalog import Check, checks, largest_error, launches, same_bits

CPU = torch.device("cpu")


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
def test_the_kernels_agree_with_their_reference(check: Check):
    outcomes = list(check.run(CPU))
    assert outcomes, "a check without cases proves nothing"
    assert not [outcome for outcome in outcomes if not outcome.passed]


def test_what_is_registered_is_chosen_by_patterns():
    assert [launch.name for launch in launches("doorbell,intrin*")] == ["doorbell", "intrinsics"]
    assert [check.name for check in checks("door?ell")] == ["doorbell"] and not checks("door")


def test_names_are_unique():
    for registered in (checks(), launches()):
        names = [item.name for item in registered]
        assert len(set(names)) == len(names)


def test_bits_and_errors():
    nan, inf = float("nan"), float("inf")
    want = torch.tensor([1.0, -4.0, nan, inf])
    assert same_bits(want.clone(), want) and largest_error(want, want) == 0
    near = torch.tensor([1.5, -4.0, nan, inf])
    assert not same_bits(near, want) and largest_error(near, want) == 0.125
    assert not same_bits(torch.tensor([-0.0]), torch.tensor([0.0]))
    assert largest_error(torch.tensor([nan]), torch.tensor([1.0])) != 0
    assert largest_error(torch.tensor([1.0, 2.0]), torch.zeros(2)) == inf


@pytest.mark.parametrize(
    ("got", "passed"), [([1.0, 1e-7], True), ([1.0, 1e-5], False), ([float("nan"), 0], False)]
)
def test_a_tolerance_is_relative_to_the_largest_number(got, passed):
    check = Check(
        "x", lambda device: iter([("case", torch.tensor(got), torch.tensor([1.0, 0]))]), tolerance=1e-6
    )
    assert [outcome.passed for outcome in check.run(CPU)] == [passed]


def test_a_reference_of_another_shape_is_an_error():
    check = Check("x", lambda device: iter([("case", torch.zeros(2), torch.zeros(1))]))
    with pytest.raises(TypeError, match=r"x, case: the kernel gave torch.float32 \[2\], the reference"):
        list(check.run(CPU))
