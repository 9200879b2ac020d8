"""Ctrl+C while modules are imported: a quiet end."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # a shell's exit code for a command ended by Ctrl+C


@contextmanager
def importing() -> Iterator[None]:
    """Have Ctrl+C end the process at once, without a word.

    As an exception it would come up amid somebody's module: some catch it, callbacks of the import system
    print and lose it, and what C code was half way through stays so. Where it is ignored, as in a script's
    background job, it stays ignored.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
