"""The `steinkern` command. A subcommand is imported when it is used, so that `steinkern --version` imports no JAX."""

import importlib
import os
import sys
from importlib.metadata import version as version_of
from typing import Annotated, Any

from ..core.extras import install_command

try:
    import typer
    import typer.core
    import typer.main
except ImportError as error:
    raise SystemExit(f"the steinkern command needs typer: {install_command('cli')}") from error

from .. import __version__
from .._moved import read_environment
from ..core.terminal import printable, say

_TRACEBACK = "STEINKERN_TRACEBACK"
_SUBCOMMANDS = {
    "sample": "sampling",
    "report": "reporting",
    "reproduce": "studies",
    "data": "datasets",
}
"""For each subcommand the module that holds it, by the same name: a function, or a `typer.Typer`."""


class _Root(typer.core.TyperGroup):
    """The group of all commands; Ctrl-C ends any of them with exit code 130."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        names: Any = dict.fromkeys(_SUBCOMMANDS)  # without the commands themselves, which `get_command` imports
        self.commands = names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _SUBCOMMANDS:
            return None
        if self.commands[cmd_name] is None:
            self.commands[cmd_name] = _load_subcommand(cmd_name)
        return self.commands[cmd_name]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("Interrupted.", error=True)
            raise typer.Exit(130) from None


def _load_subcommand(name: str) -> Any:
    """Import a subcommand, and with it JAX."""
    read_environment()
    found = getattr(importlib.import_module(f"{__name__}.{_SUBCOMMANDS[name]}"), name)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(found)
        found = single
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=_Root,
    help="Stein variational inference with matrix-valued kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text keeps the lines of examples and their brackets
)


def main() -> None:
    """Run the command. Errors print one line and exit with a non-zero code.

    The code is 2 for wrong input and for a file or directory that cannot be used, 3 for an unexpected error (the
    variable STEINKERN_TRACEBACK shows its traceback), and 130 for Ctrl-C.
    """
    try:
        app()
    except MemoryError:
        say("steinkern: there is not enough memory for this.", error=True)
        raise SystemExit(2) from None
    except Exception as error:
        if _is_foreseen(error):
            say(f"steinkern: {printable(error)}", error=True)
            raise SystemExit(2) from None
        if os.environ.get(_TRACEBACK):
            raise
        say(
            f"steinkern: {type(error).__name__}: {printable(error)} (unexpected: set {_TRACEBACK}=1 to see the "
            "traceback, and report it unless it comes from your own file)",
            error=True,
        )
        raise SystemExit(3) from None


def _is_foreseen(error: Exception) -> bool:
    """Whether an error is about the input. `DivergedError` is known only where its module has been imported."""
    result = sys.modules.get("steinkern.results.result")
    diverged = () if result is None else (result.DivergedError,)
    return isinstance(error, (ValueError, OSError, ImportError, *diverged))


def _print_version(wanted: bool) -> bool:
    if wanted:
        say(f"steinkern {__version__}, jax {version_of('jax')}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Stein variational inference with matrix-valued kernels."""
