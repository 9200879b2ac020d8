"""What the schema of options says of each besides its type: which commands take it, and how it is written."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scope:
    """The commands that take an option."""

    commands: tuple[str, ...]

    def __init__(self, *commands: str):
        object.__setattr__(self, "commands", commands)


@dataclass(frozen=True, slots=True)
class Flag:
    """How an option is written on the command line, where that is more than `--name`."""

    metavar: str | None = None
    env: str | None = None  # environment variable that may also hold the value
    in_file: bool = True  # may stand in the config file
    required: bool = False
    name: str | None = None  # where the option's own name would be an awkward flag
    output: bool = False  # a file that is written: it is looked at before the command runs
    allowed: str | None = None  # what a pattern means, in words
