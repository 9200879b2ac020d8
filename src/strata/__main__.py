"""`strata` and `python -m strata`."""

import signal
import sys

from strata.interrupt import importing


def main() -> int:
    """Run the command line of `sys.argv`; returns the process's exit code."""
    with importing():
        if hasattr(signal, "pthread_sigmask"):  # the launcher held it back while Python started
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        from strata import cli
    code = cli.main()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # While the interpreter takes itself apart, an exception would be printed.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


if __name__ == "__main__":
    sys.exit(main())
