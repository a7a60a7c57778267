"""The `steinkern` command: `sample` and `report`."""

import os
from pathlib import Path
from typing import Annotated, Any

import jax

from ..core.extras import install_command

try:
    import typer
except ImportError as error:
    raise SystemExit(f"the steinkern command needs typer: {install_command('cli')}") from error

from .. import __version__
from ..results.result import DivergedError
from .reporting import report
from .sampling import sample

_TRACEBACK = "STEINKERN_TRACEBACK"

app = typer.Typer(
    help="Stein variational inference with matrix-valued kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text keeps the lines and brackets of the examples
)
app.command()(sample)
app.command()(report)


def main() -> None:
    """Run the command. Errors print one line and exit with a non-zero code.

    The code is 2 for wrong input and for a file or directory that cannot be used, 3 for an unexpected error (the
    variable STEINKERN_TRACEBACK shows its traceback), and 130 for Ctrl-C.
    """
    try:
        app()
    except Exception as error:
        expected = isinstance(error, (ValueError, OSError, ImportError, MemoryError, DivergedError))
        if os.environ.get(_TRACEBACK) and not expected:
            raise
        text = " ".join(str(error).split())
        if not expected:
            text = f"{type(error).__name__}: {text} (unexpected: {_TRACEBACK}=1 shows the traceback; report it)"
        typer.echo(f"steinkern: {text or type(error).__name__}", err=True)
        raise SystemExit(2 if expected else 3) from None


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Stein variational inference with matrix-valued kernels."""
    if version:
        typer.echo(f"steinkern {__version__}, jax {jax.__version__}")
        raise typer.Exit
    jax.config.update("jax_enable_x64", True)  # before a file creates arrays
    config: Any = jax.config
    # Compiled programs are cached on disk for the next process. Of each that it reads jax 0.9.2 logs two kilobytes.
    if not config.jax_compilation_cache_dir and jax.__version_info__ >= (0, 11):
        jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "steinkern"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
