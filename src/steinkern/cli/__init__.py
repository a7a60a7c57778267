"""The `steinkern` command."""

import os
from typing import Annotated, Any

import jax

try:
    import typer
    import typer.core
except ImportError as error:
    raise SystemExit("the steinkern command needs its extra: pip install 'steinkern[cli]'") from error

from .. import __version__
from ..core.terminal import printable, say
from ..results.result import DivergedError
from .datasets import data
from .reporting import report
from .sampling import sample
from .studies import reproduce

_TRACEBACK = "STEINKERN_TRACEBACK"


class _Root(typer.core.TyperGroup):
    """The group of all commands; Ctrl-C ends any of them with exit code 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("Interrupted.", error=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Root,
    help="Stein variational inference with matrix-valued kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text keeps the lines of examples and their brackets
)
app.add_typer(reproduce, name="reproduce")
app.add_typer(data, name="data")
app.command("sample")(sample)
app.command("report")(report)


def main() -> None:
    """Run the command. Errors print one line and exit with a non-zero code.

    The code is 2 for wrong input and for a file or directory that cannot be used, 3 for an unexpected error (the
    variable STEINKERN_TRACEBACK shows its traceback), and 130 for Ctrl-C.
    """
    try:
        app()
    except (ValueError, OSError, ImportError, DivergedError) as error:
        say(f"steinkern: {printable(error)}", error=True)
        raise SystemExit(2) from None
    except MemoryError:
        say("steinkern: there is not enough memory for this.", error=True)
        raise SystemExit(2) from None
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        say(
            f"steinkern: {type(error).__name__}: {printable(error)} (not foreseen: set {_TRACEBACK}=1 to see where it "
            "comes from, and report it where it is not of your own file)",
            error=True,
        )
        raise SystemExit(3) from None


def _print_version(wanted: bool) -> bool:
    if wanted:
        say(f"steinkern {__version__}, jax {jax.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Stein variational inference with matrix-valued kernels."""
