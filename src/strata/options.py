"""Every option of Strata in one typed schema; flags, the config file, help and validation come from it.

`configuration.py` finds the values.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr
from pydantic.fields import FieldInfo

from strata.flags import Flag, Scope
from strata.tool_options import ENGINE, ToolOptions

CONFIG_FILE = "strata.toml"
EMBEDDED_MODEL = Path(__file__).parent / "data" / "tiny.gguf"
MAX_TEMPERATURE = 100  # of every client; OpenAI's API ends at 2, but with min_p more makes sense

Think = Literal["off", "low", "medium", "high"]
_URL = "an address that begins with http:// or https://"


def checked_key(text: str) -> str:
    """A key without the white space around it, which no header carries; raises ValueError if it is none."""
    if not (key := text.strip()):
        raise ValueError("a key is empty")
    if not key.isprintable():
        raise ValueError("a key holds a character that cannot be sent in a header")
    return key


def _keys(text: str | None) -> str | None:
    return None if text is None else ",".join(map(checked_key, text.split(",")))


class Options(ToolOptions):
    """All options with their types, ranges, defaults and help; each command takes those of its scope."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Annotated[
        Path | None,
        Scope("serve", "demo", "chat", "pull", "logits", "doctor", "plan", "synth"),
        Flag("FILE", env="STRATA_CONFIG", in_file=False),
        Field(description=f"Config file; {CONFIG_FILE} in the working directory when there is one."),
    ] = None
    model: Annotated[
        str,
        Scope(*ENGINE, "logits"),
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
        Field(min_length=1, description="Address to listen on; beyond loopback needs a key."),
    ] = "127.0.0.1"
    port: Annotated[
        int, Scope("serve"), Field(ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    ] = 8080
    api_key: Annotated[
        str | None,
        Scope("serve", "chat"),
        Flag("KEYS", env="STRATA_API_KEY"),
        Field(
            description="Keys, comma separated, of which clients must send one as `Authorization: "
            "Bearer KEY`; `chat` sends the first.",
        ),
        AfterValidator(_keys),
    ] = None
    api_key_file: Annotated[
        Path | None,
        Scope("serve"),
        Flag("FILE", env="STRATA_API_KEY_FILE"),
        Field(description="File of further keys, one a line; # begins a comment."),
    ] = None
    threads: Annotated[
        int | None,
        Scope(*ENGINE, "logits", "synth"),
        Field(
            ge=1, le=1024, description="CPU threads; the physical cores this process may use when not given."
        ),
    ] = None
    lanes: Annotated[
        int,
        Scope("serve", "plan"),
        Field(ge=1, le=256, description="Requests that are answered at the same time."),
    ] = 4
    context: Annotated[
        int | None,
        Scope(*ENGINE, "plan"),
        Flag("TOKENS"),
        Field(ge=16, description="Longest conversation in tokens; the model's own limit when not given."),
    ] = None
    reference: Annotated[
        bool,
        Scope(*ENGINE, "logits"),
        Field(
            description="Compute with torch on weights decoded to float32: slow, and what the kernels are "
            "compared with."
        ),
    ] = False
    cache_mib: Annotated[
        int | None,
        Scope(*ENGINE, "logits"),
        Flag("MIB"),
        Field(
            ge=0,
            description="With --reference: memory for decoded weights; half of what is free when not given.",
        ),
    ] = None
    preserve_thinking: Annotated[
        bool,
        Scope("serve"),
        Field(
            description="Keep the thinking of earlier turns in prompts, where the model's template lets it "
            "be kept and the client sends it back: longer prompts, of which more is cached."
        ),
    ] = False
    effort_as: Annotated[
        Literal["template", "budget"],
        Scope("serve"),
        Flag("WAY"),
        Field(
            description="How a request's effort is followed: `template` tells the template that asks for "
            "one, mostly where prompts begin, so that another effort has all of it read again; `budget` "
            "limits the thinking instead."
        ),
    ] = "template"
    keep_alive_s: Annotated[
        float,
        Scope("serve"),
        Flag("SECONDS"),
        Field(ge=0.05, le=3600, description="A silent stream gets a comment after this many seconds."),
    ] = 10.0
    cors_origins: Annotated[
        str | None,
        Scope("serve"),
        Flag("ORIGINS", allowed="*, or sites such as https://a.example,http://localhost:3000"),
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
        Flag("URL", allowed=_URL),
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
            ge=0,
            le=MAX_TEMPERATURE,
            description="0 always takes the likeliest token; the server's default when not given.",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Scope("chat"),
        Field(ge=0, le=1, description="Only the likeliest tokens that together have this probability."),
    ] = None
    top_k: Annotated[
        int | None, Scope("chat"), Field(ge=0, description="Only so many of the likeliest tokens; 0 for all.")
    ] = None
    min_p: Annotated[
        float | None,
        Scope("chat"),
        Field(ge=0, le=1, description="Only tokens at least so likely as this part of the likeliest."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Scope("chat"),
        Field(ge=0.01, le=100, description="Above 1 makes what was said less likely to come again."),
    ] = None
    seed: Annotated[
        int | None, Scope("chat"), Field(ge=0, description="Makes answers the same from run to run.")
    ] = None
    think: Annotated[
        Think | None,
        Scope("chat"),
        Flag("LEVEL"),
        Field(description="off, low, medium or high; left to the model's template when not given."),
    ] = None
    tools: Annotated[
        Path | None,
        Scope("chat"),
        Flag("FILE.json"),
        Field(description="OpenAI's list of tools; calls are shown, and you type what they give."),
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
        Scope("pull", *ENGINE, "logits"),
        Flag("URL", env="HF_ENDPOINT", allowed=_URL),
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
        Flag("FILE.npy", in_file=False, required=True, output=True),
        Field(description="Where the float32 logits [tokens, vocabulary] go."),
    ] = None

    @property
    def asks_for_key(self) -> bool:
        """Whether a server with these options is closed to those without a key."""
        return self.api_key is not None or self.api_key_file is not None

    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)  # of values that are not the default

    def origin(self, name: str) -> str:
        """Where the value of option `name` is from: a flag, a variable, a file's path, or "default"."""
        return self._origins.get(name, "default")

    def with_origins(self, origins: Mapping[str, str]) -> "Options":
        """The same options, told where the values come from that are not the default."""
        options = self.model_copy()
        options._origins = dict(origins)
        return options

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Keys are not shown, wherever options are."""
        return [(name, value) for name, value in super().__repr_args__() if name != "api_key"]

    def __eq__(self, other: object) -> bool:
        """Whether all values are equal, wherever they come from."""
        return isinstance(other, Options) and dict(self) == dict(other)


SCHEMA: Mapping[str, FieldInfo] = MappingProxyType(Options.model_fields)


def scope_of(name: str) -> tuple[str, ...]:
    """The commands that take option `name`."""
    return next(m for m in SCHEMA[name].metadata if isinstance(m, Scope)).commands


def flag_of(name: str) -> Flag:
    """How option `name` is written."""
    return next((m for m in SCHEMA[name].metadata if isinstance(m, Flag)), Flag())


def flag_name(name: str) -> str:
    """`cache_mib` -> `--cache-mib`."""
    return "--" + (flag_of(name).name or name.replace("_", "-"))


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
    notes = [text] if (text := _range(name)) else []
    if flag.env:
        notes.append(f"or {flag.env}")
    if field.default not in (None, False):
        notes.append(f"default: {field.default}")
    if flag.required:
        notes.append("required")
    return f"{field.description} ({'; '.join(notes)})" if notes else field.description


def allowed_values(name: str) -> str:
    """What option `name` may be, in words; "" where the schema has none for it."""
    kind = {int: "a whole number", float: "a number"}.get(value_type(name))
    return f"{kind} {_range(name)}".rstrip() if kind else flag_of(name).allowed or ""


def _range(name: str) -> str:
    """`from 1 to 1024` or `from 1 up` of an option that is a number; "" where it has no limits."""
    metadata = SCHEMA[name].metadata
    low = next((m.ge for m in metadata if isinstance(m, Ge)), None)
    high = next((m.le for m in metadata if isinstance(m, Le)), None)
    if low is None and high is None:
        return ""
    return f"from {low} up" if high is None else f"from {low} to {high}"
