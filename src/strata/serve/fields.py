"""What the requests of all protocols have in common: their strictness, what they refuse, their sampling."""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from strata.engine.messages import SamplingParams
from strata.errors import RequestError
from strata.options import MAX_TEMPERATURE


class Strict(BaseModel):
    """JSON of the very types that are asked for, and no fields beside them.

    One that is null counts as absent: clients send back what they were answered, with a null for whatever
    else their library knows.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


class Body(Strict):
    """A request's body. A field that would change the answer and is not served is refused by name, never
    passed over.

    Attributes:
        HARMLESS: bookkeeping of other platforms, which is passed over: no value could change an answer.
        NOT_SERVED: sound fields that are not served, and what they may be all the same, because it asks
            for nothing.
    """

    HARMLESS: ClassVar[frozenset[str]] = frozenset()
    NOT_SERVED: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    model: str

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, body: Any) -> Any:
        if not isinstance(body, Mapping):
            return body
        for name, allowed in cls.NOT_SERVED.items():
            if (value := body.get(name)) is not None and value not in allowed:
                raise RequestError(f"{name}: not served here", name, "unsupported_parameter")
        dropped = cls.HARMLESS | cls.NOT_SERVED.keys()
        return {name: value for name, value in body.items() if name not in dropped}


class Sampled(Body):
    """A request that is answered by sampling. What a protocol lacks of these it gets from vLLM's."""

    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None

    def sampling(self, stop_ids: Collection[int]) -> SamplingParams:
        """The engine's parameters; `stop_ids` are the model's."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
        shared = {name: getattr(self, name) for name in names}
        return SamplingParams(**shared | {"stop_ids": sorted(stop_ids)} | self.own_sampling())

    def own_sampling(self) -> dict[str, Any]:
        """The parameters that the protocol has beside these."""
        return {}


class StreamOptions(Strict):
    """What a stream carries besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool = False  # accepted: asks for padding against eavesdroppers, which is optional


def others(items: Any, known: Collection[str]) -> Iterator[tuple[int, str]]:
    """Index and type of the things in a list whose `type` is none of `known`, to refuse them by name.

    Args:
        items: as the client sent them; what is malformed is left to the models to refuse.
        known: types.
    """
    for i, item in enumerate(items if isinstance(items, list) else ()):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind not in known:
            yield i, kind


def with_notes(result: Any) -> Any:
    """A tool's result, in any protocol, with a note to the model in place of each part that is no text.

    A person's picture is refused. But an agent reads a picture on its own account, and its result stays in
    the history: refused, it would end the whole session.
    """
    if not isinstance(result, list):
        return result
    return [_note(part["type"]) if _is_no_text(part) else part for part in result]


def _is_no_text(part: Any) -> bool:
    match part:
        case {"type": "document", "source": {"type": "text"}}:
            return False
        case {"type": "image" | "image_url" | "input_image" | "document" | "file" | "input_file"}:
            return True
    return False


def _note(kind: str) -> dict[str, str]:
    return {"type": "text", "text": f"[{kind} left out: this model reads text only]"}
