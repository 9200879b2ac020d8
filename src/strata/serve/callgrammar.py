"""The grammar of answers that may or must call tools: the dialect's syntax, and inside it the arguments.

The text is llguidance's Lark. A function that is `strict` gets its own schema for its arguments, any other an
object. In Qwen's tags a string is raw text; where a schema asks more of a string than a list of values, the
arguments of its function are written as JSON inside the tags, which models and the router know as well.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strata.engine.grammar_check import JSON_OPTIONS
from strata.engine.messages import Grammar
from strata.serve.dialects import QWEN, Dialect
from strata.serve.structured import ANY_OBJECT
from strata.serve.xmlcalls import END_CALL, END_FUNCTION, END_PARAMETER, FUNCTION, PARAMETER


def _alternatives(texts: Iterable[str]) -> str:
    """Texts as a regular expression of Lark."""
    return "|".join(re.escape(text).replace("/", r"\/") for text in texts)


_ANNOTATIONS = {"type", "title", "description", "default", "examples", "deprecated", "$comment"}
_TAGS = _alternatives((END_FUNCTION, END_CALL, PARAMETER, FUNCTION))
_RAW = rf"""raw[lazy]: RAW
RAW: /(?s:.*)\n<\/parameter>\n/ & ~/(?s:.*)({_TAGS})(?s:.*)/"""


class CallGrammar:
    """Writes the grammar of one request.

    Args:
        dialect: how the model writes calls.
        tools: the functions' names and schemas of their arguments; None for those that are not strict.
        special: the vocabulary's special tokens, text to id.
    """

    def __init__(
        self, dialect: Dialect, tools: Mapping[str, Mapping[str, Any] | None], special: Mapping[str, int]
    ):
        self._dialect, self._tools, self._special = dialect, tools, special
        self._rules: list[str] = [_RAW] if dialect is QWEN else []

    def forced(self, names: Sequence[str], parallel: bool) -> Grammar:
        """Calls, of which the first is of one of `names`; its opening has been written already."""
        return self._grammar(f"start: {self._calls(names, parallel, self._dialect.forced_opening(names))}")

    def free(self, content: Grammar | None, parallel: bool) -> Grammar:
        """Content, calls, or text and then calls; the content may have a grammar of its own."""
        dialect, names = self._dialect, list(self._tools)
        if content is not None:
            return self._grammar(f"start: {self._content(content)} | {self._calls(names, parallel)}")
        text = f"/(?s:.*)/ & ~/(?s:.*)({_alternatives(dialect.markers)})(?s:.*)/"
        if dialect.bare:
            text += r" & ~/\s*\{(?s:.*)/"
        marker = next((marker for marker in dialect.markers if dialect.opening.startswith(marker)), None)
        if marker is None:  # behind text, a call that begins without a marker would be text as well
            return self._grammar(f"start: TEXT | {self._calls(names, parallel)}", f"TEXT: {text}")
        if marker in self._special:
            return self._grammar(f"start: TEXT | TEXT? {self._calls(names, parallel)}", f"TEXT: {text}")
        # A marker that is text ends the text before it only where both are one lexeme.
        others = _alternatives(other for other in dialect.markers if other != marker)
        before = f"/(?s:.*){_alternatives([marker])}/" + (f" & ~/(?s:.*)({others})(?s:.*)/" if others else "")
        calls = self._calls(names, parallel, marker)
        return self._grammar(
            f"start: TEXT | before {calls}", f"TEXT: {text}", "before[lazy]: BEFORE", f"BEFORE: {before}"
        )

    def _grammar(self, *rules: str) -> Grammar:
        return Grammar("lark", "\n".join(["%llguidance {}", *rules, *dict.fromkeys(self._rules)]))

    def _calls(self, names: Sequence[str], parallel: bool, begun: str = "") -> str:
        """Calls, of which the first is of one of `names` and has begun."""
        dialect = self._dialect
        calls = f"({' | '.join(self._call(name, dialect.named_opening, begun) for name in names)})"
        if parallel:
            opening = dialect.further_opening or dialect.named_opening
            further = " | ".join(self._call(name, opening) for name in self._tools)
            between = _quoted(dialect.between) if dialect.between else ""
            if dialect.between.isspace():  # behind the last call, too, where it asks for no other
                calls += f" ({between}? ({further}))* {between}?"
            else:
                calls += f" ({between} ({further}))*"
        return f"{calls} {_quoted(dialect.last)}" if dialect.last else calls

    def _call(self, name: str, opening: str, begun: str = "") -> str:
        opening = opening.replace("NAME", name)
        schema = self._tools[name]
        rule = f"arguments_{list(self._tools).index(name)}"
        if self._dialect is QWEN:
            self._rules.append(f"{rule}: {_tagged(schema)}")
        else:
            self._rules.append(f"{rule}: {_json(ANY_OBJECT if schema is None else schema)}")
        return f"{self._literal(opening.removeprefix(begun))} {rule} {self._literal(self._dialect.ending)}"

    def _literal(self, text: str) -> str:
        """A text in which special tokens are such."""
        special = sorted((t for t in self._special if t in text), key=len, reverse=True)
        pattern = f"({'|'.join(map(re.escape, special))})" if special else r"(?!)"
        parts = [part for part in re.split(pattern, text) if part]
        return " ".join(
            f"<[{self._special[part]}]>" if part in self._special else _quoted(part) for part in parts
        )

    @staticmethod
    def _content(content: Grammar) -> str:
        match content.kind:
            case "json_schema":
                return _json(json.loads(content.text))
            case "choice":
                return "(" + " | ".join(map(_quoted, json.loads(content.text))) + ")"
        raise ValueError(f"a grammar of kind {content.kind!r} cannot stand beside tools")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Any) -> str:
    if isinstance(schema, dict):
        schema = schema | {"x-guidance": JSON_OPTIONS}
    return f"%json {json.dumps(schema)}"


def _tagged(schema: Mapping[str, Any] | None) -> str:
    """Arguments between Qwen's tags."""
    if schema is None:
        return f'({_quoted(PARAMETER)} /[^>\\n<]+/ ">\\n" raw)*'
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return _json(schema)  # which tells what is wrong with it
    known = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
    if not schema.keys() <= known | _ANNOTATIONS or not all(key in properties for key in required):
        return f'{_json(schema)} "\\n"'
    parts = []
    for key, value in properties.items():
        written = _value(value, schema)
        if written is None or re.search(r"[>\n<]", key):
            return f'{_json(schema)} "\\n"'
        part = f"{_quoted(f'{PARAMETER}{key}>' + chr(10))} {written}"
        parts.append(part if key in required else f"({part})?")
    return " ".join(parts) or '""'


def _value(schema: Any, root: Mapping[str, Any]) -> str | None:
    """A value with the tag that ends it; None where raw text cannot say what the schema asks for."""
    if not isinstance(schema, dict):
        return None
    end = _quoted(f"\n{END_PARAMETER}\n")
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    kind = schema.get("type")
    if isinstance(values, list) and values and kind in (None, "string"):
        # What spells another type of JSON would not come out as a string.
        plain = all(isinstance(v, str) and v.strip() == v and "\n" not in v and v for v in values)
        if plain and schema.keys() <= _ANNOTATIONS | {"enum", "const"}:
            return f"({' | '.join(map(_quoted, values))}) {end}"
        return None
    if kind == "string":
        return "raw" if schema.keys() <= _ANNOTATIONS else None
    if kind in ("integer", "number", "boolean", "array", "object"):
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        if '"#"' in json.dumps(schema) or '"#/properties' in json.dumps(schema):
            return None
        return f"{_json(definitions | schema)} {end}"
    return None
