"""How models write tool calls, as data; a model's dialect is seen from its chat template."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.serve.callwriter import CallWriter
from strata.serve.cursor import Cursor, Reader, accept, name_before
from strata.serve.jsoncalls import read_calls, write_call
from strata.serve.xmlcalls import CALL, END_CALL, END_FUNCTION, END_PARAMETER, FUNCTION, read_function

ARGS, CALL_ID = "[ARGS]", "[CALL_ID]"
PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to write tool calls.

    What follows a marker decides how a call is read: JSON, a list of JSON, or tags. A marker that no call
    follows is text.

    Args:
        name: for logs.
        signs: texts of which a template of this dialect holds all.
        markers: what begins calls.
        closers: what may stand behind a call, once or more often.
        bare: an answer, or what follows a call, may begin with a call's JSON and no marker, if that names a
            declared function.
        unsure: markers that begin calls of declared functions only.
        opening: the beginning of a call, up to the function's name, to make the model write one.
        named_opening: likewise up to the arguments; NAME stands for the function's name.
        ending: what stands behind the arguments.
        between: what may stand between two calls.
        further_opening: `named_opening` of a call that follows another, where that differs.
        last: what stands behind the last call.
        id_size: letters and digits of a call's id, where the template insists.
    """

    name: str
    signs: tuple[str, ...]
    markers: tuple[str, ...]
    closers: tuple[str, ...]
    opening: str
    named_opening: str
    ending: str
    between: str = "\n"
    further_opening: str | None = None
    last: str = ""
    bare: bool = False
    unsure: tuple[str, ...] = ()
    id_size: int | None = None

    def forced_opening(self, names: Sequence[str]) -> str:
        """What an answer begins with that is to be a call of one of these functions."""
        return self.named_opening.replace("NAME", names[0]) if len(names) == 1 else self.opening


_TAGS = {
    "markers": (CALL, FUNCTION),
    "unsure": (FUNCTION,),
    "closers": (END_PARAMETER, END_FUNCTION, END_CALL),
}

QWEN = Dialect(
    name="qwen",
    signs=(FUNCTION, "<parameter="),
    opening="<tool_call>\n<function=",
    named_opening="<tool_call>\n<function=NAME>\n",
    ending="</function>\n</tool_call>",
    **_TAGS,
)
MISTRAL = Dialect(
    name="mistral",
    signs=(TOOL_CALLS, ARGS),
    markers=(TOOL_CALLS,),
    closers=(),
    opening=TOOL_CALLS,
    named_opening=f"{TOOL_CALLS}NAME{ARGS}",
    ending="",
    between="",
    id_size=9,
)
MISTRAL_LIST = Dialect(
    name="mistral list",
    signs=(TOOL_CALLS,),
    markers=(TOOL_CALLS,),
    closers=(),
    opening=f'{TOOL_CALLS} [{{"name": "',
    named_opening=f'{TOOL_CALLS} [{{"name": "NAME", "arguments": ',
    ending="}",
    between=", ",
    further_opening='{"name": "NAME", "arguments": ',
    last="]",
    id_size=9,
)
LLAMA = Dialect(
    name="llama",
    signs=("ipython", '"parameters": '),
    markers=(PYTHON_TAG, CALL, FUNCTION),
    closers=(";", END_FUNCTION, END_CALL),
    opening='{"name": "',
    named_opening='{"name": "NAME", "parameters": ',
    ending="}",
    between="; ",
    bare=True,
    unsure=(FUNCTION,),
)
HERMES = Dialect(
    name="hermes",
    signs=(CALL,),
    opening='<tool_call>\n{"name": "',
    named_opening='<tool_call>\n{"name": "NAME", "arguments": ',
    ending="}\n</tool_call>",
    **_TAGS,
)
GENERIC = Dialect(
    name="generic",
    signs=(),
    bare=True,
    opening=HERMES.opening,
    named_opening=HERMES.named_opening,
    ending=HERMES.ending,
    **_TAGS,
)
DIALECTS = (QWEN, MISTRAL, MISTRAL_LIST, LLAMA, HERMES, GENERIC)


def dialect_of(template: str) -> Dialect:
    """The dialect that a chat template shows the model, or asks it to use."""
    return next(dialect for dialect in DIALECTS if all(sign in template for sign in dialect.signs))


def read_marked(cursor: Cursor, writer: CallWriter, dialect: Dialect, marker: str) -> Reader[None]:
    """Read the calls behind a marker, or without one where it is empty; begins none if this is text."""
    num_before = writer.num_started
    writer.declared_only = not marker or marker in dialect.unsure
    if marker == FUNCTION or (marker == CALL and (yield from accept(cursor, FUNCTION))):
        yield from read_function(cursor, writer)
    elif marker == TOOL_CALLS and not (yield from _begins_json(cursor)):
        yield from _read_named(cursor, writer)
    else:
        yield from read_calls(cursor, writer)
    if writer.num_started > num_before:
        while dialect.closers and (yield from accept(cursor, *dialect.closers)):
            pass


def _read_named(cursor: Cursor, writer: CallWriter) -> Reader[None]:
    """Read `NAME[ARGS]{...}`, or `NAME[CALL_ID]ID[ARGS]{...}`."""
    name = yield from name_before(cursor, ARGS, CALL_ID)
    if name is None:
        return
    if (yield from _begins_json(cursor)) or (yield from name_before(cursor, ARGS)):
        yield from write_call(cursor, writer, name)


def _begins_json(cursor: Cursor) -> Reader[bool]:
    """Whether an object or a list comes next."""
    found = yield from accept(cursor, "{", "[")
    if found:
        cursor.put_back(found)
    return bool(found)
