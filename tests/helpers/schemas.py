"""JSON schemas as applications send them, drawn from a seed: nested, with enums, bounds and references."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
WORDS = (
    "name",
    "city",
    "id",
    "größe",
    "tags",
    "unit",
    "price",
    "note",
    "from",
    "to",
    "kind",
    "a b",
    "x-y",
    "日付",
)
FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "hostname", "uri")
PATTERNS = (
    "^[a-z]{2,5}$",
    "^[A-Z][0-9]+$",
    r"^\d{3}-\d{4}$",
    "^(red|green|blue)$",
    "^#[0-9a-f]{6}$",
    "[0-9]",
)


def schemas(seed: int, count: int) -> list[Schema]:
    """`count` schemas; the same ones for the same seed."""
    rng = random.Random(seed)
    return [_root(rng) for _ in range(count)]


def _root(rng: random.Random) -> Schema:
    if rng.random() < 0.15:
        return _tree(rng)
    schema = _object(rng, 3) if rng.random() < 0.8 else _any(rng, 3)
    if rng.random() < 0.3:
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Answer", **schema}
    return schema


def _tree(rng: random.Random) -> Schema:
    """A schema that refers to itself."""
    node = _object(rng, 1)
    node.setdefault("properties", {})["children"] = {
        "type": "array",
        "items": {"$ref": "#/$defs/node"},
        "maxItems": 2,
    }
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def _any(rng: random.Random, depth: int) -> Schema:
    leaves: list[Callable[[random.Random], Schema]] = [_string, _string, _number, _integer, _enum, _plain]
    if depth <= 0 or rng.random() < 0.6:
        schema = rng.choice(leaves)(rng)
    else:
        nested: list[Callable[[random.Random, int], Schema]] = [_object, _object, _array, _union]
        schema = rng.choice(nested)(rng, depth - 1)
    if rng.random() < 0.2:
        schema = {**schema, "description": "What it is"}
    return schema


def _object(rng: random.Random, depth: int) -> Schema:
    keys = rng.sample(WORDS, rng.randint(0, 6))
    schema: Schema = {"type": "object", "properties": {key: _any(rng, depth) for key in keys}}
    if keys and rng.random() < 0.8:
        schema["required"] = rng.sample(keys, rng.randint(1, len(keys)))
    chance = rng.random()
    if chance < 0.5:
        schema["additionalProperties"] = False
    elif chance < 0.65:
        schema["additionalProperties"] = _string(rng)
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "array", "items": _any(rng, depth)}
    if rng.random() < 0.5:
        schema["minItems"] = rng.randint(0, 3)
    if rng.random() < 0.5:
        schema["maxItems"] = schema.get("minItems", 0) + rng.randint(0, 3)
    if rng.random() < 0.2:
        schema = {"type": "array", "prefixItems": [_plain(rng), _string(rng)], "items": False, "minItems": 2}
    return schema


def _union(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.5:
        return {"anyOf": [_any(rng, depth), {"type": "null"}]}
    return {"anyOf": [_any(rng, depth) for _ in range(rng.randint(2, 3))]}


def _string(rng: random.Random) -> Schema:
    match rng.randrange(5):
        case 0:
            return {"type": "string", "pattern": rng.choice(PATTERNS)}
        case 1:
            return {"type": "string", "format": rng.choice(FORMATS)}
        case 2:
            low = rng.randint(0, 5)
            return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 20)}
    return {"type": "string"}


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-1000, 1000)
    bounds = {"minimum": low, "maximum": low + rng.randint(0, 2000)} if rng.random() < 0.6 else {}
    return {"type": "integer", **bounds}


def _number(rng: random.Random) -> Schema:
    low = round(rng.uniform(-10, 10), 2)
    bounds = {"minimum": low, "exclusiveMaximum": low + rng.randint(1, 9)} if rng.random() < 0.6 else {}
    return {"type": "number", **bounds}


def _enum(rng: random.Random) -> Schema:
    values = rng.sample(["low", "high", 'a "quote"', "Zürich", 1, 2.5, True, None, ""], rng.randint(1, 5))
    return {"const": values[0]} if len(values) == 1 else {"enum": values}


def _plain(rng: random.Random) -> Schema:
    return {"type": rng.choice(["boolean", "null", "string", "integer", ["string", "null"]])}
