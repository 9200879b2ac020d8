"""Kernels run in Triton's interpreter, on CPU tensors: tests/conftest.py switches it on for the process."""

import pytest

triton = pytest.importorskip("triton")

from helpers.triton_interpreter import repair_bfloat16  # noqa: E402

assert triton.knobs.runtime.interpret, "triton was imported before tests/conftest.py"
repair_bfloat16()
