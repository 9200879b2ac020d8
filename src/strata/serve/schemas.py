"""What requests of the OpenAI endpoints have in common, and that of `/v1/completions`.

Facts from OpenAI's API reference (completions/create); `top_k`, `min_p`, `repetition_penalty`,
`repeat_penalty` and `ignore_eos` are what vLLM and llama.cpp added to it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from strata.errors import RequestError
from strata.serve.fields import Sampled, StreamOptions
from strata.serve.structured import FIELDS, Structure, structure_of

MAX_PROMPTS = 256  # in one completions request
MAX_CHAT_ALTERNATIVES = 20  # OpenAI's limit of top_logprobs
MAX_CHOICES = 128  # OpenAI's limit of n
UNLIMITED = -1  # as max_tokens


def _stops(value: Any) -> list[str]:
    match value:
        case None:
            return []
        case str():
            return [value] if value else []
        case list() if all(isinstance(item, str) for item in value):
            return [item for item in value if item]
    raise ValueError("a string or a list of strings is expected")


Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]
Prompts = str | Annotated[list[str], Field(min_length=1)] | Ids | Annotated[list[Ids], Field(min_length=1)]


def _prompts(value: Any) -> list[str | list[int]]:
    match value:
        case str():
            return [value]
        case list() if value and all(isinstance(item, str) for item in value):
            return value
        case list() if value and all(_is_id(item) for item in value):
            return [value]
        case list() if value and all(
            isinstance(item, list) and item and all(map(_is_id, item)) for item in value
        ):
            return value
    raise ValueError("a string, a list of strings, a list of token ids or a list of such lists is expected")


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _biases(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    for key in value:
        if not key.isdecimal():
            raise ValueError(f"key {key!r} is not a token id")
    return {int(key): bias for key, bias in value.items()}


class GenerationRequest(Sampled, ABC):
    """What the two endpoints have in common."""

    HARMLESS = frozenset(
        {
            "user",
            "metadata",
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
        }
    )
    NOT_SERVED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "functions": ([],),
        "function_call": ("none", "auto"),
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "verbosity": ("medium",),
        "logit_processors": (),
    }

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: Annotated[int, Field(ge=UNLIMITED, lt=2**63)] = UNLIMITED
    repeat_penalty: Annotated[float | None, Field(gt=0, le=100)] = None  # llama.cpp's name for the same
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: Annotated[
        dict[int, Annotated[float, Field(ge=-100, le=100)]],
        BeforeValidator(_biases, json_schema_input_type=dict[str, float]),
        Field(default_factory=dict),
    ]
    stop: Annotated[
        list[str],
        BeforeValidator(_stops, json_schema_input_type=str | list[str]),
        Field(default_factory=list),
    ]
    ignore_eos: bool = False
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None
    stream_options: StreamOptions = StreamOptions()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not self.stream and "stream_options" in self.model_fields_set:
            raise RequestError("stream_options: only allowed when stream is true", "stream_options")
        if self.repeat_penalty is not None and "repetition_penalty" in self.model_fields_set:
            raise RequestError(
                "repeat_penalty: means the same as repetition_penalty; send one", "repeat_penalty"
            )
        self.structure()  # refuses what is wrong
        return self

    @property
    def token_limit(self) -> int:
        """Most tokens of the answer, or `UNLIMITED`."""
        return self.max_tokens

    def structure(self) -> Structure | None:
        """What the answer must look like, if the request says so; raises RequestError where that is wrong."""
        structure = structure_of({name: getattr(self, name) for name in FIELDS})
        if structure is not None and self.ignore_eos:
            raise RequestError(f"ignore_eos: not with {structure.field}, which ends the answer", "ignore_eos")
        return structure

    @property
    @abstractmethod
    def num_alternatives(self) -> int | None:
        """Alternatives to report with each token; None for no log-probabilities."""

    def own_sampling(self) -> dict[str, Any]:
        return {
            "repetition_penalty": self.repeat_penalty or self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": self.logit_bias,
            "logprobs": self.num_alternatives,
            "max_tokens": None if self.token_limit == UNLIMITED else self.token_limit,
            "ignore_eos": self.ignore_eos,
        }


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`. Without `max_tokens` an answer may fill the context (OpenAI: 16 tokens)."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts, json_schema_input_type=Prompts)]
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_CHAT_ALTERNATIVES)] = None

    @field_validator("prompt")
    @classmethod
    def _not_too_many(cls, prompts: list[str | list[int]]) -> list[str | list[int]]:
        if len(prompts) > MAX_PROMPTS:
            raise ValueError(f"{len(prompts)} prompts; at most {MAX_PROMPTS} are taken at once")
        return prompts

    @property
    def num_alternatives(self) -> int | None:
        return self.logprobs
