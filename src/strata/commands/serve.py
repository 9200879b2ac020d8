"""`strata serve`: the server, until Ctrl+C."""

import signal
import sys
import threading

from strata.commands.resolve import resolve
from strata.options import Options


def run(options: Options) -> None:
    """Load the model and serve it; the address is the one line on standard output."""
    from strata.serve.run import run_server

    if options.attached:
        threading.Thread(target=_stop_with_stdin, daemon=True).start()
    run_server(resolve(options), on_ready=_announce)


def _announce(url: str) -> None:
    print(f"Strata is ready at {url}", flush=True)


def _stop_with_stdin() -> None:
    """Wait for the end of standard input, then stop as Ctrl+C would."""
    while sys.stdin.buffer.read(4096):
        pass
    signal.raise_signal(signal.SIGINT)
