"""`steinkern reproduce covtype`: Figure 2 (a, b), from settings to tables and figures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from ..core.files import prepare_directory, write_text
from ..core.types import check_count
from .covtype_study import (
    CHECKPOINTS,
    DAMPINGS,
    HORIZONS,
    LATER,
    METHODS,
    REPORTED,
    STEP_SIZES,
    TITLES,
    TUNING_PARTITIONS,
    Method,
    Setting,
    Task,
    checked,
    choose,
    content,
    evaluate,
    grid,
    prepare,
    rules_of,
    run_trials,
)
from .data.datasets import breast_cancer, load_covtype
from .jobs import former_winners, read_winners
from .journal import Journal
from .results import Row, check_names, rounded, write_json, write_results

CASE = "covtype"
LEVEL = 0.75
"""The accuracy that the paper's matrix variants reach "in less than 500 iterations"."""
PAPER_ITERATIONS = 500
_QUICK_CHECKPOINTS = (1, 5, 10, 20, 50, 100, 200)
_COVTYPE_CLASS, _BREAST_CANCER_CLASS = 2, 1

CAPTION = (
    "Covertype, class 2 against the rest, features scaled to [0, 1]: mean ± standard error over {trials} random "
    "70/10/20 partitions; 20 particles, batches of 256. Matrix variants: exact Fisher information, a running average; "
    "the mixture's weights without determinants over the median bandwidth. Step rule and size, its horizon "
    "and the damping were chosen on the validation rows of four other partitions."
)


class Curves(NamedTuple):
    """A method's scores (trials, checkpoints)."""

    checkpoints: list[int]
    accuracy: np.ndarray
    log_likelihood: np.ndarray

    def at(self, metric: str, iteration: int) -> np.ndarray:
        """One score a trial, at a checkpoint."""
        return getattr(self, metric)[:, self.checkpoints.index(iteration)]

    def iterations_to(self, level: float) -> float | None:
        """The iterations until the mean accuracy reaches `level`, interpolated; `None` where it does not."""
        mean = self.accuracy.mean(axis=0)
        above = np.flatnonzero(mean >= level)
        if not above.size:
            return None
        first = int(above[0])
        if first == 0:
            return float(self.checkpoints[0])
        earlier, later = mean[first - 1], mean[first]
        share = (level - earlier) / (later - earlier)
        return self.checkpoints[first - 1] + share * (self.checkpoints[first] - self.checkpoints[first - 1])


class Report(NamedTuple):
    """What the command prints when it is done."""

    tables: dict[str, str]
    verdicts: list[str]


def reproduce(
    directory: Path,
    *,
    data: Path | None = None,
    methods: Sequence[str] = METHODS,
    num_trials: int = 20,
    quick: bool = False,
    settings: Path | None = None,
    figures: bool = True,
    progress: Callable[[str], None] = print,
) -> Report:
    """Run all methods and write results.json, table.md and the curves into `directory`.

    A method that a former run into the same directory has finished with the same settings is not run again.

    Args:
        directory: made where it does not exist.
        data: the data directory; see `data_directory`.
        methods: which to run.
        num_trials: random partitions, counted from 0.
        quick: scikit-learn's breast cancer data in place of Covertype, three trials, 200 iterations: no download.
        settings: a settings.json from `search`; the recorded settings by default.
        figures: draw them; needs matplotlib.
        progress: told what was finished.
    """
    runs = _methods(methods)
    check_count("--trials", num_trials)
    if num_trials > min(TUNING_PARTITIONS):
        most = min(TUNING_PARTITIONS)
        raise ValueError(
            f"`--trials` must be at most {most}, since settings are chosen on later ones, got {num_trials}."
        )
    chosen = _read_settings(settings)
    missing = [method for method in runs if method not in chosen]
    if missing:
        raise ValueError(f"`--settings` holds none for {', '.join(missing)}. Run `--tune` for them.")
    num_trials = min(num_trials, 3) if quick else num_trials
    task = _task(data, range(num_trials), quick)
    prepare_directory(directory)
    journal = Journal(directory / "curves.json")
    checkpoints = _QUICK_CHECKPOINTS if quick else CHECKPOINTS
    curves: dict[str, Curves] = {}
    for method in runs:
        curves[method] = _finished(journal, method, chosen[method], task, checkpoints)
        if not quick and curves[method].iterations_to(LEVEL) is None:
            curves[method] = _finished(journal, method, chosen[method], task, (*checkpoints, *LATER))
        progress(f"{method}: {_summary(curves[method])}")
    reported = [iteration for iteration in REPORTED if iteration in checkpoints]
    case = "breast_cancer" if quick else CASE
    rows = [row for method in runs for row in _rows(case, method, curves[method], reported)]
    record = {
        "protocol": task.protocol(),
        "quick": quick,
        "step_sizes": STEP_SIZES,
        "horizons": HORIZONS,
        "dampings": DAMPINGS,
        "winners": {method: content(chosen[method]) for method in runs},
        "level": LEVEL,
        "iterations_to_level": {method: _rounded(own.iterations_to(LEVEL)) for method, own in curves.items()},
        "environment": journal.environments(),
    }
    tables = {metric: _table(curves, metric, reported) for metric in ("accuracy", "log_likelihood")}
    report = Report(tables, verdicts(curves))
    write_results(directory / "results.json", "covtype", record, rows)
    lines = "\n".join(f"- {line}" for line in report.verdicts)
    caption = CAPTION.format(trials=num_trials) if not quick else "Breast cancer (scikit-learn's copy): a quick look."
    write_text(directory / "table.md", "\n\n".join([caption, *tables.values(), lines]) + "\n")
    if figures:
        from .curve_figures import Scored, write_curves

        named = {TITLES[m]: Scored(c.checkpoints, (c.accuracy, c.log_likelihood)) for m, c in curves.items()}
        write_curves(directory / "curves.png", named, ("Test accuracy", "Test log-likelihood"), log_x=True)
    return report


def search(
    directory: Path,
    *,
    data: Path | None = None,
    methods: Sequence[str] = METHODS,
    progress: Callable[[str], None] = print,
) -> None:
    """Search all settings on partitions of their own, into search.json (resumed where it exists) and settings.json."""
    runs = _methods(methods)
    task = _task(data, TUNING_PARTITIONS, quick=False)
    prepare_directory(directory)
    journal = Journal(directory / "search.json")
    winners = former_winners(directory / "settings.json")
    for method in runs:
        values: dict[str, list[float | None]] = {}
        for rule in rules_of(method):
            cell = grid(method, rule)
            made_from = {"settings": [content(setting) for setting in cell], "checkpoints": REPORTED, **task.protocol()}
            found = journal.get(f"{method}/{rule}", made_from)
            if found is None:
                likelihoods = [round(v, 5) if np.isfinite(v) else None for v in evaluate(method, cell, task)]
                found = journal.put(f"{method}/{rule}", made_from, likelihoods)
            values[rule] = found
            progress(f"{method} {rule}: {found}")
        winners[method] = content(choose(values, method))
    write_json(directory / "settings.json", {"winners": winners})


def verdicts(curves: Mapping[str, Curves]) -> list[str]:
    """How many iterations each method needs to the paper's 0.75, and how many times those of the matrix variants."""
    needed = {method: curve.iterations_to(LEVEL) for method, curve in curves.items()}
    lines = []
    for method, iterations in needed.items():
        last = curves[method].checkpoints[-1]
        reached = f"after {iterations:.0f} iterations" if iterations is not None else f"not within {last} iterations"
        lines.append(f"{TITLES[method]} reaches a test accuracy of {LEVEL} {reached}.")
    for method in ("average", "mixture"):
        own = needed.get(method)
        if own is None:
            continue
        for other in ("vanilla", "psgld"):
            if other in needed:
                iterations = needed[other]
                least = iterations if iterations is not None else curves[other].checkpoints[-1]
                ratio = f"{least / own:.1f}" if iterations is not None else f"more than {least / own:.0f}"
                lines.append(f"{TITLES[other]} needs {ratio} times the iterations of {TITLES[method]}.")
    lines.append(f'The paper: its matrix variants reach {LEVEL} "in less than {PAPER_ITERATIONS} iterations".')
    return lines


def _task(data: Path | None, partitions: Sequence[int], quick: bool) -> Task:
    if quick:
        return prepare(breast_cancer(), _BREAST_CANCER_CLASS, partitions)
    return prepare(load_covtype(data), _COVTYPE_CLASS, partitions)


def _finished(journal: Journal, method: Method, setting: Setting, task: Task, checkpoints: Sequence[int]) -> Curves:
    made_from = {"setting": content(setting), **task.protocol()}
    name = f"{method}/{len(task.train_rows)} trials/{len(task.labels)} rows"
    for known in ((*checkpoints, *LATER), tuple(checkpoints)):  # a longer run that is done holds the shorter one
        done = journal.get(name, {**made_from, "checkpoints": known})
        if done is not None:
            break
    if done is None:
        scores = run_trials(method, setting, task, checkpoints)
        values = {metric: rounded(value) for metric, value in scores._asdict().items()}
        made_from = {**made_from, "checkpoints": tuple(checkpoints)}
        done = journal.put(name, made_from, {"checkpoints": list(checkpoints), **values})
    return Curves(done["checkpoints"], np.array(done["accuracy"], float), np.array(done["log_likelihood"], float))


def _rows(case: str, method: str, curves: Curves, reported: Sequence[int]) -> list[Row]:
    return [
        Row.over(curves.at(metric, iteration), case, method, f"{metric}@{iteration}")
        for metric in ("accuracy", "log_likelihood")
        for iteration in reported
    ]


def _table(curves: Mapping[str, Curves], metric: str, reported: Sequence[int]) -> str:
    title = {"accuracy": "Test accuracy", "log_likelihood": "Test log-likelihood"}[metric]
    lines = [f"| {title} | " + " | ".join(map(str, reported)) + " |", "|---" * (len(reported) + 1) + "|"]
    for method, own in curves.items():
        rows = [Row.over(own.at(metric, iteration), CASE, method, metric) for iteration in reported]
        lines.append(f"| {TITLES[method]} | " + " | ".join(f"{row.mean:.4f} ± {row.stderr:.4f}" for row in rows) + " |")
    return "\n".join(lines)


def _summary(curves: Curves) -> str:
    needed = curves.iterations_to(LEVEL)
    reached = f"{LEVEL} after {needed:.0f} iterations" if needed is not None else f"{LEVEL} not reached"
    return f"accuracy {curves.accuracy[:, -1].mean():.4f} at the end, {reached}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _methods(names: Sequence[str]) -> list[Method]:
    check_names("--methods", names, METHODS)
    return [method for method in METHODS if method in names]


def _read_settings(path: Path | None) -> dict[str, Setting]:
    """The settings by method; those that come with the package where no file is given."""

    def check(winners: Mapping[str, Any]) -> dict[str, Setting]:
        return {name: checked(cast(Method, name), Setting(**own)) for name, own in winners.items()}  # it refuses others

    return read_winners(path, "covtype_settings.json", check)
