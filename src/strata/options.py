"""Every option of Strata in one typed schema; flags, the config file, help and validation come from it.

A value comes from, in this order: the flag, the environment variable named in the schema, the config
file (`strata.toml` in the working directory, or `--config FILE`), the default. This is the only module
that reads environment variables.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from strata.errors import StrataError

CONFIG_FILE = "strata.toml"
EMBEDDED_MODEL = Path(__file__).parent / "data" / "tiny.gguf"


class OptionError(StrataError):
    """An option is unknown or its value is not allowed; names the flag, or the file and line."""


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


_ENGINE = ("serve", "demo", "chat")  # commands that start an engine


class Options(BaseModel):
    """All options with their types, ranges, defaults and help; each command takes those of its scope."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Annotated[
        Path | None,
        Scope("serve", "demo", "chat", "pull", "logits"),
        Flag("FILE", env="STRATA_CONFIG", in_file=False),
        Field(description=f"Config file; {CONFIG_FILE} in the working directory when there is one."),
    ] = None
    model: Annotated[
        str,
        Scope(*_ENGINE, "logits"),
        Flag("MODEL"),
        Field(
            min_length=1,
            description="GGUF file, safetensors folder, hf:owner/repo[:file], scripted:FILE.jsonl, or "
            "`embedded`, the small model inside Strata.",
        ),
    ] = "embedded"
    aliases: Annotated[
        str | None,
        Scope("serve"),
        Flag("NAMES"),
        Field(
            min_length=1,
            description="Further names that clients may call the model by, comma separated; * for any.",
        ),
    ] = None
    host: Annotated[
        str,
        Scope("serve"),
        Flag("ADDRESS"),
        Field(min_length=1, description="Address to listen on; beyond loopback needs --api-key."),
    ] = "127.0.0.1"
    port: Annotated[
        int, Scope("serve"), Field(ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    ] = 8080
    api_key: Annotated[
        str | None,
        Scope("serve", "chat"),
        Flag("KEY", env="STRATA_API_KEY"),
        Field(min_length=1, description="Key that clients must send as `Authorization: Bearer KEY`."),
    ] = None
    threads: Annotated[
        int | None,
        Scope(*_ENGINE, "logits"),
        Field(
            ge=1, le=1024, description="CPU threads; the physical cores this process may use when not given."
        ),
    ] = None
    lanes: Annotated[
        int, Scope("serve"), Field(ge=1, le=256, description="Requests that are answered at the same time.")
    ] = 4
    context: Annotated[
        int | None,
        Scope(*_ENGINE),
        Flag("TOKENS"),
        Field(ge=16, description="Longest conversation in tokens; the model's own limit when not given."),
    ] = None
    reference: Annotated[
        bool,
        Scope(*_ENGINE, "logits"),
        Field(
            description="Compute with torch on weights decoded to float32: slow, and what the kernels are "
            "compared with."
        ),
    ] = False
    cache_mib: Annotated[
        int | None,
        Scope(*_ENGINE, "logits"),
        Flag("MIB"),
        Field(
            ge=0,
            description="With --reference: memory for decoded weights; half of what is free when not given.",
        ),
    ] = None
    keep_alive_s: Annotated[
        float,
        Scope("serve"),
        Flag("SECONDS"),
        Field(ge=0.05, le=3600, description="A silent stream gets a comment after this many seconds."),
    ] = 10.0
    cors_origins: Annotated[
        str | None,
        Scope("serve"),
        Flag("ORIGINS"),
        Field(
            pattern=r"^(\*|https?://[^\s/,]+(,\s*https?://[^\s/,]+)*)$",
            description="Sites whose pages may use the server, e.g. https://a.example,http://localhost:3000; "
            "* for all, none when not given.",
        ),
    ] = None
    attached: Annotated[
        bool,
        Scope("serve"),
        Flag(in_file=False),
        Field(description="Stop when standard input closes (for programs that start a server)."),
    ] = False
    url: Annotated[
        str | None,
        Scope("chat"),
        Flag("URL"),
        Field(
            pattern=r"^https?://\S+$",
            description="Talk to this running server, e.g. http://127.0.0.1:8080, instead of starting one.",
        ),
    ] = None
    system: Annotated[
        str | None, Scope("chat"), Flag("TEXT"), Field(description="System message of the conversation.")
    ] = None
    temperature: Annotated[
        float | None,
        Scope("chat"),
        Field(
            ge=0, le=2, description="0 always takes the likeliest token; the server's default when not given."
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        Scope("chat"),
        Field(ge=1, description="Longest answer in tokens; no limit when not given."),
    ] = None
    question: Annotated[
        str, Scope("demo"), Flag("TEXT"), Field(min_length=1, description="What the demo asks.")
    ] = "Tell me a short story about a fox and a lantern."
    stay: Annotated[
        bool, Scope("demo"), Flag(in_file=False), Field(description="Keep serving after the answer.")
    ] = False
    revision: Annotated[
        str | None,
        Scope("pull"),
        Flag("COMMIT"),
        Field(min_length=1, description="Branch, tag or commit; pinned to its commit before the download."),
    ] = None
    hf_endpoint: Annotated[
        str | None,
        Scope("pull", *_ENGINE, "logits"),
        Flag("URL", env="HF_ENDPOINT"),
        Field(pattern=r"^https?://\S+$", description="Hub to download from."),
    ] = None
    tokens: Annotated[
        Path | None,
        Scope("logits"),
        Flag("FILE.json", in_file=False, required=True),
        Field(description="JSON list of token ids."),
    ] = None
    out: Annotated[
        Path | None,
        Scope("logits"),
        Flag("FILE.npy", in_file=False, required=True),
        Field(description="Where the float32 logits [tokens, vocabulary] go."),
    ] = None


SCHEMA: Mapping[str, FieldInfo] = MappingProxyType(Options.model_fields)


def scope_of(name: str) -> tuple[str, ...]:
    """The commands that take option `name`."""
    return next(m for m in SCHEMA[name].metadata if isinstance(m, Scope)).commands


def flag_of(name: str) -> Flag:
    """How option `name` is written."""
    return next((m for m in SCHEMA[name].metadata if isinstance(m, Flag)), Flag())


def flag_name(name: str) -> str:
    """`cache_mib` -> `--cache-mib`."""
    return "--" + name.replace("_", "-")


def options_of(command: str) -> list[str]:
    """Names of the options that `command` takes, in the schema's order."""
    return [name for name in SCHEMA if command in scope_of(name)]


def value_type(name: str) -> type:
    """The type of option `name` without its `| None`."""
    annotation = SCHEMA[name].annotation
    if get_origin(annotation) in (Union, UnionType):
        return next(t for t in get_args(annotation) if t is not type(None))
    return annotation


def describe(name: str) -> str:
    """Help text of option `name`: what it does, its range, its environment variable, its default."""
    field, flag = SCHEMA[name], flag_of(name)
    low = next((m.ge for m in field.metadata if isinstance(m, Ge)), None)
    high = next((m.le for m in field.metadata if isinstance(m, Le)), None)
    notes = []
    if low is not None or high is not None:
        notes.append(f"from {low}" if high is None else f"{low} to {high}")
    if flag.env:
        notes.append(f"or {flag.env}")
    if field.default not in (None, False):
        notes.append(f"default: {field.default}")
    if flag.required:
        notes.append("required")
    return f"{field.description} ({'; '.join(notes)})" if notes else field.description


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
        OptionError: a key is unknown, a value is not allowed, a required flag or the config file is missing.
    """
    mine = options_of(command)
    given = {name: value for name, value in flags.items() if value is not None}
    for name in mine:
        variable = flag_of(name).env
        if variable and environment.get(variable) and name not in given:
            given[name] = _checked(name, environment[variable], variable)
    for name, value in given.items():
        given[name] = _checked(name, value, flag_name(name))
    for name in mine:
        if flag_of(name).required and name not in given:
            raise OptionError(f"{flag_name(name)} is missing; see `strata {command} --help`")
    config = given.get("config")
    path = config or (cwd or Path.cwd()) / CONFIG_FILE
    if config or path.is_file():
        from_file = read_config(path)
        given = {name: value for name, value in from_file.items() if name in mine} | given
    return Options(**given)


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
    environment = {name: value for name, value in os.environ.items() if name != "STRATA_API_KEY"}
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
        raise OptionError(f"{where}: {value} is not allowed: a number is expected")
    try:
        return _adapter(name).validate_python(value, strict=strict)
    except ValidationError as error:
        shown = "the value" if name == "api_key" else repr(value)
        reason = error.errors()[0]["msg"]
        raise OptionError(f"{where}: {shown} is not allowed: {reason[0].lower()}{reason[1:]}") from error


def _line_of(key: str, text: str) -> int:
    """Line number of a top-level key or table in TOML text; 1 when it hides behind escapes."""
    pattern = re.compile(rf"""^\s*\[*\s*["']?{re.escape(key)}["']?\s*[.=\]]""")
    lines = text.splitlines()
    return next((number for number, line in enumerate(lines, 1) if pattern.match(line)), 1)
