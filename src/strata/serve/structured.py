"""Structured output: the many fields in which clients ask for it, and the one grammar that they mean.

`response_format` is OpenAI's; `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar` and
`structured_outputs` are vLLM's; `grammar` and `json_schema` are llama.cpp's.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata.engine.messages import Grammar
from strata.errors import RequestError

FIELDS = (
    *("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("structured_outputs", "grammar", "json_schema"),
)
_VLLM = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "lark"}
ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Structure:
    """What an answer must look like.

    Args:
        grammar: says it.
        field: of the client's request that asks for it.
        parts: the fields that hold the schemas in `grammar.schemas`.
    """

    grammar: Grammar
    field: str
    parts: tuple[str, ...] = ()

    def field_of(self, place: str) -> str:
        """The client's field for what the engine calls `grammar`, or `grammar.schemas[2]`."""
        found = re.fullmatch(r"grammar\.schemas\[(\d+)\]", place)
        return self.parts[int(found[1])] if found else self.field


def named_format(value: Mapping[str, Any] | None, field: str) -> Structure | None:
    """The structure of a format that holds its schema itself, as in Responses and in Anthropic's messages.

    Raises:
        RequestError: it is none.
    """
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return _structure("json_schema", ANY_OBJECT, field)
        case {"type": "json_schema", "schema": schema}:
            return _structure("json_schema", schema, f"{field}.schema")
        case {"type": "json_schema"}:
            raise RequestError(f"{field}.schema: is missing", f"{field}.schema")
    raise RequestError(f"{field}: type {value.get('type')!r:.60} is not served", field)


def structure_of(fields: Mapping[str, Any]) -> Structure | None:
    """The structure that a request's fields (those of `FIELDS`, without nulls) ask for, if any.

    Raises:
        RequestError: a field is wrong, or two ask.
    """
    found = [structure for name in FIELDS if (structure := _read(name, fields.get(name))) is not None]
    if len(found) > 1:
        first, second = found[0].field, found[1].field
        raise RequestError(f"{second}: {first} asks for a structure already; send one", second)
    return found[0] if found else None


def _read(name: str, value: Any) -> Structure | None:
    if value in (None, ""):
        return None
    match name:
        case "response_format":
            return _response_format(value)
        case "structured_outputs":
            asked = {key: part for key, part in value.items() if part is not None}
            if asked.pop("json_object", False):
                asked["json"] = ANY_OBJECT
            if len(asked) != 1 or not asked.keys() <= _VLLM.keys():
                expected = ", ".join(_VLLM)
                raise RequestError(f"{name}: exactly one of {expected}, json_object is expected", name)
            ((key, part),) = asked.items()
            return _structure(_VLLM[key], part, f"{name}.{key}")
        case "json_schema":
            return _structure(name, value, name)
    kind = _VLLM[name.removeprefix("guided_")]
    return _structure(kind, value, name)


def _response_format(value: Mapping[str, Any]) -> Structure | None:
    field = "response_format"
    match value:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return _structure("json_schema", value.get("schema", ANY_OBJECT), field)
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return _structure("json_schema", schema, f"{field}.json_schema.schema")
        case {"type": "json_schema", "schema": schema}:
            return _structure("json_schema", schema, f"{field}.schema")
        case {"type": "json_schema"}:
            raise RequestError(f"{field}.json_schema: has no schema", f"{field}.json_schema")
    kind = value.get("type")
    raise RequestError(f"{field}: type {kind!r:.60} is not text, json_object or json_schema", field)


def _structure(kind: str, value: Any, field: str) -> Structure:
    match kind, value:
        case "json_schema", dict() | bool():
            text = json.dumps(value)
        case "json_schema", str():
            text = _checked_json(value, field)
        case "regex" | "lark", str():
            text = value
        case "choice", [_, *_] if all(isinstance(choice, str) and choice for choice in value):
            text = json.dumps(value)
        case _:
            expected = {"json_schema": "a JSON schema", "choice": "a list of strings"}.get(kind, "a string")
            raise RequestError(f"{field}: {expected} is expected", field)
    return Structure(Grammar(kind, text), field)  # type: ignore[arg-type]  # one of the four


def _checked_json(text: str, field: str) -> str:
    try:
        return json.dumps(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{field}: is not JSON: {error}", field) from error
