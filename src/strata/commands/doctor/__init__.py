"""`strata doctor`: what this machine is, and whether the kernels are right on it and on others."""

from strata.errors import StrataError
from strata.options import Options


def run(options: Options) -> None:
    """Look at the machine; with `--compile` or `--kernels`, at the kernels instead.

    Raises:
        StrataError: a kernel does not compile, is over its budget, or disagrees with its reference.
    """
    if options.compile + options.kernels + options.measure > 1:
        raise StrataError("--compile, --kernels and --measure: one at a time")
    if (options.targets or options.changed or options.rewrite_budgets) and not options.compile:
        raise StrataError("--targets, --changed and --rewrite-budgets go with --compile")
    if options.targets and options.changed:
        raise StrataError("--changed chooses the targets: it goes without --targets")
    if options.only != "*" and not (options.compile or options.kernels):
        raise StrataError("--only goes with --compile or --kernels")
    if options.compile:
        from strata.commands.doctor.compile import run as look
    elif options.kernels:
        from strata.commands.doctor.kernels import run as look
    else:
        from strata.commands.doctor.machine import run as look
    look(options)
