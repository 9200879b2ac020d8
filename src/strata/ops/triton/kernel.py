"""What is launched: Triton's functions, with less time of the host for a launch.

A prompt of a few hundred tokens is hundreds of launches of a few microseconds each, and what the host does
for one takes longer. Triton looks anew at each how arguments are to be specialised, and asks for settings.
Here a launch whose arguments are of kinds that there were before goes to the kernel that Triton then chose.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime.driver import driver

_BUFFER_BYTES = 2**31  # AMD's part of Triton addresses smaller memory in another way


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up; `triton.cdiv`, which is for kernels too, takes ten times as long."""
    return -(-a // b)


def current_target() -> Any:
    """Triton's `GPUTarget` of the card at hand."""
    active = driver.active
    return _only_target(active) or _target_of(active, active.get_current_device())


@cache
def _only_target(active: Any) -> Any:
    """None where there are several cards."""
    return None if torch.cuda.device_count() > 1 else active.get_current_target()


@cache
def _target_of(active: Any, device: int) -> Any:
    return active.get_current_target()


class _Kernel(triton.JITFunction):
    """Remembers which kernel Triton chose for arguments of which kinds.

    For launches that give the `tl.constexpr` parameters, the last ones, by name, and no tuples; others are
    Triton's.
    """

    def __init__(self, function: Callable[..., None], **options: Any):
        super().__init__(function, **options)
        self._chosen: dict[Any, tuple[Any, ...]] = {}
        self._num_varying = min(self.constexprs, default=len(self.arg_names))

    def run(self, *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> Any:
        looked_at = None if warmup or len(args) != self._num_varying else _look_at(args)
        if looked_at is None:
            return super().run(*args, grid=grid, warmup=warmup, **kwargs)
        kinds, values = looked_at
        device = driver.active.get_current_device()
        key = (device, *kinds, *kwargs, *kwargs.values())
        chosen = self._chosen.get(key)
        if chosen is None:
            kernel = super().run(*args, grid=grid, warmup=False, **kwargs)
            names = self.arg_names[self._num_varying :]
            if kernel is not None and all(name in kwargs for name in names):  # None: a hook has taken it
                constants = [kwargs[name] for name in names]
                self._chosen[key] = kernel, kernel.run, kernel.function, kernel.packed_metadata, constants
            return kernel
        kernel, launch, function, metadata, constants = chosen
        x, y, z, *_ = (*grid, 1, 1)
        # Without what hooks are told: Triton's own profiler would have some.
        stream = driver.active.get_current_stream(device)
        launch(x, y, z, stream, function, metadata, None, None, None, *values, *constants)
        return kernel


def _look_at(args: tuple[Any, ...]) -> tuple[list[Any], list[Any]] | None:
    """At least what Triton could specialise a kernel by; arguments, a card's tensors as addresses.

    None where there are others than tensors, floats, None and integers of 32 bits: a key with their values
    would be another at every launch, and keep alive what they hold.
    """
    kinds: list[Any] = []
    values: list[Any] = []
    sizes_matter = current_target().backend == "hip"
    for argument in args:
        if isinstance(argument, torch.Tensor):
            address = argument.data_ptr()
            kinds += argument.dtype, address & 15
            if sizes_matter:
                kinds.append(argument.untyped_storage().nbytes() < _BUFFER_BYTES)
            values.append(address if argument.is_cuda else argument)
            continue
        values.append(argument)
        if type(argument) is int and -(2**31) <= argument < 2**31:
            kinds.append(1 if argument == 1 else 16 if argument % 16 == 0 else 0)
        elif argument is None or type(argument) is float:
            kinds.append(type(argument))
        else:
            return None
    return kinds, values


def kernel(function: Callable[..., None] | None = None, *, do_not_specialize: list[str] | None = None) -> Any:
    """`triton.jit` for what is launched; what kernels call is Triton's own."""

    def decorate(function: Callable[..., None]) -> Any:
        if knobs.runtime.interpret:
            return triton.jit(function, do_not_specialize=do_not_specialize)
        return _Kernel(function, do_not_specialize=do_not_specialize)

    return decorate if function is None else decorate(function)
