"""`strata doctor`: whether the kernels are right on this machine's card and on others."""

from strata.errors import StrataError
from strata.options import Options


def run(options: Options) -> None:
    """Compile the kernels, or compare them with their reference.

    Raises:
        StrataError: a kernel does not compile, is over its budget, or disagrees with its reference.
    """
    if options.compile:
        from strata.commands.doctor.compile import run as look
    elif options.kernels:
        from strata.commands.doctor.kernels import run as look
    else:
        raise StrataError("what to look at: --compile or --kernels")
    look(options)
