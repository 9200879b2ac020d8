"""Arguments typed by a tool's schema: what models write becomes what the schema asks for, or stays text."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.serve.arguments import ArgumentWriter, Tools, as_json

REFERRED = {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}
PROPERTIES = {
    "plain": {"type": "string"},
    "listed": {"type": ["integer", "null"]},
    "either": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "all": {"allOf": [{"type": "object"}, {"description": "d"}]},
    "enum": {"enum": ["a", "b"]},
    "mixed": {"enum": [1, "b", None, True]},
    "const": {"const": 5},
    "open": {"type": "boolean", "nullable": True},
    "referred": REFERRED,
    "cyclic": {"$ref": "#/$defs/Loop"},
    "broken": {"$ref": "#/$defs/None/at/all"},
    "odd": "not a schema",
}
DEFS = {"Point": {"type": "object"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}] * 50}}
TOOLS = Tools(
    [
        {"name": "f", "parameters": {"properties": PROPERTIES, "$defs": DEFS}},
        {"name": "any", "parameters": {"additionalProperties": {"type": "integer"}}},
        {"name": "none"},
        {"name": "odd", "parameters": {"properties": [1]}},
    ]
)


@pytest.mark.parametrize(
    ("key", "types"),
    [
        ("plain", {"string"}),
        ("listed", {"integer", "null"}),
        ("either", {"string", "number"}),
        ("all", {"object"}),
        ("enum", {"string"}),
        ("mixed", {"integer", "string", "null", "boolean"}),
        ("const", {"integer"}),
        ("open", {"boolean", "null"}),
        ("referred", {"object", "null"}),
        ("cyclic", set()),  # CASES 88: no end, and no harm
        ("broken", set()),
        ("odd", set()),
        ("unknown", set()),
    ],
)
def test_types_of_a_parameter(key: str, types: set[str]) -> None:
    assert TOOLS.types("f", key) == types


def test_types_without_a_declaration() -> None:
    assert TOOLS.types("any", "x") == {"integer"}
    assert TOOLS.types("none", "x") == TOOLS.types("odd", "x") == TOOLS.types("unknown", "x") == frozenset()
    assert TOOLS.declares("f", "plain")
    assert not TOOLS.declares("f", "other")


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", ["integer"], 5),
        (" 5 ", ["integer"], 5),
        ("5.5", ["integer"], 5.5),
        ("5", ["number"], 5),
        ("2026-01-15", ["integer"], "2026-01-15"),  # CASES 6
        ("true", ["boolean"], True),
        ("False", ["boolean"], False),
        ("None", ["integer", "null"], None),
        ("None", [], "None"),
        ("yes", ["boolean"], "yes"),
        ('{"a": 1}', ["object", "null"], {"a": 1}),  # CASES 5
        ('{"a": 1}', ["object", "string"], {"a": 1}),
        ('{"a": 1}', ["string"], '{"a": 1}'),
        ("{'a': 1}", ["object"], "{'a': 1}"),
        ("[1, 2]", ["array"], [1, 2]),
        ("5", ["string", "integer"], "5"),  # CASES 5: scalars stay
        ("true", ["string", "boolean"], "true"),
        ("null", ["string", "null"], None),
        ("5", [], 5),
        ("word", [], "word"),
        ("NaN", [], "NaN"),
        ("NaN", ["number"], "NaN"),
        ("Infinity", ["number"], "Infinity"),
        ("[" * 100_000, ["array"], "[" * 100_000),  # CASES 94
        ("", ["integer"], ""),
        ("12345678901234567890123", ["integer"], 12345678901234567890123),
    ],
)
def test_values(text: str, types: list[str], value: Any) -> None:
    got = json.loads(as_json(text, frozenset(types)))
    assert (got, type(got)) == (value, type(value))


TYPES = st.sets(st.sampled_from(["string", "null", "integer", "number", "boolean", "object", "array"]))


@given(
    pieces=st.lists(
        st.sampled_from(["null", "nu", "ll", "No", "ne", "5", "tr", "ue", '"', "\\", "é", "{}", "\n"])
    ),
    types=TYPES,
)
@example(pieces=["null", "\n"], types={"null"})
@example(pieces=[" ", "No", "ne"], types={"null", "string"})
def test_pieces_give_what_the_whole_gives(pieces: list[str], types: set[str]) -> None:
    """CASES 8."""
    writer = ArgumentWriter(frozenset(types))
    written = "".join([*(writer.add(piece) for piece in pieces), writer.finish()])
    assert json.loads(written) == json.loads(as_json("".join(pieces), frozenset(types)))
