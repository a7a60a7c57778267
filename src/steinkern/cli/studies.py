"""`steinkern reproduce`: a command for every study, with its options."""

import importlib.util
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import jax
import typer

from ..core.compilation_cache import switch_on_by_environment
from ..core.extras import install_command
from ..core.terminal import say
from ..experiments import driver
from ..experiments.covtype.study import Covtype
from ..experiments.images.study import ImageStudy
from ..experiments.sentences.study import Sentences
from ..experiments.study import Study
from ..experiments.tables import aligned
from ..experiments.toy.study import Toy
from ..experiments.uci.study import UCI

STUDIES: tuple[Study, ...] = (Toy(), Covtype(), UCI(), Sentences(), ImageStudy())
reproduce = typer.Typer(
    help="Run an experiment of the paper: tables, figures and a page to look at.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
_NEEDED = ("jinja2", "matplotlib")
_TUNE = "Search the settings instead, into OUT/search.json and OUT/settings.json; resumable."
_SETTINGS = "A settings.json from --tune, in place of the recorded settings."
_JOBS = "Rows compiled and run at once; by default 6 on an accelerator, 1 on a CPU."


def _check_packages() -> None:
    """Raise before a study runs for minutes where what makes its figures and its page is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"`reproduce` needs {' and '.join(missing)}: {install_command('experiments')}.")


def command(study: Study) -> Callable[..., None]:
    """The command of a study; `typer` reads its options off the signature."""

    def run(out: Path, quick: bool, tune: bool = False, settings: Path | None = None, **given: Any) -> None:
        if quick and tune:
            raise ValueError(
                "`--quick` and `--tune` exclude each other: the search runs on the full data. Leave one out."
            )
        if tune and settings is not None:
            raise ValueError("`--tune` searches settings: leave out `--settings`.")
        _check_packages()
        if study.double_precision:
            jax.config.update("jax_enable_x64", True)
        switch_on_by_environment(default=True)
        options: dict[str, Any] = {
            name: _split(value) if isinstance(value, str) else value for name, value in given.items()
        }
        if tune:
            driver.search(study, out, progress=say, **options)
            say(f"settings written to {out / 'settings.json'}")
            return
        report = driver.reproduce(study, out, quick=quick, settings=settings, progress=say, **options)
        for table in report.tables.values():
            say(f"\n{aligned(table)}")
        say()
        for line in report.verdicts:
            say(line)
        say(f"\nResults, tables and figures: {out / study.page}")

    parameters = [
        _option("out", Path, Path("out") / study.name, "Where to write results.json, table.md and the figures."),
        _option("quick", bool, False, study.quick_help, "--quick"),
        *_options_of(study),
    ]
    if study.has_search:
        parameters.append(_option("tune", bool, False, _TUNE, "--tune"))
        parameters.append(_option("settings", Path | None, None, _SETTINGS))
    if study.selectable:
        parameters.append(_option("methods", str, ",".join(study.methods), "Comma-separated; all by default."))
    if study.parallel:
        parameters.append(_option("jobs", int | None, None, _JOBS))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # which typer reads
    run.__doc__ = f"{study.help}\n\n    Finished runs are kept in OUT and not run again."
    return run


def _options_of(study: Study) -> Iterator[inspect.Parameter]:
    """The keyword arguments of `Study.tasks` that are `Annotated` with their help."""
    for parameter in inspect.signature(study.tasks).parameters.values():
        if get_origin(parameter.annotation) is Annotated:
            kind, text = get_args(parameter.annotation)
            default = parameter.default
            if isinstance(default, tuple):
                kind, default = str, ",".join(default)
            elif tuple[str, ...] in get_args(kind):
                kind = str | None
            yield _option(parameter.name, kind, default, text)


def _option(name: str, kind: Any, default: Any, text: str, *flags: str) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*flags, help=text)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _split(listed: str) -> tuple[str, ...]:
    return tuple(listed.replace(",", " ").split())


for _study in STUDIES:
    reproduce.command(_study.name)(command(_study))
