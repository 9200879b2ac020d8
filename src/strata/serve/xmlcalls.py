"""Tool calls in tags, as Qwen's coder models write them, read and passed on as they arrive:

    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>

VALUE is raw text between one line end and another, and may hold these very tags: a file that shows them, for
one. So a closing tag counts only where what follows it is right for one. Models leave tags out and repeat
them; what they meant is taken as said wherever that is certain.
"""

import json
import re
from collections.abc import Callable

from strata.serve.arguments import ArgumentWriter
from strata.serve.callwriter import CallWriter
from strata.serve.cursor import Cursor, Reader, accept, may_begin, name_before, skip
from strata.serve.jsoncalls import write_call

FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
CALL, END_CALL = "<tool_call>", "</tool_call>"

# What may follow a tag that ends a value, if not the end of the answer.
_FOLLOWERS = {
    END_PARAMETER: (PARAMETER, END_FUNCTION, END_CALL),
    END_FUNCTION: (END_CALL,),
    END_CALL: (CALL,),
}
NOT_CLOSING = -1
MAX_KEY = 256  # characters of a parameter's name
_KEY = re.compile(rf"<parameter=([^>\n]{{1,{MAX_KEY}}})>")
_SPACE, _REPEATED = re.compile(r"\s*"), re.compile(r"(?:\s|</parameter>)*")


def read_function(cursor: Cursor, writer: CallWriter) -> Reader[None]:
    """Read a call from behind its `<function=`; begins none if this is something else."""
    name = yield from name_before(cursor, ">")
    if name is None:
        return
    yield from skip(cursor)
    if cursor.text.startswith("{"):  # Llama's own form of the tag has JSON inside
        yield from write_call(cursor, writer, name)
    elif writer.start(name):
        yield from _read_parameters(cursor, writer, name)


def _read_parameters(cursor: Cursor, writer: CallWriter, name: str) -> Reader[None]:
    written: set[str] = set()
    complete = False
    writer.arguments("{")
    while True:
        tag = yield from accept(cursor, PARAMETER, END_PARAMETER, END_FUNCTION, END_CALL, CALL, FUNCTION)
        if tag == PARAMETER:
            if not (yield from _read_parameter(cursor, writer, name, written)):
                break
        elif tag in (END_FUNCTION, END_CALL):
            complete = True
            break
        elif tag in (CALL, FUNCTION):  # the next call; this one's end was left out
            cursor.put_back(tag)
            complete = True
            break
        elif tag is None and not (yield from _skip_stray(cursor, writer)):
            complete = not cursor.cut
            break
    writer.arguments("}" if complete else "")
    writer.end(complete)


def _skip_stray(cursor: Cursor, writer: CallWriter) -> Reader[bool]:
    """Set text between the tags aside, up to where a tag may begin; False at the end of the answer."""
    yield from skip(cursor)
    if not cursor.text:
        return False
    stray = [cursor.take(1)]
    while not cursor.text.startswith("<"):
        at = cursor.text.find("<")
        stray.append(cursor.take(at if at >= 0 else len(cursor.text)))
        if cursor.ended:
            break
        if at < 0:
            yield
    writer.stray("".join(stray))
    return True


def _read_parameter(cursor: Cursor, writer: CallWriter, function: str, written: set[str]) -> Reader[bool]:
    """Read a parameter from behind its `<parameter=`; False if the answer ends within it."""
    key = yield from name_before(cursor, ">")
    if key is None:
        writer.stray(PARAMETER)
        return not cursor.ended
    value = ArgumentWriter(writer.tools.types(function, key))
    repeated = key in written  # the first one has been sent and stands
    if not repeated:
        writer.arguments((", " if written else "") + json.dumps(key, ensure_ascii=False) + ": ")
    written.add(key)

    def write(text: str) -> None:
        if not repeated:
            writer.arguments(text)

    def is_next(key: str) -> bool:
        return key not in written and writer.tools.declares(function, key)

    ended = yield from _pass_value(cursor, lambda text: write(value.add(text)), is_next)
    write(value.finish() if ended else value.break_off())
    return ended


def _pass_value(cursor: Cursor, emit: Callable[[str], None], is_next: Callable[[str], bool]) -> Reader[bool]:
    """Pass a value on as it arrives, and read the tag that ends it; False if the answer ends first."""
    while not cursor.text and not cursor.ended:
        yield
    cursor.take(cursor.text.startswith("\n"))
    scanned = 0
    while True:
        at = cursor.text.find("<", scanned)
        size = _closing_size(cursor, at, is_next) if at >= 0 else None
        if size == NOT_CLOSING:
            scanned = at + 1
            continue
        end = at if at >= 0 else len(cursor.text)
        if cursor.text.endswith("\n", 0, end) and not (size is None and cursor.ended):
            end -= 1  # the line end before a closing tag is not the value's
        emit(cursor.take(end))
        if size is not None:
            cursor.take(at - end + size)
            return True
        if cursor.ended:
            return False
        scanned = 0
        yield


def _closing_size(cursor: Cursor, at: int, is_next: Callable[[str], bool]) -> int | None:
    """How much of the text at `at` is to be read as the value's end; None while that is open."""
    text = cursor.text
    if at > 0 and text[at - 1] == "\n" and text.startswith(PARAMETER, at):
        # Without an end tag, only a parameter that the function has and that has not come yet is believed.
        if match := _KEY.match(text, at):
            return 0 if is_next(match[1].strip()) else NOT_CLOSING
        broken = (
            cursor.ended or "\n" in text[at:] or ">" in text[at:] or len(text) - at > len(PARAMETER) + MAX_KEY
        )
        return NOT_CLOSING if broken else None
    tag = next((tag for tag in _FOLLOWERS if text.startswith(tag, at)), None)
    if tag is None:
        tags = (PARAMETER, *_FOLLOWERS)
        return None if not cursor.ended and may_begin(text, tags, at) == at else NOT_CLOSING
    size = len(tag) if tag == END_PARAMETER else 0
    between = (_REPEATED if tag == END_PARAMETER else _SPACE).match(text, at + len(tag))
    rest = text[between.end() if between else at :]
    if not rest and cursor.ended:
        return size if tag == END_PARAMETER or not cursor.cut else NOT_CLOSING
    followers = (*_FOLLOWERS[tag], *([END_PARAMETER] if tag == END_PARAMETER else []))
    if rest.startswith(_FOLLOWERS[tag]):
        return size
    undecided = not cursor.ended and any(follower.startswith(rest) for follower in followers)
    return None if undecided else NOT_CLOSING
