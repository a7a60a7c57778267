"""Runs any study: from settings and data to results.json, tables and figures, and the search of the settings."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from steinkern.core.types import check_count

from .journal import Journal
from .methods import Setting
from .study import Cell, Outcome, Scores, Study, Winners
from .tables import read_json, write_json, write_results

Name = TypeVar("Name")
Made = TypeVar("Made")


def reproduce(
    study: Study,
    directory: Path,
    *,
    quick: bool = False,
    methods: Sequence[str] | None = None,
    settings: Path | None = None,
    jobs: int = 1,
    **options: Any,
) -> Outcome:
    """Run a study, print a line about every finished run, and write results.json, table.md and the figures.

    Runs that are already finished in this directory with the same settings are not repeated.

    Args:
        study: the study to run.
        directory: where to write; created where it does not exist.
        quick: run on small data that need no download.
        methods: the methods to run; all of the study by default.
        settings: a settings.json from `search`; the recorded settings by default.
        jobs: runs compiled and run at the same time.
        options: keyword arguments of the study's `tasks`.
    """
    if settings is not None and not study.reads_settings(**options):
        raise ValueError("`--settings` has no effect with these options: leave it out.")
    runs = choose_methods(study, methods)
    chosen = read_settings(study, settings)
    tasks = study.tasks(quick, **options)
    winners = {
        case: {method: study.setting(chosen, case, method, task) for method in runs} for case, task in tasks.items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    journal = Journal(directory / "rows.json")

    def work(case: str, method: str) -> Any:
        result = study.finish(journal, case, method, winners[case][method], tasks[case])
        print(f"{case} {method}: {study.summary(study.scores(method, result, tasks[case]))}")
        return result

    results = run_jobs({(case, method): partial(work, case, method) for case in tasks for method in runs}, jobs)
    scores: dict[str, Mapping[str, Scores]] = {}
    for case, task in tasks.items():
        by_method = {method: study.scores(method, results[case, method], task) for method in runs}
        scores[case] = {**by_method, **study.derive_scores(by_method, task)}
    outcome = Outcome(study, runs, tasks, winners, results, scores, quick)
    common = {"quick": quick, "winners": winners, "environment": journal.environments()}
    write_results(directory / "results.json", study.name, study.record(outcome) | common, outcome.rows())
    verdicts = "\n".join(f"- {line}" for line in study.verdicts(outcome))
    text = "\n\n".join([study.caption(outcome), *outcome.tables().values(), verdicts])
    (directory / "table.md").write_text(f"{text}\n", encoding="utf-8")
    study.write(outcome, directory)
    return outcome


def search(
    study: Study,
    directory: Path,
    *,
    methods: Sequence[str] | None = None,
    jobs: int = 1,
    **options: Any,
) -> None:
    """Search all settings, into search.json (resumed where it exists) and settings.json; print a line for each cell.

    Args:
        study: the study to search settings for.
        directory: created where it does not exist; its settings.json keeps the winners of other cases and methods.
        methods: the methods to search; all of the study by default.
        jobs: searches that run at the same time.
        options: keyword arguments of the study's `tuning_tasks`.
    """
    runs = choose_methods(study, methods)
    tasks = study.tuning_tasks(**options)
    directory.mkdir(parents=True, exist_ok=True)
    journal = Journal(directory / "search.json")

    def work(case: str, method: str) -> Setting:
        cells = study.cells(method, case, tasks[case])
        values: list[Any] = []
        for cell in cells:
            result = journal.keep(cell.key, cell.made_from, partial(study.evaluate, method, cell, tasks[case]))
            values += study.values(result)
            print(f"{cell.key}: best {np.mean(_table(study.values(result)).max(axis=0)):.4f}")
        return choose(f"{method} on {case}", cells, values)

    chosen = run_jobs({(case, method): partial(work, case, method) for case in tasks for method in runs}, jobs)
    # Read at the end: other processes may have searched other cases and methods meanwhile.
    path = directory / "settings.json"
    winners = {case: dict(methods) for case, methods in read_settings(study, path).items()} if path.exists() else {}
    for (case, method), setting in chosen.items():
        winners.setdefault(case, {})[method] = setting
    write_json(path, {"winners": winners})


def choose(what: str, cells: Sequence[Cell], values: Sequence[Any]) -> Setting:
    """The setting of the highest finite value; where there is a value for every fold, the best one of each fold.

    Args:
        what: the name of the search, for the error where no value is finite.
        cells: the finished cells.
        values: for each setting of each cell in turn a number, or one for each fold; `None` where it is not finite.
    """
    settings = [setting for cell in cells for setting in cell.settings]
    table = _table(values)
    if not np.all(np.isfinite(table.max(axis=0))):
        raise ValueError(f"no setting of {what} ended with a finite score: search smaller step sizes.")
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
    content = read_json(study.path("settings.json") if path is None else path)
    try:
        return {
            case: {method: study.check(method, setting) for method, setting in methods.items()}
            for case, methods in content["winners"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"`--settings` {path} must be a settings.json from --tune: {error}.") from error


def check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise, before any long work, where a name is unknown or repeated, or where there is none."""
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise ValueError(f"`{option}` must be among {', '.join(known)}, each once, got {', '.join(names) or 'none'}.")


def run_jobs(work: Mapping[Name, Callable[[], Made]], jobs: int) -> dict[Name, Made]:
    """The return values of all jobs by their names, in the order of `work`.

    Several jobs run at the same time, because much of the time is spent compiling. Where one fails, its error is raised
    after the running jobs have ended. With `jobs=1` they run in the calling thread, which Ctrl-C interrupts at once.

    Args:
        work: the jobs by name.
        jobs: how many run at once.
    """
    check_count("--jobs", jobs)
    if jobs == 1:
        return {name: job() for name, job in work.items()}
    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(work, pool.map(lambda job: job(), work.values()), strict=True))
