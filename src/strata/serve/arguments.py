"""Arguments that a model wrote as text become JSON, typed by the tool's schema."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
_BY_NAME = {"none": "null", "null": "null", "true": "true", "false": "false"}


class Tools:
    """The functions that a request declares.

    Args:
        functions: OpenAI's function objects: name, and a JSON schema as parameters.
    """

    def __init__(self, functions: Iterable[Mapping[str, Any]]):
        self._schemas = {function["name"]: function.get("parameters") or {} for function in functions}

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def declares(self, name: str, key: str) -> bool:
        """Whether a function has this parameter."""
        return key in _mapping(_mapping(self._schemas.get(name)).get("properties"))

    def types(self, name: str, key: str) -> frozenset[str]:
        """The JSON types that a parameter may have; none where the schema does not say."""
        schema = _mapping(self._schemas.get(name))
        wanted = _mapping(schema.get("properties")).get(key, schema.get("additionalProperties"))
        return frozenset(_types(wanted, schema, set()))


def _types(schema: Any, root: Mapping[str, Any], seen: set[str]) -> set[str]:
    """The JSON types that a schema names, in itself or in its alternatives.

    Args:
        schema: of a value.
        root: what its references refer to.
        seen: the references followed so far: a second time they would add nothing, and perhaps never end.
    """
    schema = _mapping(schema)
    if isinstance(reference := schema.get("$ref"), str):
        if reference in seen:
            return set()
        seen.add(reference)
        return _types(_resolved(reference, root), root, seen)
    named = schema.get("type")
    types = {named} if isinstance(named, str) else {t for t in _list(named) if isinstance(t, str)}
    for key in ("anyOf", "oneOf", "allOf"):
        for option in _list(schema.get(key)):
            types |= _types(option, root, seen)
    if not types:
        values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
        types = {_type_of(value) for value in values}
    return types | ({"null"} if types and schema.get("nullable") is True else set())


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """What `#/$defs/name` refers to."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = _mapping(found).get(step.replace("~1", "/").replace("~0", "~"))
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _type_of(value: Any) -> str:
    return _JSON_TYPES.get(type(value), "null")


class ArgumentWriter:
    """One argument's JSON text, written while its value arrives.

    What can only be a string goes out as it comes. Any other value waits for its end: it becomes the JSON
    that it spells if the schema allows that type (without a schema, any), and else stays the text that it is.
    Where a string is allowed too, only objects, lists and null are taken for JSON; numbers stay text.

    Args:
        types: the JSON types of the parameter.
    """

    def __init__(self, types: frozenset[str]):
        self._types = types
        self._text: str | None = ""  # None once it goes out as a string
        self._streams = bool(types) and types <= {"string", "null"}

    def add(self, text: str) -> str:
        """More of the value; returns JSON text to send."""
        if self._text is None:
            return escaped(text)
        self._text += text
        if not self._streams or not self._text or ("null" in self._types and _may_become_null(self._text)):
            return ""
        text, self._text = self._text, None
        return '"' + escaped(text)

    def finish(self) -> str:
        """The value's end; returns the rest of its JSON text."""
        if self._text is None:
            return '"'
        return as_json(self._text, self._types)

    def break_off(self) -> str:
        """What is left of a value that never ended."""
        return self._text or ""


def _may_become_null(text: str) -> bool:
    """Whether `as_json` could take a text that begins so for null."""
    word = text.strip().lower()
    nulls = [name for name, value in _BY_NAME.items() if value == "null"]
    return (
        word in nulls or (text == text.rstrip() and any(name.startswith(word) for name in nulls)) or not word
    )


def as_json(text: str, types: frozenset[str]) -> str:
    """The JSON text of a whole value."""
    stripped = text.strip()
    if types != {"string"}:
        # Models write Python's names of these as well.
        named = _BY_NAME.get(stripped.lower())
        spelled = named if named and named != stripped and types else stripped
        if (kind := _json_type(spelled)) and _allowed(kind, types):
            return spelled
    return json.dumps(text, ensure_ascii=False)


def _json_type(text: str) -> str | None:
    try:
        return _type_of(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _allowed(kind: str, types: frozenset[str]) -> bool:
    if not types:
        return True
    if kind in ("integer", "number"):  # a number of the wrong kind is still nearer than text
        return bool(types & {"integer", "number"}) and "string" not in types
    return kind in types and (kind != "boolean" or "string" not in types)


def escaped(text: str) -> str:
    """A part of a JSON string's inside."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
