"""From what a person asked for to what an engine can open: a path, a number of threads, a number of bytes."""

import os

import psutil

from strata.options import EMBEDDED_MODEL, Options


def resolve(options: Options) -> Options:
    """Options with the model downloaded when it lies on a hub, and threads and memory decided."""
    return options.model_copy(
        update={
            "model": model_path(options),
            "threads": options.threads or usable_cores(),
            "cache_mib": default_cache_mib() if options.cache_mib is None else options.cache_mib,
        }
    )


def model_path(options: Options) -> str:
    """A path or `scripted:FILE` for `--model`; `hf:` references are pulled first."""
    if options.model == "embedded":
        return str(EMBEDDED_MODEL)
    if options.model.startswith("hf:"):
        from strata.formats.hub import pull

        return str(pull(options.model, endpoint=options.hf_endpoint))
    return options.model


def usable_cores() -> int:
    """Physical cores, but no more than the logical ones this process may run on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def default_cache_mib() -> int:
    """Half of the memory that is free now: the other half is for states, the file cache and the person."""
    return psutil.virtual_memory().available // 2 // 2**20
