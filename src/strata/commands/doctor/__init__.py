"""`strata doctor`: what this machine is, and whether the kernels are right on it and on others."""

from strata.options import Options


def run(options: Options) -> None:
    """Look at the machine; with `--compile` or `--kernels`, at the kernels instead.

    Raises:
        StrataError: a kernel does not compile, is over its budget, or disagrees with its reference.
    """
    if options.compile:
        from strata.commands.doctor.compile import run as look
    elif options.kernels:
        from strata.commands.doctor.kernels import run as look
    else:
        from strata.commands.doctor.machine import run as look
    look(options)
