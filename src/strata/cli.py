"""The command line: commands whose flags are generated from the schema in `options.py`.

Commands import what they need when they run, so that `--version` and `--help` stay quick.
"""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from strata import __version__
from strata.configuration import let_idle_threads_sleep, load_options
from strata.errors import StrataError, UsageError
from strata.interrupt import INTERRUPTED, importing
from strata.options import describe, flag_name, flag_of, options_of, value_type

# command -> (help, arguments as (name, metavar, help)); run by `strata.commands.<name>.run`
COMMANDS: dict[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "demo": ("Load a model, serve it, ask it one question, and say how fast it was.", ()),
    "chat": ("Talk to a model in the terminal.", ()),
    "serve": ("Serve a model through the OpenAI and Anthropic protocols, and a web page.", ()),
    "pull": (
        "Download a model from the hub, or finish a download.",
        (("reference", "REFERENCE", "hf:owner/repo[:file]"),),
    ),
    "doctor": ("Look at this machine, and at the kernels on its card and on others.", ()),
    "plan": (
        "Say what of a model would go where, on this machine or another, and how fast it would be.",
        (("model", "MODEL", "a GGUF file, a folder, or a known model: qwen3.8-flash-next, ..."),),
    ),
    "synth": (
        "Run a model of real geometry with made-up weights, to see how fast it would be, or write it.",
        (("model", "MODEL", "a known model: qwen3.8-flash-next, ..."),),
    ),
    "logits": ("Write the float32 logits of every position of a token list.", ()),
}


def _parameters(command: str) -> list[inspect.Parameter]:
    """A command's arguments and flags. Flags arrive as text and are checked by the schema, not by typer."""
    arguments = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            annotation=Annotated[str, typer.Argument(metavar=metavar, help=help_, show_default=False)],
        )
        for name, metavar, help_ in COMMANDS[command][1]
    ]
    flags = []
    for name in options_of(command):
        kind = value_type(name)
        metavar = flag_of(name).metavar or {int: "N", float: "X"}.get(kind, "TEXT")
        option = typer.Option(
            flag_name(name),
            metavar=None if kind is bool else metavar,
            help=describe(name),
            show_default=False,
        )
        annotation = Annotated[bool | None if kind is bool else str | None, option]
        flags.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return arguments + flags


def _command(name: str) -> Callable[..., None]:
    """The function that typer calls for command `name`."""
    arguments = [argument for argument, _, _ in COMMANDS[name][1]]

    def run(**values: Any) -> None:
        positional = [values.pop(argument) for argument in arguments]
        options = load_options(name, values)
        let_idle_threads_sleep()
        with importing():
            module = import_module(f"strata.commands.{name}")
        module.run(options, *positional)

    parameters = _parameters(name)
    run.__name__ = name
    run.__doc__ = COMMANDS[name][0]
    run.__signature__ = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _version(wanted: bool) -> None:
    if wanted:
        print(f"strata {__version__}")
        raise typer.Exit


def _test(context: typer.Context) -> None:
    """Run the test suite; everything after `test` goes to pytest."""
    from strata.commands.test import run

    let_idle_threads_sleep()
    raise typer.Exit(run(context.args))


def build_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Mixture-of-experts language models larger than the graphics card, on one PC.",
    )

    @app.callback()
    def strata(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
        ] = False,
    ) -> None:
        pass

    for name in COMMANDS:
        app.command(name)(_command(name))
    passed_through = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("test", context_settings=passed_through, add_help_option=False)(_test)
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run one command line (`sys.argv` when None) and return the process's exit code.

    0 done, 1 a `StrataError` (printed as one line), 2 wrong usage, 130 Ctrl+C.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:  # before typer builds every command
        print(f"strata {__version__}")
        return 0
    try:
        return build_app()(arguments, prog_name="strata", standalone_mode=False) or 0
    except UsageError as error:
        _complain(str(error))
        return 2
    except StrataError as error:
        _complain(str(error))
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return 0  # whoever read our output has seen enough
    except Exception as error:
        return _usage_error(error)


def _usage_error(error: Exception) -> int:
    """Print typer's own complaint about the command line; anything else is a bug and goes on as one."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if show is None or code is None:
        raise error
    show()
    return code


def _complain(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]strata:[/red] {escape(text)}")
