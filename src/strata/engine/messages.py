"""What the server process and the engine process say to each other: msgpack structs, tagged by type.

The server sends requests, the engine answers with events. A struct that names a request carries its
`id`, which the server chose and does not use again before the request's end has come. Every request ends
with exactly one `Finished` or `Failed`.

What `/v1/status` shows as it is are dataclasses, which both msgspec and pydantic know.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from strata.choices import KV, Dense


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the next token is chosen from the logits; `engine/sampling.py` defines the order.

    The defaults draw from the model's own distribution until a stop token or the end of the context.
    """

    temperature: float = 1.0  # up to 1e-5: the likeliest token
    top_k: int = 0  # 0 or less, or more than the vocabulary: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and answer, as in transformers
    presence_penalty: float = 0.0  # over the answer, as in the OpenAI API
    frequency_penalty: float = 0.0
    seed: int | None = None  # None: the engine draws one
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None  # alternatives reported with each token; None: no log-probabilities
    max_tokens: int | None = None  # None: up to the end of the context
    stop_ids: list[int] = []  # end-of-turn tokens; never part of the answer
    ignore_eos: bool = False  # stop_ids are ordinary tokens


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer must look like; its end is the answer's end. See `engine/grammar.py`."""

    kind: Literal["json_schema", "regex", "choice", "lark"]
    text: str  # choice: a JSON list of strings; lark: llguidance's Lark, or GBNF
    escape_id: int | None = None  # an answer that begins with this token is free
    schemas: list[str] = []  # JSON schemas inside of it, each of which some answer must satisfy
    num_written: int = 0  # tokens at the prompt's end that follow the grammar already


# --- requests: server -> engine ---------------------------------------------------------------------


class Generate(msgspec.Struct, tag=True, frozen=True):
    """Continue `prompt`. Answered by `Progress`*, `Tokens`*, then `Finished` or `Failed`.

    An answer that the server divides is several requests. It keeps its lane, and what that has read, while
    others wait for one: its requests but the last say `keeps_lane`, and all but the first `after`.
    """

    id: str
    prompt: list[int]
    sampling: SamplingParams = SamplingParams()
    grammar: Grammar | None = None
    keeps_lane: bool = False  # until the request comes that goes on from it, or its own `Cancel`
    after: str | None = None  # the request that it goes on from


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """Stop a request, wherever it is; of one that has ended, let go the lane that it keeps. Unknown ids are
    ignored."""

    id: str


class Ping(msgspec.Struct, tag=True, frozen=True):
    """Answered by `Pong`, between two steps of the engine."""


class CountExperts(msgspec.Struct, tag=True, frozen=True):
    """Answered by `ExpertUse`, between two steps of the engine."""


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Cancel every request and leave."""


# --- events: engine -> server -----------------------------------------------------------------------


class Hello(msgspec.Struct, tag=True, frozen=True):
    """First message of an engine: the secret that it was started with."""

    token: str


class LoadProgress(msgspec.Struct, tag=True, frozen=True):
    """The model is being loaded: `done` of `total` steps."""

    done: int
    total: int
    text: str


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """What takes memory, and how much; a file is mapped, so that its pages take none that is needed."""

    purpose: str  # e.g. "experts", "n-gram table"
    tier: Literal["VRAM", "RAM", "mapped file"]
    bytes: int


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """The experts of a model and where they are."""

    layers: list[int]  # numbers of the layers that have experts, ascending
    experts: int  # of a layer
    experts_used: int  # by a token
    tier: Literal["VRAM and RAM", "RAM", "mapped file"]  # with a card, RAM has all and VRAM has copies


class ModelInfo(msgspec.Struct, frozen=True):
    """The loaded model and what it occupies."""

    name: str
    architecture: str
    vocab_size: int
    context_length: int  # tokens of prompt and answer that one request may have
    load_s: float
    memory: list[MemoryPart]  # what does not change while the engine runs
    threads: int
    kernels: str  # what computes, e.g. "avx2, 2 threads"
    experts: ExpertLayout | None = None  # None: a dense model
    dense: Dense = "as_stored"


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The engine takes requests."""

    info: ModelInfo


class Progress(msgspec.Struct, tag=True, frozen=True):
    """`done` of the prompt's `total` tokens are in the model's state (reused ones included)."""

    id: str
    done: int
    total: int


class Token(msgspec.Struct, frozen=True, array_like=True):
    """One token of an answer.

    Log-probabilities are natural and of the model's unmodified distribution: before bias, penalties,
    temperature and filters.
    """

    id: int
    logprob: float | None = None  # None: the request asked for none
    top: list[tuple[int, float]] = []  # the likeliest tokens, descending; as many as `logprobs` says


class Tokens(msgspec.Struct, tag=True, frozen=True):
    """The next tokens of an answer, in order."""

    id: str
    tokens: list[Token]


class Finished(msgspec.Struct, tag=True, frozen=True):
    """A request's end: its reason ("stop", "length" or "cancelled"), its tokens and its times.

    A stop token that ended the answer is neither sent nor counted.
    """

    id: str
    reason: str
    prompt_tokens: int
    cached_tokens: int  # prompt tokens that an earlier request had left in the state
    completion_tokens: int
    queue_s: float  # waiting for a lane
    prompt_s: float  # from a lane to the first token
    decode_s: float  # from the first token to the end


class Failed(msgspec.Struct, tag=True, frozen=True):
    """A request's end by an error, or with `id` "" the engine's end because the model does not load.

    `code` is "context_length_exceeded", "invalid_request" (both the client's fault, in `field` of
    `Generate`), "internal_error" or "load_failed".
    """

    id: str
    message: str
    code: str
    field: str | None = None


class Totals(msgspec.Struct):
    """Counts since the engine started; tokens count when they were computed, cancelled or not."""

    running: int = 0  # requests that own a lane now
    queued: int = 0  # requests that wait for one
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0  # reused ones not included
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LaneUse:
    """One lane and what it keeps for the next request."""

    busy: bool
    tokens: int  # in its state
    state_bytes: int  # keys, values and recurrent parts
    checkpoint_bytes: int


class Pong(msgspec.Struct, tag=True, frozen=True):
    """The engine is alive, and what it holds."""

    totals: Totals
    lanes: list[LaneUse] = []


class ExpertUse(msgspec.Struct, tag=True, frozen=True):
    """How often each expert was chosen: arrays `[layers, experts]` in the order of `ExpertLayout.layers`.

    The arrays are row-major and little-endian, and empty for a dense model. `layers/expert_counts.py` says
    what is counted.
    """

    total: bytes  # int64
    recent: bytes  # float32
    half_life_tokens: int  # after which a choice weighs half in `recent`
    held: bytes = b""  # uint8, 1 for an expert in a card's own memory; empty without a card
    hits: int = 0  # experts that decode steps asked for and found there, since the model was loaded
    misses: int = 0  # and that they did not find there


# --- what a worker is started with ------------------------------------------------------------------


class EngineConfig(msgspec.Struct, frozen=True):
    """One engine: which model, and how much of the machine it may use."""

    model: str  # path of a model, or `scripted:FILE.jsonl`
    lanes: int = 4  # requests answered at the same time
    threads: int | None = None  # None: the physical cores this process may use
    reference: bool = False  # torch on decoded weights instead of the processor's kernels
    cache_bytes: int | None = None  # for decoded weights; None: half of the free memory
    context: int | None = None  # None: the model's own limit
    checkpoint_bytes: int = 256 << 20  # for copies of recurrent states, per lane
    card: str = "auto"  # PyTorch's number of a card, `none`, or `auto`: the best there is, if the model fits
    vram_budget_bytes: int | None = None  # None: all that is free
    vram_reserve_bytes: int | None = None  # None: as the planner says
    dense: Dense = "as_stored"
    kv: KV = "f16"


Request = Generate | Cancel | Ping | CountExperts | Shutdown
Event = Hello | LoadProgress | Ready | Progress | Tokens | Finished | Failed | Pong | ExpertUse

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
