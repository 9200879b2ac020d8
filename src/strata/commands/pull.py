"""`strata pull`: download a model, or finish a download."""

from strata.commands.model_path import note
from strata.options import Options


def run(options: Options, reference: str) -> None:
    """Download and print the path of what can be given to `--model`."""
    from strata.formats.hub import pull

    print(pull(reference, revision=options.revision, endpoint=options.hf_endpoint, progress=note))
