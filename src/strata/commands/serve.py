"""`strata serve`: the server, until Ctrl+C."""

import os
import signal
import threading

from strata.commands.model_path import with_model_path
from strata.interrupt import importing
from strata.options import Options


def run(options: Options) -> None:
    """Load the model and serve it; the address is the one line on standard output."""
    with importing():
        if options.attached:
            threading.Thread(target=_stop_with_stdin, daemon=True).start()
        from strata.serve.app import create_app
        from strata.serve.run import run_server
        from strata.web.app import mount
    options = with_model_path(options)
    app = create_app(options)
    mount(app, options)
    run_server(app)


def _stop_with_stdin() -> None:
    """Wait for the end of standard input, then stop as Ctrl+C would."""
    # Not `sys.stdin`: its lock, held by this thread while it waits, would block the interpreter's end.
    while os.read(0, 4096):
        pass
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # wakes it from a system call
    else:
        signal.raise_signal(signal.SIGINT)
