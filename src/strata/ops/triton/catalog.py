"""What there is to prove about the kernels: launches to compile for every card, and checks to run on one.

A module in `checks/` tells of one group of kernels by two lists:

    CHECKS = [Check("rms_norm", compare_rms_norm, tolerance=1e-6)]
    LAUNCHES = [Launch("rms_norm 2048", lambda: rms_norm(meta(1, 2048), meta(2048)))]

It is found by being there.
"""

import fnmatch
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

import torch

from strata.ops.triton import checks as _checks


@dataclass(frozen=True, slots=True)
class Launch:
    """A representative launch: an op at the shapes and formats of a real model.

    Args:
        name: unique; the rows of `strata doctor --compile` and the budgets are called by it.
        call: makes its tensors on torch's meta device (see `meta`) and calls the engine's own wrapper.
            Nothing is launched: each kernel that the wrapper asks for is compiled with the specialisation
            that Triton would choose at run time, and no memory is needed for shapes of any size.
    """

    name: str
    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case of a check gave.

    Attributes:
        case: its name.
        error: the largest |got - want| over the largest |want|; NaN where one is NaN and the other is not.
        passed: whether that is within the tolerance, or, where the tolerance is 0, all bits are the same.
    """

    case: str
    error: float
    passed: bool


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison of kernels with their reference, the same on a card and in Triton's interpreter.

    Args:
        name: unique.
        compare: given the device, makes deterministic input, computes there, and yields for each case its
            name, what the kernel gave, and what the reference says (on any device; same shape and dtype).
        tolerance: see `Outcome.error`; 0 asks for the same bits, NaNs being equal whatever their payload.
    """

    name: str
    compare: Callable[[torch.device], Iterator[tuple[str, torch.Tensor, torch.Tensor]]]
    tolerance: float = 0.0

    def run(self, device: torch.device) -> Iterator[Outcome]:
        """Compare every case on `device`."""
        for case, got, want in self.compare(device):
            yield self._outcome(case, got.cpu(), want.cpu())

    def _outcome(self, case: str, got: torch.Tensor, want: torch.Tensor) -> Outcome:
        if got.shape != want.shape or got.dtype != want.dtype:
            raise TypeError(
                f"{self.name}, {case}: the kernel gave {got.dtype} {list(got.shape)}, "
                f"the reference {want.dtype} {list(want.shape)}"
            )
        error = largest_error(got, want)
        return Outcome(case, error, same_bits(got, want) if self.tolerance == 0 else error <= self.tolerance)


def largest_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest |got - want| over the largest |want|; NaN where exactly one of two elements is NaN."""
    got, want = got.double(), want.double()
    if not torch.equal(got.isnan(), want.isnan()):
        return float("nan")
    # Infinities of one sign are equal; their difference would be NaN.
    difference = torch.where((got == want) | want.isnan(), 0.0, (got - want).abs())
    largest = torch.where(want.isfinite(), want.abs(), 0.0).max() if want.numel() else torch.tensor(0.0)
    worst = difference.max() if difference.numel() else torch.tensor(0.0)
    return float(worst / largest) if worst else 0.0


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype have the same bits, except for the payload of NaNs."""
    if got.is_floating_point():
        nan = want.isnan()
        if not torch.equal(got.isnan(), nan):
            return False
        got, want = (tensor.masked_fill(nan, 0) for tensor in (got, want))
    return torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor without memory, for launches that are only compiled; its address counts as aligned."""
    return torch.empty(shape, dtype=dtype, device="meta")


def launches(patterns: str = "*") -> list[Launch]:
    """The registered launches whose names match one of some comma-separated patterns."""
    return [launch for module in _modules() for launch in module.LAUNCHES if _matches(launch.name, patterns)]


def checks(patterns: str = "*") -> list[Check]:
    """The registered checks whose names match one of some comma-separated patterns."""
    return [check for module in _modules() for check in module.CHECKS if _matches(check.name, patterns)]


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern.strip()) for pattern in patterns.split(","))


def _modules() -> list[ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(_checks.__path__))
    return [importlib.import_module(f"{_checks.__name__}.{name}") for name in names]
