"""Tool calls that are JSON: `{"name": ..., "arguments": {...}}`, read and passed on as they arrive.

Arguments go out as the model wrote them, with what JSON does not allow inside a string put right: raw control
characters and backslashes that escape nothing. Whatever else is wrong with them is for the client to judge.
"""

import json
import re
from collections.abc import Callable

from strata.serve.arguments import escaped
from strata.serve.callwriter import CallWriter
from strata.serve.cursor import Cursor, Reader, accept, skip

_NAME_KEYS = ("name", "function", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_MAX_NAME = 256  # characters of a name or key; what is longer is no call
_IN_STRING = re.compile(r'["\\]')
_SCALAR = re.compile(r"[-+.\w]*")
_OUTSIDE = re.compile(r'["{}\[\]<]')  # "<" begins a tag there: JSON has none outside of its strings
_INSIDE = re.compile(r'["\\\x00-\x1f]')


def read_calls(cursor: Cursor, writer: CallWriter) -> Reader[None]:
    """Read one call, or a list of them; begins none if this is something else."""
    if not (yield from accept(cursor, "[")):
        yield from read_call(cursor, writer)
        return
    num_ended = writer.num_complete
    while True:
        yield from read_call(cursor, writer)
        num_ended += 1
        if writer.num_complete < num_ended or (yield from accept(cursor, ",", "]")) != ",":
            return


def read_call(cursor: Cursor, writer: CallWriter) -> Reader[None]:
    """Read one object; begins no call if it is none."""
    if not (yield from accept(cursor, "{")):
        return
    name, early, depth, begun = None, "{}", 1, False
    while depth:
        match (yield from _peek(cursor)):
            case "}":
                cursor.take(1)
                depth -= 1
                continue
            case ",":
                cursor.take(1)
                continue
        key = yield from _read_string(cursor, _MAX_NAME)
        if key is None or not (yield from accept(cursor, ":")):
            return  # no JSON; a call that has begun is complete all the same
        first = yield from _peek(cursor)
        if first == "{" and key == "function":  # OpenAI's own form has the call in there
            cursor.take(1)
            depth += 1
        elif first == '"' and key in _NAME_KEYS and name is None:
            name = yield from _read_string(cursor, _MAX_NAME)
        elif key not in _ARGUMENT_KEYS or begun:
            yield from _pass_value(cursor, lambda text: None)
        elif name is None:
            collected: list[str] = []
            yield from _pass_arguments(cursor, collected.append)
            early = "".join(collected)
        else:
            begun = yield from write_call(cursor, writer, name)
            if not begun or writer.num_complete < writer.num_started:
                return
    if name is not None and not begun and writer.start(name):
        writer.arguments(early)
        writer.end(complete=True)


def write_call(cursor: Cursor, writer: CallWriter, name: str) -> Reader[bool]:
    """Write the call whose arguments come next; False if it is none."""
    if not writer.start(name):
        return False
    writer.end((yield from _pass_arguments(cursor, writer.arguments)))
    return True


def _pass_arguments(cursor: Cursor, emit: Callable[[str], None]) -> Reader[bool]:
    """Pass the arguments on; some models write them as a JSON text within a string, or null for none."""
    first = yield from _peek(cursor)
    if first in ("{", "["):
        return (yield from _pass_value(cursor, emit))
    collected: list[str] = []
    whole = yield from _pass_value(cursor, collected.append)
    text = "".join(collected)
    if first == '"' and whole:
        inside = json.loads(text)
        text = inside if _is_object(inside) else text
    emit("{}" if text in ("null", "") and whole else text)
    return whole


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _pass_value(cursor: Cursor, emit: Callable[[str], None]) -> Reader[bool]:
    """Pass the JSON value on that comes next; False if it breaks off."""
    first = yield from _peek(cursor)
    if first in ("{", "["):
        return (yield from _pass_nested(cursor, emit))
    if first == '"':
        text = yield from _read_string(cursor)
        if text is not None:
            emit(json.dumps(text, ensure_ascii=False))
        return text is not None
    while True:
        match = _SCALAR.match(cursor.text)
        if match is None or match.end() < len(cursor.text) or cursor.ended:
            break
        yield
    emit(scalar := cursor.take(match.end() if match else 0))
    return bool(scalar)


def _pass_nested(cursor: Cursor, emit: Callable[[str], None]) -> Reader[bool]:
    """Pass an object or a list on as it arrives; False if it breaks off."""
    depth, quoted = 0, False
    while True:
        text, at, out = cursor.text, 0, []
        while match := (_INSIDE if quoted else _OUTSIDE).search(text, at):
            out.append(text[at : match.start()])
            mark, at = match[0], match.end()
            if mark == "\\":
                if at == len(text) and not cursor.ended:
                    at -= 1  # what it escapes is still to come
                    break
                pair, at = text[at - 1 : at + 1], at + 1
                out.append(pair if pair[1:] in tuple('"\\/bfnrtu') else "\\" + pair)
                continue
            if mark == "<" and not quoted:
                at -= 1
                break
            quoted = quoted != (mark == '"')
            depth += (mark in "{[") - (mark in "}]") if not quoted and mark != '"' else 0
            out.append(escaped(mark) if quoted and mark < " " else mark)
            if depth == 0 and not quoted:
                break
        else:
            out.append(text[at:])
            at = len(text)
        cursor.take(at)
        emit("".join(out))
        if depth == 0 and not quoted:
            return True
        if cursor.ended or (not quoted and cursor.text.startswith("<")):
            return False
        yield


def _peek(cursor: Cursor) -> Reader[str]:
    """The next character that is no white space; empty at the end of the text."""
    yield from skip(cursor)
    return cursor.text[:1]


def _read_string(cursor: Cursor, limit: int | None = None) -> Reader[str | None]:
    """Read a JSON string; None if there is none, or it has more than `limit` characters."""
    scanned = 1
    while cursor.text.startswith('"'):
        mark = _IN_STRING.search(cursor.text, scanned)
        if mark and mark[0] == '"':
            if limit is not None and mark.end() > limit:
                return None
            try:
                text = json.loads(cursor.take(mark.end()), strict=False)
            except ValueError:
                return None
            return text.encode("utf-8", "replace").decode()  # half a surrogate pair is no character
        if mark and mark.end() < len(cursor.text):
            scanned = mark.end() + 1  # past the escaped character
            continue
        if cursor.ended or (limit is not None and len(cursor.text) > limit):
            return None
        scanned = mark.start() if mark else max(len(cursor.text), 1)
        yield
    return None
