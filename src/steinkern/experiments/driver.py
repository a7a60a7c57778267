"""Runs any study: from settings and data to results.json, tables and figures, and the search of the settings."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.files import prepare_directory, read_json, write_text
from ..results import plot
from .journal import Journal, number_of_jobs, run_jobs
from .methods import Setting
from .study import Cell, Outcome, Scores, Study, Winners
from .tables import write_json, write_results


class Report(NamedTuple):
    """The tables and sentences that the command prints at the end."""

    tables: dict[str, str]
    verdicts: list[str]


def reproduce(
    study: Study,
    directory: Path,
    *,
    quick: bool = False,
    methods: Sequence[str] | None = None,
    settings: Path | None = None,
    jobs: int | None = 1,
    figures: bool = True,
    progress: Callable[[str], None] = print,
    **options: Any,
) -> Report:
    """Run a study and write results.json, table.md and the figures into `directory`.

    Runs that are already finished in this directory with the same settings are not repeated.

    Args:
        study: the study to run.
        directory: created where it does not exist.
        quick: run on small data that need no download.
        methods: the methods to run; all of the study by default.
        settings: a settings.json from `search`; the recorded settings by default.
        jobs: runs compiled and run at the same time; `None` for 6 on an accelerator, 1 on a CPU.
        figures: draw figures; needs matplotlib.
        progress: called with a line about every finished run.
        options: keyword arguments of the study's `tasks`.
    """
    if figures:
        plot.check_available()  # before any long work
    if settings is not None and not study.reads_settings(**options):
        raise ValueError("`--settings` has no effect with these options: leave it out.")
    number = number_of_jobs(jobs)
    runs = choose_methods(study, methods)
    chosen = read_settings(study, settings)
    tasks = study.tasks(quick, **options)
    present = {case: task for case, task in tasks.items() if task is not None}
    winners = {
        case: {method: study.setting(chosen, case, method, task) for method in runs} for case, task in present.items()
    }
    prepare_directory(directory)
    journal = Journal(directory / study.journal)

    scores: dict[str, dict[str, Scores]] = {case: {} for case in present}

    def work(case: str, method: str) -> Any:
        result = study.finish(journal, case, method, winners[case][method], tasks[case])
        progress(f"{case} {method}: {study.summary(study.scores(method, result, tasks[case]))}")
        return result

    results = run_jobs({(case, method): partial(work, case, method) for case in present for method in runs}, number)
    for (case, method), result in results.items():
        scores[case][method] = study.scores(method, result, tasks[case])
    for case, own in scores.items():
        own |= study.derive_scores(own, tasks[case])
    outcome = Outcome(study, runs, tasks, winners, results, scores, quick)
    report = Report(outcome.tables(), study.verdicts(outcome))
    record = study.record(outcome) | {"quick": quick, "winners": _without_case(study, winners)}
    write_results(
        directory / "results.json", study.name, record | {"environment": journal.environments()}, outcome.rows()
    )
    verdicts = "\n".join(f"- {line}" for line in report.verdicts)
    write_text(directory / "table.md", "\n\n".join([study.caption(outcome), *report.tables.values(), verdicts]) + "\n")
    study.write(outcome, directory, figures)
    return report


def search(
    study: Study,
    directory: Path,
    *,
    methods: Sequence[str] | None = None,
    jobs: int | None = 1,
    progress: Callable[[str], None] = print,
    **options: Any,
) -> None:
    """Search all settings, into search.json (resumed where it exists) and settings.json.

    Args:
        study: the study to search settings for.
        directory: created where it does not exist; its settings.json keeps the winners of other cases and methods.
        methods: the methods to search; all of the study by default.
        jobs: searches that run at the same time; `None` for 6 on an accelerator, 1 on a CPU.
        progress: called with a line about every finished cell.
        options: keyword arguments of the study's `tuning_tasks`.
    """
    if not study.has_search:
        raise ValueError(f"`--tune` has nothing to search in {study.name}: its methods have no settings.")
    number = number_of_jobs(jobs)
    runs = choose_methods(study, methods)
    tasks = {case: task for case, task in study.tuning_tasks(**options).items() if task is not None}
    prepare_directory(directory)
    journal = Journal(directory / "search.json", study.bare_search)
    former = directory / "settings.json"
    if former.exists():
        read_settings(study, former)  # before any long work

    def work(case: str, method: str) -> Setting:
        cells = study.cells(method, case, tasks[case])
        values: list[Any] = []
        for cell in cells:
            found = study.values(
                journal.keep(cell.key, cell.made_from, partial(study.evaluate, method, cell, tasks[case]))
            )
            values += found
            progress(f"{cell.key}: best {np.mean(_table(found).max(axis=0)):.4f}")
        return choose(f"{method} on {case}", cells, values)

    pieces = {(case, method): partial(work, case, method) for case in tasks for method in runs}
    chosen = run_jobs(pieces, number)
    # Read at the end: other processes may have searched other cases and methods meanwhile.
    winners = {case: dict(own) for case, own in read_settings(study, former).items()} if former.exists() else {}
    for (case, method), setting in chosen.items():
        winners.setdefault(case, {})[method] = setting
    write_json(former, {"winners": _without_case(study, winners)})


def choose(what: str, cells: Sequence[Cell], values: Sequence[Any]) -> Setting:
    """The setting of the highest finite value; where there is a value for every fold, the best one of each fold.

    Args:
        what: the name of the search, for the error where no value is finite.
        cells: the finished cells.
        values: for each setting of each cell in turn a number, or one for each fold; `None` where it is not finite.
    """
    settings = [setting for cell in cells for setting in cell.settings]
    table = _table(values)
    if len(table) != len(settings):
        raise ValueError(f"the search of {what} must have {len(settings)} values, got {len(table)}.")
    hopeless = np.flatnonzero(np.isneginf(table.max(axis=0)))
    if hopeless.size:
        fold = f" on fold {hopeless[0]}" if table.ndim > 1 else ""
        raise ValueError(f"no setting of {what} ended with a finite score{fold}: search smaller step sizes.")
    best = table.argmax(axis=0)
    if table.ndim == 1:
        return settings[best]
    return {name: [settings[which][name][fold] for fold, which in enumerate(best)] for name in settings[0]}


def _table(values: Sequence[Any]) -> np.ndarray:
    """The values as an array, with −∞ in place of those that are not finite."""
    numbers = np.array(values, float)
    return np.where(np.isfinite(numbers), numbers, -np.inf)


def choose_methods(study: Study, names: Sequence[str] | None) -> tuple[str, ...]:
    """The methods to run, in the study's order."""
    if names is None:
        return study.methods
    check_names("--methods", names, study.methods)
    return tuple(method for method in study.methods if method in names)


def read_settings(study: Study, path: Path | None) -> Winners:
    """The settings of a settings.json by case and method; those recorded with the study where no file is given."""
    if path is None and not study.has_search:
        return {}
    try:
        winners = (json.loads(study.file("settings.json")) if path is None else read_json(path))["winners"]
        by_case = winners if study.single_case is None else {study.single_case: winners}
        return {
            case: {method: study.check(method, setting) for method, setting in methods.items()}
            for case, methods in by_case.items()
        }
    except OSError as error:
        raise OSError(f"`--settings` {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # The text of other errors than `ValueError` is about Python code, not about the file.
        reason = str(error) if type(error) is ValueError else "it has another layout"
        raise ValueError(f"`--settings` {path} is not a settings.json from --tune: {reason}.") from error


def _without_case(study: Study, winners: Winners) -> Mapping[str, Any]:
    """The settings in the layout of settings.json: without the case for a study that has only one."""
    return winners if study.single_case is None else next(iter(winners.values()))


def check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise, before any long work, where a name is unknown or repeated, or where there is none."""
    if not names:
        raise ValueError(f"`{option}` must name at least one of {', '.join(known)}, got none.")
    if len(set(names)) < len(names):
        raise ValueError(f"`{option}` must name each once, got {', '.join(names)}.")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"`{option}` must be among {', '.join(known)}, got {', '.join(unknown)}.")
