"""The jinja2 sandbox for chat templates, set up as transformers does, with bounds on what a template can do.

A template comes with the model file and is untrusted. The sandbox keeps it from Python; the bounds keep it
from running or growing without end: every turn of a loop and every macro call looks at the clock, operators
that build large values are refused, and so is a long output. What one call of a string method or filter
builds, e.g. `center(10**9)`, is not bounded: that would take a process with a memory limit.

The set-up, which decides what a template renders to, is that of transformers' `chat_template_utils.py`.
"""

import json
import time
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SOURCE_CHARS = 1 << 20
MAX_OUTPUT_CHARS = 4 << 20
MAX_RENDER_S = 10.0

_deadline: ContextVar[float] = ContextVar("template_deadline")


class Refusal(TemplateError):
    """The template called `raise_exception`."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it renders what is in it."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own convention)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _ChatEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def check_time(self) -> str:
        """Called by the template's code on each turn of a loop and each call of a macro."""
        if time.monotonic() > _deadline.get():
            raise SecurityError(f"it ran for more than {MAX_RENDER_S:g} s")
        return ""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _result_size(operator, left, right) > MAX_OUTPUT_CHARS:
            raise SecurityError(
                f"an operator {operator} makes more than {MAX_OUTPUT_CHARS} characters or items"
            )
        return super().call_binop(context, operator, left, right)


def compile_template(source: str) -> Template:
    """Compile a chat template.

    Raises:
        TemplateError: the source is no jinja2, or is longer than `MAX_SOURCE_CHARS`.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise SecurityError(f"it has {len(source)} characters, more than {MAX_SOURCE_CHARS}")
    environment = _ChatEnvironment()
    try:
        tree = environment.parse(source)
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            check = nodes.Call(nodes.EnvironmentAttribute("check_time"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(check).set_lineno(node.lineno))
        tree.set_environment(environment)
        return Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
    except (RecursionError, SyntaxError, ValueError, MemoryError) as error:
        # Jinja2 writes Python, which has limits of its own on nesting and on the digits of a number.
        raise TemplateError(f"it does not compile: {error}") from error


def render_bounded(template: Template, values: dict[str, Any]) -> str:
    """Render within the bounds.

    Raises:
        Refusal: the template raised an exception of its own.
        TemplateError: it failed, or went over a bound.
    """
    _deadline.set(time.monotonic() + MAX_RENDER_S)
    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate(**values):
            size += len(piece)
            if size > MAX_OUTPUT_CHARS:
                raise SecurityError(f"it writes more than {MAX_OUTPUT_CHARS} characters")
            pieces.append(piece)
    except TemplateError:
        raise
    except Exception as error:
        # A wrong expression raises any of Python's errors; it is the template's fault, not Strata's.
        raise TemplateError(f"{type(error).__name__}: {error}") from error
    return "".join(pieces)


def _result_size(operator: str, left: Any, right: Any) -> int:
    """A bound on the length of an operator's result: characters, items, or bits of a number."""
    sizes = [len(value) if isinstance(value, str | list | tuple) else None for value in (left, right)]
    if operator == "+":
        return sum(size or 0 for size in sizes)
    numbers = [value if isinstance(value, int) else 1 for value in (left, right)]
    if operator == "**":
        return numbers[0].bit_length() * max(numbers[1], 0)
    if sizes == [None, None]:
        return sum(number.bit_length() for number in numbers)
    return (sizes[0] or numbers[0]) * (sizes[1] or numbers[1])


def _raise_exception(message: str) -> None:
    raise Refusal(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; jinja2's own filter escapes it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
