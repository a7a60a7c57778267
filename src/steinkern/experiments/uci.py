"""`steinkern reproduce uci`: Table 1 and Figure 2 (c, d), from settings to tables and figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.files import prepare_directory, write_text
from .data.datasets import REGRESSIONS, Regression, data_directory, diabetes, load_regression, path_of
from .jobs import AbstractPiece, former_winners, number_of_jobs, read_winners, run_pieces
from .journal import Journal
from .paper import TABLE_1, best_printed
from .results import Row, check_names, rounded, write_json, write_results
from .uci_study import (
    DAMPINGS,
    EPOCHS,
    HIDDEN,
    METHODS,
    NOISE_RATES,
    PRECONDITIONED,
    STEP_SIZES,
    TITLES,
    Method,
    Search,
    Setting,
    Task,
    cells,
    checked,
    choose,
    content,
    prepare,
    run_trials,
    tuning_trials,
)
from .uci_table import CAPTION, Finished, Rows, table, verdicts

PAPER = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "wine_red", "protein", "year")
"""The datasets of Table 1, in its order."""
QUICK = "diabetes"
_FIGURED = ("protein", QUICK)
_CURVE_POINTS = 25
_BORROWED = {"year": "protein", "yacht": "energy", QUICK: "wine_red"}
"""Datasets without a search of their own, and whose settings they run with; epochs at most what they would search."""


class Report(NamedTuple):
    """What the command prints when it is done."""

    tables: dict[str, str]
    verdicts: list[str]


def reproduce(
    names: Sequence[str],
    directory: Path,
    *,
    data: Path | None = None,
    methods: Sequence[str] = METHODS,
    quick: bool = False,
    hidden_layers: int = len(HIDDEN),
    settings: Path | None = None,
    jobs: int | None = None,
    figures: bool = True,
    progress: Callable[[str], None] = print,
) -> Report:
    """Run the table and write results.json, table.md and the convergence figures into `directory`.

    A row that a former run into the same directory has finished with the same settings is not run again.

    Args:
        names: the datasets.
        directory: made where it does not exist.
        data: the data directory; see `data_directory`.
        methods: the rows.
        quick: scikit-learn's diabetes data in place of the datasets, two splits and a few epochs: no download.
        hidden_layers: of 50 units each.
        settings: a settings.json from `search`; the recorded settings by default.
        jobs: rows compiled and run at the same time; by default 6 on an accelerator, 1 on a CPU.
        figures: draw them; needs matplotlib.
        progress: told what was finished.
    """
    runs = _methods(methods)
    jobs = number_of_jobs(jobs)
    chosen = _read_settings(settings)
    where = data_directory(data)
    if quick:
        names = (QUICK,)
    check_names("--datasets", names, (*REGRESSIONS, QUICK))
    absent = _absent(names, where)
    tasks = {name: prepare(_load(name, where), 2 if quick else None) for name in names if name not in absent}
    prepare_directory(directory)
    journal = Journal(directory / "rows.json")
    hidden = (HIDDEN[0],) * hidden_layers
    pieces = [
        _Piece(name, method, _setting_for(chosen, name, method), task, hidden)
        for name, task in tasks.items()
        for method in runs
    ]

    def say(piece: _Piece, done: Any) -> None:
        progress(f"{piece.name} {piece.method}: {_finished(done).summary()}")

    results = run_pieces(pieces, journal, jobs, say)
    finished: Rows = {(piece.name, piece.method): _finished(results[piece.key]) for piece in pieces}
    rows = [row for (name, method), done in finished.items() for row in _rows(name, method, done)]
    record = {
        "protocol": {name: task.protocol(hidden) for name, task in tasks.items()},
        "quick": quick,
        "step_sizes": STEP_SIZES,
        "dampings": DAMPINGS,
        "noise_rates": NOISE_RATES,
        "epochs": {name: EPOCHS[name] for name in names},
        "winners": {name: {m: content(_setting_for(chosen, name, m)) for m in runs} for name in tasks},
        "not_run": dict.fromkeys(absent, "data absent"),
        "environment": journal.environments(),
    }
    report = Report({metric: table(finished, names, runs, metric) for metric in TABLE_1}, verdicts(finished))
    write_results(directory / "results.json", "uci", record, rows)
    note = " A quick look: few splits, settings of another dataset." if quick else ""
    caption = CAPTION.format(layers=hidden_layers, note=note)
    lines = "\n".join(f"- {line}" for line in report.verdicts)
    text = "\n\n".join([caption, *report.tables.values(), lines])
    write_text(directory / "table.md", text + "\n")
    if figures:
        _write_figures(finished, directory)
    return report


@dataclass(frozen=True)
class _Piece(AbstractPiece):
    """One row to run."""

    name: str
    method: Method
    setting: Setting
    task: Task
    hidden: tuple[int, ...]

    @property
    def key(self) -> str:
        layers = "" if self.hidden == HIDDEN else f"/{len(self.hidden)} hidden"
        return f"{self.name}/{self.method}{layers}"

    @property
    def made_from(self) -> dict[str, Any]:
        return {**content(self.setting), **self.task.protocol(self.hidden)}

    def run(self) -> dict[str, Any]:
        points = _CURVE_POINTS if self.name in _FIGURED else 1
        checkpoints, scores = run_trials(self.method, self.setting, self.task, points, self.hidden)
        return {"checkpoints": checkpoints, **{metric: rounded(values) for metric, values in scores._asdict().items()}}


def _finished(result: Mapping[str, Any]) -> Finished:
    return Finished(result["checkpoints"], *(np.array(result[metric], float) for metric in TABLE_1))


def search(
    names: Sequence[str],
    directory: Path,
    *,
    data: Path | None = None,
    methods: Sequence[str] = METHODS,
    progress: Callable[[str], None] = print,
) -> None:
    """Search all settings, into search.json (resumed where it exists) and settings.json."""
    runs = _methods(methods)
    check_names("--datasets", names, (*REGRESSIONS, QUICK))
    where = data_directory(data)
    absent = _absent(names, where)
    tasks = {name: prepare(_load(name, where), tuning_trials(name)) for name in names if name not in absent}
    prepare_directory(directory)
    journal = Journal(directory / "search.json")
    winners = former_winners(directory / "settings.json")
    for name, task in tasks.items():
        for method in runs:
            values, runner = {}, None
            for cell in cells(method, name):
                made_from = {"numbers": cell.numbers, **task.protocol(HIDDEN)}
                found = journal.get(f"{name}/{method}/{cell.epochs}", made_from)
                if found is None:
                    runner = runner or Search(method, task)
                    likelihoods = [round(v, 4) if np.isfinite(v) else None for v in runner.evaluate(cell)]
                    found = journal.put(f"{name}/{method}/{cell.epochs}", made_from, likelihoods)
                values[cell.epochs] = found
                progress(f"{name} {method} {cell.epochs} epochs: {found}")
            winners.setdefault(name, {})[method] = content(choose(values, method, name))
    write_json(directory / "settings.json", {"winners": winners})


def _write_figures(finished: Mapping[tuple[str, str], Finished], directory: Path) -> None:
    from .curve_figures import Scored, write_curves  # matplotlib may be missing where the runs are made

    titles = {"rmse": "Test RMSE", "log_likelihood": "Test log-likelihood"}
    for name in _FIGURED:
        own = {
            TITLES[m]: Scored(d.checkpoints, (d.rmse, d.log_likelihood)) for (n, m), d in finished.items() if n == name
        }
        printed = {title: best_printed(metric, name) for metric, title in titles.items()}
        levels = {title: value for title, value in printed.items() if value is not None}
        if own:
            write_curves(directory / f"{name}.png", own, tuple(titles.values()), levels=levels or None, log_x=False)


def _absent(names: Sequence[str], where: Path) -> list[str]:
    """Year, where it is asked for beside other datasets and is not there: a table without it is still a table."""
    return [name for name in names if name == "year" and len(names) > 1 and not path_of(name, where).is_file()]


def _load(name: str, where: Path) -> Regression:
    return diabetes() if name == QUICK else load_regression(name, where)


def _setting_for(chosen: Mapping[str, Mapping[str, Setting]], name: str, method: str) -> Setting:
    origin = name if name in chosen else _BORROWED.get(name, name)
    if origin not in chosen or method not in chosen[origin]:
        raise ValueError(
            f"`--settings` holds none for {method} on {name}; it has {', '.join(chosen)}. Run `--tune` for them."
        )
    setting = chosen[origin][method]
    if method in PRECONDITIONED and setting.damping is None:
        raise ValueError(f"`--settings` must give a damping for {method} on {name}, got none.")
    return replace(setting, epochs=min(setting.epochs, max(EPOCHS[name])))


def _methods(names: Sequence[str]) -> list[Method]:
    check_names("--methods", names, METHODS)
    return [method for method in METHODS if method in names]


def _read_settings(path: Path | None) -> dict[str, dict[str, Setting]]:
    """The settings by dataset and method; those that come with the package where no file is given."""

    def check(winners: Mapping[str, Any]) -> dict[str, dict[str, Setting]]:
        return {name: {m: checked(Setting(**own)) for m, own in methods.items()} for name, methods in winners.items()}

    return read_winners(path, "uci_settings.json", check)


def _rows(name: str, method: str, done: Finished) -> list[Row]:
    rows = []
    for metric, printed in TABLE_1.items():
        paper = printed[name][method].mean if name in printed and method in printed[name] else None
        rows.append(Row.over(done.last(metric), name, method, metric, paper))
    return rows
