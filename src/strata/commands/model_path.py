"""From the model a person named to one that an engine can open."""

import sys

from strata.options import EMBEDDED_MODEL, Options


def model_path(options: Options) -> str:
    """A path or `scripted:FILE` for `--model`; what lies on a hub is downloaded first."""
    if options.model == "embedded":
        return str(EMBEDDED_MODEL)
    if options.model.startswith("hf:"):
        from strata.formats.hub import pull

        return str(pull(options.model, endpoint=options.hf_endpoint, progress=note))
    return options.model


def note(text: str) -> None:
    """A line for the person, on standard error: standard output is for the result."""
    print(text, file=sys.stderr, flush=True)


def with_model_path(options: Options) -> Options:
    """The options with `model` replaced by its path."""
    return options.model_copy(update={"model": model_path(options)})
