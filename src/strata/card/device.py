"""One card: the object that every tensor, stream and event of a model belongs to, never the process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, Self

import numpy as np
import torch

from strata.errors import EngineError, StrataError

_PORTABLE_MAPPED = 3  # cudaHostRegisterPortable | cudaHostRegisterMapped; HIP has the same numbers


class CardError(EngineError):
    """The card or its driver refused something; says what and what to do."""


@contextmanager
def whole_step() -> Iterator[None]:
    """Raise CardError for whatever breaks a step off: then layers and lanes are not at one point any more."""
    try:
        yield
    except StrataError:
        raise
    except torch.OutOfMemoryError as error:
        raise out_of_memory() from error
    except Exception as error:
        what = str(error).partition("\n")[0] or type(error).__name__
        raise CardError(f"the card failed in the middle of a step: {what}") from error


def out_of_memory() -> CardError:
    """What to say when the card has no memory left besides the slots."""
    return CardError(
        "the card has no memory left; close other programs that use it, keep more free with "
        "--vram-reserve-mib, or ask for less with --context or --lanes"
    )


class Ticket(Protocol):
    """Copies under way, or a point in a stream."""

    def done(self) -> bool:
        """Whether all of them have landed."""

    def gate(self) -> None:
        """Let what the current stream is given from now on wait for them."""

    def seconds_since(self, earlier: Self) -> float:
        """From another, when both are done."""


class Card:
    """A CUDA or HIP device.

    Work is queued on the stream that is current when a method is called; copies of experts have a stream of
    their own, so that they run beside it.

    Args:
        index: among the cards that the driver shows.
    """

    def __init__(self, index: int = 0):
        self.device = torch.device("cuda", index)
        self._copies = torch.cuda.Stream(self.device)

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Uninitialised uint8 `[num_bytes]` on the card; its address is a multiple of 256."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeros in host memory that copies need not wait for, and that kernels may read and write."""
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def register(self, memory: np.ndarray) -> None:
        """Let kernels read and copies use `memory` (uint8, whole pages) at the address it has.

        Raises:
            CardError: the system pins no more memory.
        """
        with torch.cuda.device(self.device):  # a thread begins with the first card
            error = int(
                torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE_MAPPED)
            )
        if error:
            raise CardError(
                f"the driver cannot pin {memory.nbytes / 2**20:.0f} MiB of memory for the card "
                f"(error {error}); raise the limit (`ulimit -l`, or the container's memlock), take a "
                f"smaller model, or compute on the processor (--card none)"
            )

    def unregister(self, memory: np.ndarray) -> None:
        """End what `register` began, once no kernel reads the memory."""
        torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)

    def copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: Ticket | None = None) -> Ticket:
        """Begin to copy each `(destination on the card, registered source)` beside the current stream.

        Args:
            pairs: in this order.
            after: what must be done before the first destination may be written.
        """
        with torch.cuda.stream(self._copies):
            if after is not None:
                after.gate()
            if pairs:
                torch._foreach_copy_(*map(list, zip(*pairs, strict=True)), non_blocking=True)
            return _Recorded(self._copies)

    def mark(self) -> Ticket:
        """What is done when all that the current stream has been given is done."""
        return _Recorded(torch.cuda.current_stream(self.device))

    def synchronize(self) -> None:
        """Wait until the card has nothing to do."""
        torch.cuda.synchronize(self.device)


class _Recorded:
    def __init__(self, stream: torch.cuda.Stream):
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record(stream)

    def done(self) -> bool:
        return self._event.query()

    def gate(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)

    def seconds_since(self, earlier: "_Recorded") -> float:
        return earlier._event.elapsed_time(self._event) / 1000
