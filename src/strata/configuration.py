"""Where the values of options come from.

In this order: the flag, the environment variable named in the schema (`options.py`), the config file
(`strata.toml` in the working directory, or `--config FILE`), the default. This is the only module that reads
environment variables.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from strata.errors import StrataError, UsageError
from strata.options import (
    CONFIG_FILE,
    SCHEMA,
    Options,
    allowed_values,
    flag_name,
    flag_of,
    options_of,
    value_type,
)
from strata.outputs import check_output


class OptionError(UsageError):
    """An option is unknown or its value is not allowed; names the flag, or the file and line."""


def load_options(
    command: str,
    flags: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Options:
    """The options of one run of `command`.

    Args:
        command: its name, as in the schema's scopes.
        flags: option name -> value from the command line; None means not given.
        environment: where variables named in the schema are looked up.
        cwd: the folder that may hold `strata.toml`; the working directory when None.

    Raises:
        OptionError: a key is unknown, a value is not allowed, a required flag or the config file is missing,
            a file cannot be written where it shall be.
    """
    mine = options_of(command)
    given = {name: value for name, value in flags.items() if value is not None}
    origins = {name: flag_name(name) for name in given}
    for name in mine:
        variable = flag_of(name).env
        if variable and environment.get(variable) and name not in given:
            given[name] = _checked(name, environment[variable], variable)
            origins[name] = variable
    for name, value in given.items():
        given[name] = _checked(name, value, flag_name(name))
    for name in mine:
        if flag_of(name).required and name not in given:
            raise OptionError(f"{flag_name(name)} is missing; see `strata {command} --help`")
    config = given.get("config")
    path = config or (cwd or Path.cwd()) / CONFIG_FILE
    if config or path.is_file():
        from_file = read_config(path)
        from_file = {name: value for name, value in from_file.items() if name in mine}
        given, origins = from_file | given, dict.fromkeys(from_file, str(path)) | origins
    for name in mine:
        if flag_of(name).output and name in given:
            _check_output(name, given[name])
    return Options(**given).with_origins(origins)


def command_line(options: Options, command: str) -> list[str]:
    """The flags that give another run of `command` these options, whatever its config file says.

    The key is left out, since a command line is visible to other users: see `child_environment`.
    """
    flags = ["--config", os.devnull]
    for name in options_of(command):
        value = getattr(options, name)
        if name in ("config", "api_key") or value is None or value is False:
            continue
        flags += [flag_name(name)] if value is True else [f"{flag_name(name)}={value}"]
    return flags


def child_environment(options: Options) -> dict[str, str]:
    """This process's environment for a child that is to run with `options`."""
    secret = ("STRATA_API_KEY", "STRATA_API_KEY_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in secret}
    return environment | ({"STRATA_API_KEY": options.api_key} if options.api_key else {})


def let_idle_threads_sleep() -> None:
    """Have OpenMP's idle threads sleep, here and in children; to be called before torch is imported.

    By default they spin, which is fine on an idle machine and ruinous on a busy one: on 2 cores shared with
    5 other processes the demo decoded 3.0 tokens/s with spinning and 31.8 with sleeping threads. What the
    person has set stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def read_config(path: Path) -> dict[str, Any]:
    """Checked option values of a TOML file; keys may be written with `-` or `_`.

    Raises:
        OptionError: the file cannot be read or parsed, or a key or value is wrong; names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: is not a TOML file: {error}") from error
    values: dict[str, Any] = {}
    for key, value in table.items():
        where = f"{path}:{_line_of(key, text)}"
        name = key.replace("-", "_")
        if name not in SCHEMA:
            raise OptionError(f"{where}: unknown option {key!r}{nearest(name, list(SCHEMA))}")
        if not flag_of(name).in_file:
            raise OptionError(f"{where}: {key!r} can only be given as the flag {flag_name(name)}")
        if name in values:
            raise OptionError(f"{where}: {key!r} is given twice")
        values[name] = _checked(name, value, f"{where}: {key}", strict=True)
    return values


def nearest(name: str, names: list[str]) -> str:
    """`; did you mean '...'?` for the known name closest to `name`, or nothing."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0].replace('_', '-')!r}?" if close else ""


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[SCHEMA[name].annotation, SCHEMA[name]])


def _checked(name: str, value: Any, where: str, strict: bool = False) -> Any:
    """`value` in the option's type; `strict` refuses text where a number stands in the schema."""
    # A TOML path is a string, and 10 is a fine number of seconds: strict mode would refuse both.
    strict = strict and value_type(name) not in (Path, float)
    if isinstance(value, bool) and value_type(name) is float:
        raise OptionError(f"{where}: {value} is not allowed: {allowed_values(name)} is expected")
    try:
        return _adapter(name).validate_python(value, strict=strict)
    except ValidationError as error:
        shown = "the value" if name == "api_key" else repr(value)
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        words = (
            f"{allowed} is expected" if (allowed := allowed_values(name)) else reason[0].lower() + reason[1:]
        )
        raise OptionError(f"{where}: {shown} is not allowed: {words}") from error


def _check_output(name: str, path: Path) -> None:
    try:
        check_output(path)
    except StrataError as error:
        raise OptionError(f"{flag_name(name)} {error}") from error


def _line_of(key: str, text: str) -> int:
    """Line number of a top-level key or table in TOML text; 1 when it hides behind escapes."""
    pattern = re.compile(rf"""^\s*\[*\s*["']?{re.escape(key)}["']?\s*[.=\]]""")
    lines = text.splitlines()
    return next((number for number, line in enumerate(lines, 1) if pattern.match(line)), 1)
