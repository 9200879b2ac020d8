"""Programmatic dependent launch: the kernels of a step begin while those before them still end.

A step is a chain of several hundred kernels that take a few microseconds each, and between two of them a card
drains, launches, and waits for its first loads. NVIDIA's cards from compute capability 9.0 on can launch a
kernel once every program of the one before has called `griddepcontrol.launch_dependents`; it then holds at
`griddepcontrol.wait` until that kernel is done and what it wrote can be seen (PTX ISA, "griddepcontrol"; CUDA
C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"). A captured stream makes such
launches programmatic edges of its graph.

Every kernel that is launched with `step_launch` begins with `begin_kernel`, or with its two halves and a
`prefetch` between them. **Each of its programs waits, on every path, before it reads what the step has
written and before it writes.** What is waited for is the kernel just before; that those before it are done
too follows from its having waited itself. A kernel that ended without would let its successors overtake its
predecessors. Launches without the option, torch's and copies are safe anywhere: they begin when all before
them is done.
"""

import triton
import triton.language as tl
from triton.language import core

from strata.ops.triton.intrinsics import INTERPRETED
from strata.ops.triton.kernel import current_target

_FIRST = 90  # compute capability, times 10
_LINE = tl.constexpr(64)  # bytes that L2 loads at once, at least


def step_launch() -> dict[str, bool]:
    """Options of the launch of a kernel that calls `begin_kernel`.

    A dependent launch where cards have it; and products and sums are rounded each (docs/NUMERICS.md).
    """
    options = {"enable_fp_fusion": False}
    if INTERPRETED:
        return options
    target = current_target()
    return options | {"launch_pdl": True} if target.backend == "cuda" and target.arch >= _FIRST else options


@core.extern
def _is_dependent(_semantic=None):
    """Whether the kernel at hand is compiled for a launch with the option."""
    return core.constexpr(bool(getattr(_semantic.builder.options, "launch_pdl", False)))


@core.extern
def _launch_dependents(_semantic=None):
    from triton.language.extra.cuda import gdc_launch_dependents  # a Radeon's Triton may lack it

    gdc_launch_dependents(_semantic=_semantic)


@core.extern
def _wait(_semantic=None):
    from triton.language.extra.cuda import gdc_wait

    gdc_wait(_semantic=_semantic)


@core.extern
def _prefetch(addresses, _semantic=None):
    core.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0", "=r,l", [addresses], dtype=core.int32, is_pure=False, pack=1,
        _semantic=_semantic,
    )  # fmt: skip


@triton.constexpr_function
def _lines(length: int, step: int) -> int:
    """A power of two, at least the lines of `length` elements."""
    return triton.next_power_of_2(-(-length // step))


@triton.jit
def launch_dependents():
    """Let the next kernel be launched once all programs are here."""
    if not INTERPRETED:
        DEPENDENT: tl.constexpr = _is_dependent()
        if DEPENDENT:
            _launch_dependents()


@triton.jit
def wait_for_earlier():
    """Wait until all earlier kernels of the stream are done and what they wrote can be seen."""
    if not INTERPRETED:
        DEPENDENT: tl.constexpr = _is_dependent()
        if DEPENDENT:
            _wait()


@triton.jit
def begin_kernel():
    """Let the next kernel be launched, and wait until all earlier ones are done."""
    launch_dependents()
    wait_for_earlier()


@triton.jit
def prefetch(start, LENGTH: tl.constexpr):
    """Have L2 load what this kernel will read, before it waits: `LENGTH` elements from each of `start` on.

    Nothing there gets out of date by that, for it is L2 that all programs write to. Kernels that do not wait
    are left as they are.

    Args:
        start: a pointer, or pointers `[n]`; all elements exist.
    """
    if not INTERPRETED:
        DEPENDENT: tl.constexpr = _is_dependent()
        if DEPENDENT:
            STEP: tl.constexpr = _LINE * 8 // start.dtype.element_ty.primitive_bitwidth
            at = tl.minimum(tl.arange(0, _lines(LENGTH, STEP)) * STEP, LENGTH - 1)
            if len(start.shape) == 1:
                _prefetch((start[:, None] + at[None, :]).to(tl.int64))
            else:
                _prefetch((start + at).to(tl.int64))
