"""What a study is: its methods, its tasks, a run, and the scores of a run. `driver` does everything else.

A study of one's own gives `name`, `methods`, `metrics`, `tasks` and `run`; every other member has a default. `driver`
runs it, resumes it, and writes results.json, table.md and figures; `cli.studies.command` makes it a command, with an
option for every keyword argument of `tasks`.
"""

import abc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from ..core.description import described
from ..core.types import check_choice
from .journal import Journal
from .methods import TITLES, Setting
from .tables import Metric, Row, score_table

Scores: TypeAlias = Mapping[str, np.ndarray]
"""By metric one value a trial; "metric@50" is the metric after 50 iterations."""
Winners: TypeAlias = Mapping[str, Mapping[str, Setting]]
"""Settings by case and method."""

Data: TypeAlias = Annotated[
    Path | None, "The data directory; by default $STEINKERN_DATA or the user's cache directory."
]
"""The option that all studies with data of their own have."""


def read_file(package: str | None, name: str) -> str:
    """A text file of a package."""
    return resources.files(package or "").joinpath(name).read_text(encoding="utf-8").rstrip("\n")


class Cell(NamedTuple):
    """Settings of a search that run together."""

    key: str
    """Its name in search.json."""
    settings: list[Setting]
    made_from: Mapping[str, Any]
    """What its result depends on."""


class Line(NamedTuple):
    """A line of the tables: which scores it shows."""

    label: str
    method: str
    suffix: str = ""
    """Put after the metric's name."""


class Column(NamedTuple):
    """A column of the tables: a case, and what to put after the metric's name."""

    heading: str
    case: str
    suffix: str = ""


class Study(abc.ABC):
    """Methods that are compared on cases."""

    name: str
    methods: tuple[str, ...]
    metrics: ClassVar[Mapping[str, Metric]]
    """Those of the tables."""
    help: str = "A study."
    """What the command says about itself."""
    quick_help: str = "Small data, few trials: a look in a minute or two, offline."
    selectable: bool = True
    """Whether the command has `--methods`."""
    parallel: bool = False
    """Whether the command has `--jobs`."""
    double_precision: bool = False
    page: str = ""
    """The file to open, where there is one."""
    journal: str = "rows.json"
    bare_search: bool = False
    """Whether search.json holds results alone; see `Journal`."""
    single_case: str | None = None
    """The case of a study that has one alone: its settings files hold methods without a case."""
    settings_from: ClassVar[Mapping[str, str]] = {}
    """Cases without a search of their own, and whose settings they run with."""
    bold: bool = True
    cases_down: bool = False
    """Whether the tables have a case a line, and not a case a column."""

    # What a study is made of.

    @abc.abstractmethod
    def tasks(self, *args: Any, **options: Any) -> Mapping[str, Any]:
        """What to run by case: data, trials, sizes; `None` for a case whose data are absent.

        Args:
            args: whether to have a quick look at small data.
            options: those of the command. Each is a keyword argument with a default, of the type
                `Annotated[type, help]`; a tuple of texts is given separated by commas.
        """

    @abc.abstractmethod
    def run(self, method: str, setting: Setting, task: Any) -> Any:
        """All trials of a method with its setting; what comes back is kept as JSON."""

    def scores(self, method: str, result: Any, task: Any) -> Scores:
        """The values of one finished run."""
        return {metric: np.array(result[metric], float) for metric in self.metrics}

    def summary(self, scores: Scores) -> str:
        """The means of a finished run in a line, after as many iterations as there are."""
        keys = {name: [key for key in scores if key.partition("@")[0] == name] for name in self.metrics}
        last = {name: name if name in scores else own[-1] for name, own in keys.items()}
        return ", ".join(f"{self.metrics[name].title} {scores[key].mean():.4g}" for name, key in last.items())

    def derive_scores(self, scores: Mapping[str, Scores], task: Any) -> Mapping[str, Scores]:
        """More scores of a case, by name, such as paired differences of the methods' scores."""
        return {}

    def file(self, name: str) -> str:
        """A text file beside the study's module."""
        return read_file(sys.modules[type(self).__module__].__package__, name)

    # How a run is recognised in a journal.

    def key(self, case: str, method: str, task: Any) -> str:
        """Its name."""
        return f"{case}/{method}"

    def protocol(self, task: Any) -> dict[str, Any]:
        """What a run depends on besides its setting, as JSON: a finished run counts only while this is unchanged.

        By default the task's `protocol()`; for a task without that method a description of the task, in which every
        array is a digest.
        """
        return task.protocol() if hasattr(task, "protocol") else {"task": described(task)}

    def made_from(self, method: str, setting: Setting, task: Any) -> dict[str, Any]:
        """What its result depends on."""
        return {"setting": setting, **self.protocol(task)}

    def finish(self, journal: Journal, case: str, method: str, setting: Setting, task: Any) -> Any:
        """The result of a run, from the journal or run now and put there."""
        made_from = self.made_from(method, setting, task)
        return journal.keep(self.key(case, method, task), made_from, lambda: self.run(method, setting, task))

    # Settings and their search.

    def check(self, method: str, setting: Any) -> Setting:
        """The setting of a file, with its defaults; a `ValueError` where it is not one of the method."""
        check_choice("method", method, self.methods)
        return setting

    def setting(self, chosen: Winners, case: str, method: str, task: Any) -> Setting:
        """The setting to run with; an empty one where there is nothing to choose."""
        if not self.has_search:
            return {}
        origin = case if case in chosen else self.settings_from.get(case, case)
        if method not in chosen.get(origin, {}):
            known = ", ".join(chosen)
            raise ValueError(f"`--settings` holds none for {method} on {case}; it has {known}. Run `--tune` for them.")
        return chosen[origin][method]

    @property
    def has_search(self) -> bool:
        """Whether there is anything to choose."""
        return type(self).cells is not Study.cells

    def tuning_tasks(self, **options: Any) -> Mapping[str, Any]:
        """The tasks that settings are chosen on."""
        return self.tasks(False, **options)

    def cells(self, method: str, case: str, task: Any) -> list[Cell]:
        """The search of a method on a case; none where there is nothing to choose."""
        return []

    def evaluate(self, method: str, cell: Cell, task: Any) -> Any:
        """The result of a cell, as JSON."""
        raise NotImplementedError(f"{type(self).__name__} has cells to search and must say how: define `evaluate`.")

    def values(self, result: Any) -> Sequence[Any]:
        """The value of every setting of a finished cell, larger is better: a number, one a fold, or `None`."""
        return result

    # What is written.

    def columns(self, outcome: "Outcome") -> list[Column]:
        """The columns of the tables."""
        return [Column(case, case) for case in outcome.tasks]

    def lines(self, methods: Sequence[str]) -> list[Line]:
        """The lines of the tables."""
        return [Line(TITLES.get(method, method), method) for method in methods]

    def caption(self, outcome: "Outcome") -> str:
        """What the numbers are."""
        return "Mean ± standard error over trials."

    def verdicts(self, outcome: "Outcome") -> list[str]:
        """What the numbers say, in sentences."""
        return []

    def record(self, outcome: "Outcome") -> dict[str, Any]:
        """The settings that results.json holds, beside the winners and versions."""
        return {"protocol": {case: self.protocol(task) for case, task in outcome.tasks_with_data.items()}}

    def write(self, outcome: "Outcome", directory: Path, figures: bool) -> None:
        """Write further files, and figures unless there is no matplotlib; results.json is already there."""
        return None


@dataclass(frozen=True)
class Outcome:
    """A finished study: what its tables, sentences and figures are made from."""

    study: Study
    methods: tuple[str, ...]
    tasks: Mapping[str, Any]
    """By case; `None` where data are absent."""
    settings: Winners
    results: Mapping[tuple[str, str], Any]
    """What the runs gave, by case and method."""
    scores: Mapping[str, Mapping[str, Scores]]
    """By case, method and metric; derived scores beside those of the methods."""
    quick: bool

    @property
    def tasks_with_data(self) -> dict[str, Any]:
        """The tasks that were run."""
        return {case: task for case, task in self.tasks.items() if task is not None}

    def values(self, case: str, method: str, metric: str) -> np.ndarray:
        """One value a trial. A metric that is not known after "@" so many iterations is the same after any."""
        scores = self.scores[case][method]
        return scores[metric] if metric in scores else scores[metric.partition("@")[0]]

    def row(self, case: str, method: str, metric: str) -> Row:
        """One number, the paper's beside it."""
        known = self.study.metrics.get(metric)
        paper = None if known is None else known.paper.get(case, {}).get(method)
        return Row.over(self.values(case, method, metric), case, method, metric, paper)

    def paired_difference(self, case: str, method: str, other: str, metric: str, suffix: str = "") -> Row:
        """One method's score minus another's, trial by trial; `suffix` is put after the other's metric."""
        theirs = self.values(case, other, metric + suffix)
        return Row.over(self.values(case, method, metric) - theirs, case, method, metric)

    def compare(self, method: str, line: Line, name: str, errors: float = 1) -> list[tuple[Column, Row, str]]:
        """A method's score minus that of a line in every column, trial by trial, and whether that is better."""
        found = []
        for column in self.study.columns(self):
            row = self.paired_difference(column.case, method, line.method, name + column.suffix, line.suffix)
            found.append((column, row, self.study.metrics[name].verdict(row, errors)))
        return found

    def describe_comparison(self, method: str, line: Line, name: str, trials: str, errors: float = 1) -> str:
        """The same in a sentence."""
        metric = self.study.metrics[name]
        shown = [
            f"{column.case}{column.suffix.replace('@', ' at ')} {metric.format_with_error(row, '+')} ({verdict})"
            for column, row, verdict in self.compare(method, line, name, errors)
        ]
        return f"{metric.title}, {method} − {line.label}, paired over {trials}: {', '.join(shown)}."

    def rows(self) -> list[Row]:
        """Every number."""
        return [
            self.row(case, method, metric)
            for case, methods in self.scores.items()
            for method, scores in methods.items()
            for metric in scores
        ]

    def tables(self) -> dict[str, str]:
        """A Markdown table for every metric."""
        lines, columns = self.study.lines(self.methods), self.study.columns(self)
        tables = {}
        for name, metric in self.study.metrics.items():
            rows = {
                column.heading: [
                    self.row(column.case, line.method, name + line.suffix + column.suffix)
                    if column.case in self.scores
                    else None
                    for line in lines
                ]
                for column in columns
            }
            tables[name] = score_table(
                metric,
                [line.label for line in lines],
                rows,
                bold=self.study.bold,
                transposed=self.study.cases_down,
            )
        return tables
