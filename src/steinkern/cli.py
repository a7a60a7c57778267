"""The `steinkern` command."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import jax
from tqdm.auto import tqdm

try:
    import typer
except ImportError as error:
    raise SystemExit("the steinkern command needs its extra: pip install 'steinkern[experiments]'") from error

from . import __version__
from .experiments import toy
from .experiments.results import aligned

app = typer.Typer(
    help="Stein variational inference with matrix-valued kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
reproduce = typer.Typer(
    help="Run an experiment of the paper: tables, figures and a page to look at.", no_args_is_help=True
)
app.add_typer(reproduce, name="reproduce")


def main() -> None:
    """Run the command; an error of the user's is one line and a non-zero exit."""
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"steinkern: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _print_version(wanted: bool) -> bool:
    if wanted:
        print(f"steinkern {__version__}, jax {jax.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Stein variational inference with matrix-valued kernels."""


@reproduce.command("toy")
def reproduce_toy(
    out: Annotated[Path, typer.Option(help="Where to write results.json, table.md, figures and index.html.")] = Path(
        "out/toy"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer seeds and iterations: a look in under two minutes.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds to report.")] = 20,
    targets: Annotated[
        str,
        typer.Option(
            help="Comma-separated: sine, double_banana, star; with _released for the released code's density."
        ),
    ] = "sine,double_banana,star",
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Search the settings instead, into OUT/search.json and OUT/settings.json; resumable."
        ),
    ] = False,
    settings: Annotated[
        Path | None, typer.Option(help="A settings.json from --tune, in place of the recorded settings.")
    ] = None,
) -> None:
    """The two-dimensional study: Figure 1 and the appendix figures.

    Vanilla SVGD, SVN, Matrix-SVGD (average, mixture), SGLD and pSGLD on Sine, Double banana and Star, with recorded
    settings, each found by the search that --tune repeats. About five minutes on two cores.
    """
    jax.config.update("jax_enable_x64", True)
    names = tuple(name.strip() for name in targets.split(",") if name.strip())
    if tune:
        toy.search(names, out, progress=print)
        print(f"settings written to {out / 'settings.json'}")
        return
    with _progress(toy.number_of_runs(names), "running") as advance:
        report = toy.reproduce(names, seeds, out, quick=quick, settings=settings, progress=advance)
    print(aligned(report.table))
    print()
    for line in report.verdicts:
        print(line)
    print(f"\nResults, figures and a page to open: {out / 'index.html'}")


@contextmanager
def _progress(total: int, text: str) -> Iterator[Callable[[str], None]]:
    with tqdm(total=total, desc=text, disable=None) as bar:

        def advance(message: str) -> None:
            bar.set_postfix_str(message, refresh=False)
            bar.update()

        yield advance
