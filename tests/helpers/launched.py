"""Does a remembered launch go where Triton's own would? A program, since the interpreter launches for real.

    python -m tests.helpers.launched TARGET

launches a kernel with arguments of all kinds, in turns and again, and fails where one is not the kernel that
Triton takes for the arguments, or does not get all of them. Prints how many kernels there were, and how many
kinds of launches are remembered.
"""

import itertools
import sys

import torch
import triton
import triton.language as tl
from triton.runtime.driver import driver

from strata.ops.triton.kernel import kernel
from strata.ops.triton.proof.fake_driver import FakeDriver
from strata.ops.triton.proof.targets import TARGETS


@kernel(do_not_specialize=["count"])
def _store(x, n, count, scale, maybe, BLOCK: tl.constexpr, TWICE: tl.constexpr = False):
    at = tl.arange(0, BLOCK)
    value = scale * n + count
    if maybe is not None:
        value += tl.load(maybe)
    tl.store(x + at, (value * 2 if TWICE else value).to(x.dtype.element_ty), mask=at < n)


@kernel
def _store_first(x, pair, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), tl.load(pair[0]) + pair[1])


def main(name: str) -> None:
    driver.set_active(FakeDriver(TARGETS[name]))
    launched: list[tuple] = []
    driver.active.launcher_cls = lambda source, metadata: lambda *arguments: launched.append(arguments)
    memory = torch.zeros(64)
    large = torch.empty(2**29 + 64)[:64]  # more than 2 GiB, which are never touched
    limit = torch.empty(2**29)[:64]
    tensors = (memory, memory[1:], memory[4:].half(), large, limit)
    numbers = (0, 1, 16, 17, -1, 2**31 - 1, 2**40, 2**40 + 1)
    found = set()
    for _ in range(2):
        for x, n in itertools.product(tensors, numbers):
            for maybe, constants in ((None, {}), (memory, {"TWICE": True}), (memory[1:], {"TWICE": False})):
                args, options = (x, n, 3 * n, 0.5, maybe), {"BLOCK": 16, "num_warps": 1} | constants
                ours = _store[(3, 2)](*args, **options)
                theirs = triton.JITFunction.run(_store, *args, grid=(3, 2), warmup=False, **options)
                assert ours is theirs, (x.dtype, n, maybe, constants)
                given, wanted = launched[-2:]
                assert given[:6] == wanted[:6]  # the grid, the stream, the function, and its metadata
                for one, other in zip(given[9:], wanted[9:], strict=True):
                    assert one is other or one == other, (one, other)
                found.add(ours.hash)
    for _ in range(3):
        _store_first[(1,)](memory, (torch.zeros(64), 2), BLOCK=16, num_warps=1)
    assert not _store_first._chosen  # it would keep the tensors
    print(len(found), len(_store._chosen))


if __name__ == "__main__":
    main(sys.argv[1])
