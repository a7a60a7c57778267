"""The interface of a study: its methods, its tasks, a run, and the scores of a run. `driver` does everything else.

A new study defines `name`, `methods`, `metrics`, `tasks` and `run`; all other members have defaults. `driver` runs it,
resumes it, and writes results.json, table.md and figures. `python -m studies` has a command for it, with an option for
every keyword argument of `tasks` that is `Annotated` with a help text.
"""

import abc
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from steinkern.core.types import check_choice

from .journal import Journal
from .methods import TITLES, Setting
from .tables import Metric, Row, score_table

Scores: TypeAlias = Mapping[str, np.ndarray]
"""One value for each trial, by metric; "metric@50" is the metric after 50 iterations."""
Winners: TypeAlias = Mapping[str, Mapping[str, Setting]]
"""Settings by case and method."""

Data: TypeAlias = Annotated[
    Path | None, "The data directory, which missing data are downloaded to; by default $STEINKERN_DATA or a cache."
]
"""The option `--data` of studies that read datasets."""


class Cell(NamedTuple):
    """Settings of a search that are evaluated together."""

    key: str
    """The name of the cell in search.json."""
    settings: list[Setting]
    made_from: Mapping[str, Any]
    """The inputs of its result, as JSON."""


class Line(NamedTuple):
    """A line of the tables: a method, and a suffix of its metrics."""

    label: str
    method: str
    suffix: str = ""
    """Appended to the name of a metric, such as "@50"."""


class Column(NamedTuple):
    """A column of the tables: a case, and a suffix of its metrics."""

    heading: str
    case: str
    suffix: str = ""


class Study(abc.ABC):
    """A comparison of methods on several cases, such as datasets."""

    name: str
    methods: tuple[str, ...]
    metrics: ClassVar[Mapping[str, Metric]]
    """The metrics that the tables show."""
    help: str = "A study."
    """The help text of the command."""
    quick_help: str = "Small data, few trials: a look in a minute or two, offline."
    selectable: bool = True
    """Whether the command has `--methods`."""
    double_precision: bool = False
    page: str = ""
    """The name of the HTML page that the study writes; empty where it writes none."""
    settings_from: ClassVar[Mapping[str, str]] = {}
    """For cases that are not searched, the case whose settings they use."""
    bold: bool = True
    cases_down: bool = False
    """Whether cases are the lines of the tables; otherwise they are the columns."""

    # What a study is made of.

    @abc.abstractmethod
    def tasks(self, *args: Any, **options: Any) -> Mapping[str, Any]:
        """The tasks (data, trials, sizes) by case.

        Args:
            args: `quick`, whether to use small data.
            options: the options of the command. Each is a keyword argument with a default, of the type
                `Annotated[type, help]`; a tuple of texts is given as a list separated by commas.
        """

    @abc.abstractmethod
    def run(self, method: str, setting: Setting, task: Any) -> Any:
        """Run all trials of a method with a setting; returns a result that is JSON."""

    def scores(self, method: str, result: Any, task: Any) -> Scores:
        """The scores of a finished run."""
        return {metric: np.array(result[metric], float) for metric in self.metrics}

    def summary(self, scores: Scores) -> str:
        """The mean scores of a finished run, after its last iteration, in one line."""
        keys = {name: [key for key in scores if key.partition("@")[0] == name] for name in self.metrics}
        last = {name: name if name in scores else listed[-1] for name, listed in keys.items()}
        return ", ".join(f"{self.metrics[name].title} {scores[key].mean():.4g}" for name, key in last.items())

    def derive_scores(self, scores: Mapping[str, Scores], task: Any) -> Mapping[str, Scores]:
        """Further scores of a case, by name, such as paired differences between methods."""
        return {}

    def path(self, name: str) -> Path:
        """The path of a file beside the study's module."""
        return Path(inspect.getfile(type(self))).with_name(name)

    def text(self, name: str) -> str:
        """A text file beside the study's module."""
        return self.path(name).read_text(encoding="utf-8").rstrip("\n")

    # The identity of a run in the journal.

    def key(self, case: str, method: str, task: Any) -> str:
        """The name of a run in the journal."""
        return f"{case}/{method}"

    def protocol(self, task: Any) -> dict[str, Any]:
        """What a run depends on besides its setting, as JSON: a finished run counts only while this is unchanged."""
        return task.protocol()

    def made_from(self, method: str, setting: Setting, task: Any) -> dict[str, Any]:
        """The inputs of a run: its setting and its protocol."""
        return {"setting": setting, **self.protocol(task)}

    def finish(self, journal: Journal, case: str, method: str, setting: Setting, task: Any) -> Any:
        """The result of a run from the journal; where it has none, the run is made and its result written there."""
        made_from = self.made_from(method, setting, task)
        return journal.keep(self.key(case, method, task), made_from, lambda: self.run(method, setting, task))

    # Settings and their search.

    def check(self, method: str, setting: Any) -> Setting:
        """A setting from a file, completed by defaults; `ValueError` where it is not a setting of the method."""
        check_choice("method", method, self.methods)
        return setting

    def setting(self, chosen: Winners, case: str, method: str, task: Any) -> Setting:
        """The setting of a method on a case; empty for a study without a search."""
        if not self.has_search:
            return {}
        origin = case if case in chosen else self.settings_from.get(case, case)
        if method not in chosen.get(origin, {}):
            known = ", ".join(chosen)
            raise ValueError(f"`--settings` holds none for {method} on {case}; it has {known}. Run `--tune` for them.")
        return chosen[origin][method]

    @property
    def has_search(self) -> bool:
        """Whether the study searches settings."""
        return type(self).cells is not Study.cells

    def reads_settings(self, **options: Any) -> bool:
        """Whether `--settings` has an effect with these options of the command."""
        return self.has_search

    def tuning_tasks(self, **options: Any) -> Mapping[str, Any]:
        """The tasks on which settings are chosen."""
        return self.tasks(False, **options)

    def cells(self, method: str, case: str, task: Any) -> list[Cell]:
        """The cells of the search of a method on a case; empty for a study without a search."""
        return []

    def evaluate(self, method: str, cell: Cell, task: Any) -> Any:
        """The result of a cell, as JSON."""
        raise NotImplementedError(f"{type(self).__name__} has cells to search and must say how: define `evaluate`.")

    def values(self, result: Any) -> Sequence[Any]:
        """For each setting of a finished cell its value, larger is better: a number, one for each fold, or `None`."""
        return result

    # What is written.

    def columns(self, outcome: "Outcome") -> list[Column]:
        """The columns of the tables."""
        return [Column(case, case) for case in outcome.tasks]

    def lines(self, methods: Sequence[str]) -> list[Line]:
        """The lines of the tables."""
        return [Line(TITLES.get(method, method), method) for method in methods]

    def caption(self, outcome: "Outcome") -> str:
        """The caption of the tables."""
        return "Mean ± standard error over trials."

    def verdicts(self, outcome: "Outcome") -> list[str]:
        """Sentences about the results."""
        return []

    def record(self, outcome: "Outcome") -> dict[str, Any]:
        """The settings in results.json, besides the winners and versions."""
        return {"protocol": {case: self.protocol(task) for case, task in outcome.tasks.items()}}

    def write(self, outcome: "Outcome", directory: Path) -> None:
        """Write further files and figures; results.json is already there."""
        return None


@dataclass(frozen=True)
class Outcome:
    """A finished study, from which tables, sentences and figures are made."""

    study: Study
    methods: tuple[str, ...]
    tasks: Mapping[str, Any]
    """By case."""
    settings: Winners
    results: Mapping[tuple[str, str], Any]
    """The results of the runs by case and method."""
    scores: Mapping[str, Mapping[str, Scores]]
    """By case, method and metric; derived scores beside those of the methods."""
    quick: bool

    def values(self, case: str, method: str, metric: str) -> np.ndarray:
        """One value for each trial. A metric that has no value "@" an iteration has the same value at all of them."""
        scores = self.scores[case][method]
        return scores[metric] if metric in scores else scores[metric.partition("@")[0]]

    def row(self, case: str, method: str, metric: str) -> Row:
        """The mean of a score with its standard error, and the paper's number."""
        known = self.study.metrics.get(metric)
        paper = None if known is None else known.paper.get(case, {}).get(method)
        return Row.over(self.values(case, method, metric), case, method, metric, paper)

    def paired_difference(self, case: str, method: str, other: str, metric: str, suffix: str = "") -> Row:
        """One method's score minus another's, paired by trial; `suffix` is appended to the other's metric."""
        theirs = self.values(case, other, metric + suffix)
        return Row.over(self.values(case, method, metric) - theirs, case, method, metric)

    def compare(self, method: str, line: Line, name: str, errors: float = 1) -> list[tuple[Column, Row, str]]:
        """For every column a method's score minus that of a line, paired by trial, and its verdict."""
        columns = self.study.columns(self)
        rows = [
            self.paired_difference(one.case, method, line.method, name + one.suffix, line.suffix) for one in columns
        ]
        return [
            (one, row, self.study.metrics[name].verdict(row, errors)) for one, row in zip(columns, rows, strict=True)
        ]

    def describe_comparison(self, method: str, line: Line, name: str, trials: str, errors: float = 1) -> str:
        """The comparison of `compare` in a sentence."""
        metric = self.study.metrics[name]
        shown = [
            f"{column.case}{column.suffix.replace('@', ' at ')} {metric.format_with_error(row, '+')} ({verdict})"
            for column, row, verdict in self.compare(method, line, name, errors)
        ]
        return f"{metric.title}, {method} − {line.label}, paired over {trials}: {', '.join(shown)}."

    def rows(self) -> list[Row]:
        """All scores of all cases and methods."""
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
                    self.row(column.case, line.method, name + line.suffix + column.suffix) for line in lines
                ]
                for column in columns
            }
            if all(np.isnan(row.mean) for column in rows.values() for row in column):
                continue  # it was not measured
            tables[name] = score_table(
                metric,
                [line.label for line in lines],
                rows,
                bold=self.study.bold,
                transposed=self.study.cases_down,
            )
        return tables
