"""`strata test`: the test suite of this checkout."""

import os
from pathlib import Path

import strata
from strata.errors import StrataError


def run(arguments: list[str]) -> int:
    """Run pytest in the checkout with `arguments`; returns its exit code.

    Raises:
        StrataError: this is an installed package, without tests, or pytest is not installed.
    """
    root = Path(strata.__file__).resolve().parents[2]
    if not (root / "tests").is_dir() or not (root / "pyproject.toml").is_file():
        raise StrataError(f"{root} has no tests: they come with a checkout, not with the installed package")
    try:
        import pytest
    except ImportError as error:
        raise StrataError("the tests need `pip install -e .[dev]`; `./strata test` does it") from error
    os.chdir(root)
    return int(pytest.main(arguments))
