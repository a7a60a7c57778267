"""The `steinkern` command."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
from tqdm.auto import tqdm

try:
    import typer
    import typer.core
except ImportError as error:
    raise SystemExit("the steinkern command needs its extra: pip install 'steinkern[cli]'") from error

from .. import __version__
from ..core.terminal import printable, say
from ..experiments import covtype, covtype_study, sentence_study, sentences, toy, uci, uci_study
from ..experiments.data import text
from ..experiments.results import aligned
from ..results.result import DivergedError
from .datasets import data
from .reporting import report
from .sampling import sample

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
reproduce = typer.Typer(
    help="Run an experiment of the paper: tables, figures and a page to look at.",
    no_args_is_help=True,
    rich_markup_mode=None,
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
    settings, each found by the search that --tune repeats. About five minutes on two cores. Finished methods are kept
    in OUT and not run again.
    """
    jax.config.update("jax_enable_x64", True)
    names = _names(targets)
    if tune:
        toy.search(names, out, progress=say)
        say(f"settings written to {out / 'settings.json'}")
        return
    with _progress(toy.number_of_runs(names), "running") as advance:
        report = toy.reproduce(names, seeds, out, quick=quick, settings=settings, progress=advance)
    say(aligned(report.table))
    say()
    for line in report.verdicts:
        say(line)
    say(f"\nResults, figures and a page to open: {out / 'index.html'}")


_DATA = typer.Option("--data", help="The data directory; by default $STEINKERN_DATA or the user's cache directory.")
_METHODS = typer.Option(help="Comma-separated; all by default.")
_TUNE = typer.Option(
    "--tune", help="Search the settings instead, into OUT/search.json and OUT/settings.json; resumable."
)
_SETTINGS = typer.Option(help="A settings.json from --tune, in place of the recorded settings.")
_JOBS = typer.Option(help="Rows compiled and run at once; by default 6 on an accelerator, 1 on a CPU.")
_QUICK = typer.Option("--quick", help="Data that scikit-learn ships, few trials: a look in a minute or two, offline.")


@reproduce.command("covtype")
def reproduce_covtype(
    out: Annotated[Path, typer.Option(help="Where to write results.json, table.md and the curves.")] = Path(
        "out/covtype"
    ),
    data: Annotated[Path | None, _DATA] = None,
    quick: Annotated[bool, _QUICK] = False,
    trials: Annotated[int, typer.Option(help="How many random partitions to report.")] = 20,
    methods: Annotated[str, _METHODS] = ",".join(covtype_study.METHODS),
    tune: Annotated[bool, _TUNE] = False,
    settings: Annotated[Path | None, _SETTINGS] = None,
) -> None:
    """Bayesian logistic regression on Covertype: Figure 2 (a, b).

    Finished methods are kept in OUT and not run again.
    """
    chosen = _names(methods)
    _check_modes(quick, tune)
    if tune:
        covtype.search(out, data=data, methods=chosen, progress=say)
        say(f"settings written to {out / 'settings.json'}")
        return
    report = covtype.reproduce(
        out, data=data, methods=chosen, num_trials=trials, quick=quick, settings=settings, progress=say
    )
    _print_report(report.tables, report.verdicts, out)


@reproduce.command("uci")
def reproduce_uci(
    out: Annotated[Path, typer.Option(help="Where to write results.json, table.md and the curves.")] = Path("out/uci"),
    data: Annotated[Path | None, _DATA] = None,
    datasets: Annotated[str, typer.Option(help="Comma-separated; those of Table 1 by default.")] = ",".join(uci.PAPER),
    quick: Annotated[bool, _QUICK] = False,
    methods: Annotated[str, _METHODS] = ",".join(uci_study.METHODS),
    hidden_layers: Annotated[int, typer.Option(help="Hidden layers of 50 units each.", min=1)] = 2,
    jobs: Annotated[int | None, _JOBS] = None,
    tune: Annotated[bool, _TUNE] = False,
    settings: Annotated[Path | None, _SETTINGS] = None,
) -> None:
    """Bayesian networks on the UCI regressions, with KFAC: Table 1 and Figure 2 (c, d).

    Finished rows are kept in OUT and not run again.
    """
    chosen, names = _names(methods), _names(datasets)
    _check_modes(quick, tune)
    if tune:
        uci.search(names, out, data=data, methods=chosen, progress=say)
        say(f"settings written to {out / 'settings.json'}")
        return
    report = uci.reproduce(
        names, out, data=data, methods=chosen, quick=quick, hidden_layers=hidden_layers, settings=settings,
        jobs=jobs, progress=say,
    )  # fmt: skip
    _print_report(report.tables, report.verdicts, out)


@reproduce.command("sentences")
def reproduce_sentences(
    out: Annotated[Path, typer.Option(help="Where to write results.json, table.md and the figure.")] = Path(
        "out/sentences"
    ),
    data: Annotated[Path | None, _DATA] = None,
    datasets: Annotated[str, typer.Option(help="Comma-separated; those of Table 2 by default.")] = ",".join(text.TEXTS),
    vectors: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated files of word vectors (.npz, word2vec's .bin, text), used side by side; by default "
            "those of the data directory."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small generated corpus and two folds: a look in two minutes, offline.")
    ] = False,
    methods: Annotated[str, _METHODS] = ",".join(sentence_study.METHODS),
    folds: Annotated[int, typer.Option(help="How many of the ten folds to run.")] = sentence_study.FOLDS,
    jobs: Annotated[int | None, _JOBS] = None,
    tune: Annotated[bool, _TUNE] = False,
    settings: Annotated[Path | None, _SETTINGS] = None,
) -> None:
    """Sentence classification with half-Bayesian recurrent networks: Table 2.

    Finished rows are kept in OUT and not run again.
    """
    chosen, names = _names(methods), _names(datasets)
    tables = None if vectors is None else [Path(path) for path in _names(vectors)]
    _check_modes(quick, tune)
    if quick and (tables is not None or names != list(text.TEXTS)):
        raise ValueError("`--quick` runs on a generated corpus: leave out `--datasets` and `--vectors`.")
    if tune and (settings is not None or folds != sentence_study.FOLDS):
        raise ValueError("`--tune` searches settings for all folds: leave out `--settings` and `--folds`.")
    if tune:
        sentences.search(names, out, data=data, vectors=tables, methods=chosen, jobs=jobs, progress=say)
        say(f"settings written to {out / 'settings.json'}")
        return
    report = sentences.reproduce(
        names, out, data=data, vectors=tables, methods=chosen, folds=folds, quick=quick, settings=settings, jobs=jobs,
        progress=say,
    )  # fmt: skip
    _print_report(report.tables, report.verdicts, out)


def _names(listed: str) -> list[str]:
    return listed.replace(",", " ").split()


def _check_modes(quick: bool, tune: bool) -> None:
    if quick and tune:
        raise ValueError("`--quick` and `--tune` exclude each other: the search runs on the full data. Leave one out.")


def _print_report(tables: Mapping[str, str], verdicts: Sequence[str], out: Path) -> None:
    for table in tables.values():
        say(f"\n{aligned(table)}")
    say()
    for line in verdicts:
        say(line)
    say(f"\nResults, tables and figures: {out}")


@contextmanager
def _progress(total: int, text: str) -> Iterator[Callable[[str], None]]:
    with tqdm(total=total, desc=text, disable=None) as bar:

        def advance(message: str) -> None:
            bar.set_postfix_str(message, refresh=False)
            bar.update()

        yield advance
