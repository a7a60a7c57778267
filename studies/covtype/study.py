"""Bayesian logistic regression on Covertype: which settings, how they are chosen, and what the curves say.

Class 2 against the rest, features scaled to [0, 1] (as in LIBSVM's scaled copy) with a column of ones, prior N(0, I),
20 particles drawn from it, batches of 256 drawn with replacement, every trial on a random 70/10/20 partition.

Step rules: "adagrad", the paper's; "plain"; and "decay", plain with the step size over 1 + t/horizon. A plain step size
multiplies the velocity as it is where a metric has already divided by the curvature, and the velocity over N
elsewhere; Langevin chains have step size / N. The matrix variants use the exact Fisher information in a running
average. The mixture's weights leave the determinants out and widen with the median bandwidth: Eq. (17) itself is
one-hot here.

Step rule and size, the horizon of a decay and the damping of a metric are chosen per method by the log-likelihood of
validation rows, averaged over the checkpoints from 50 to 2000 iterations, over one grid for all methods (Langevin
chains have no Adagrad). The search has partitions of its own, none of which is reported (they are of the same table, so
its rows are in reported tests).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from steinkern.core.types import check_choice, check_count, check_positive

from ..data.datasets import breast_cancer, load_covtype
from ..journal import Journal
from ..methods import LANGEVIN, PRECONDITIONED, TITLES, Setting, fill, grid, without_none
from ..plots import write_curves
from ..study import Cell, Column, Data, Outcome, Scores, Study
from ..tables import Metric, rounded
from .runs import Task, prepare, run_trials

RULES = ("adagrad", "plain", "decay")
STEP_SIZES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 1.0)
HORIZONS = (30.0, 100.0, 300.0)
DAMPINGS = (1e-4, 1e-3, 1e-2, 1e-1)
TUNING_PARTITIONS = (1000, 1001, 1002, 1003)
"""The partitions that settings are chosen on. Those reported count from 0, so that none of them is among these."""
REPORTED = (50, 100, 200, 300, 500, 1000, 2000)
CHECKPOINTS = (1, 5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 250, 300, 400, 500, 700, 1000, 1400, 2000)
LATER = (3000, 4000, 6000, 8000, 10000)
"""Further checkpoints for a method that has not reached the paper's 0.75 by 2000."""
LEVEL = 0.75
"""The accuracy that the paper's matrix variants reach "in less than 500 iterations"."""
QUICK = "breast_cancer"


class Covtype(Study):
    """Figure 2 (a, b)."""

    name = "covtype"
    methods = ("sgld", "psgld", "vanilla", "average", "mixture")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "accuracy": Metric("Test accuracy", -1, 4),
        "log_likelihood": Metric("Test log-likelihood", -1, 4),
    }
    help = "Bayesian logistic regression on Covertype: Figure 2 (a, b)."
    quick_help = "Data that scikit-learn ships, few trials: a look in a minute or two, offline."
    settings_from: ClassVar[Mapping[str, str]] = {QUICK: "covtype"}
    bold = False

    def tasks(
        self,
        quick: bool = False,
        *,
        data: Data = None,
        trials: Annotated[int, "How many random partitions to report."] = 20,
    ) -> Mapping[str, Task]:
        check_count("--trials", trials)
        most = min(TUNING_PARTITIONS)
        if trials > most:
            raise ValueError(
                f"`--trials` must be at most {most}, since settings are chosen on later ones, got {trials}."
            )
        if quick:
            return {QUICK: prepare(breast_cancer(), 1, range(min(trials, 3)), (1, 5, 10, 20, 50, 100, 200))}
        return {"covtype": prepare(load_covtype(data), 2, range(trials), CHECKPOINTS)}

    def tuning_tasks(self, data: Path | None = None, **unused: Any) -> Mapping[str, Task]:
        return {"covtype": prepare(load_covtype(data), 2, TUNING_PARTITIONS, REPORTED)}

    def key(self, case: str, method: str, task: Task) -> str:
        return f"{method}/{len(task.train_rows)} trials/{len(task.labels)} rows"

    def made_from(self, method: str, setting: Setting, task: Task) -> dict[str, Any]:
        return {**super().made_from(method, setting, task), "checkpoints": task.checkpoints}

    def finish(self, journal: Journal, case: str, method: str, setting: Setting, task: Task) -> Any:
        """The scores at all checkpoints, and at the later ones too where the level is not reached by then."""
        longer = replace(task, checkpoints=(*task.checkpoints, *LATER))
        done = journal.get(self.key(case, method, task), self.made_from(method, setting, longer))
        if done is None:
            done = super().finish(journal, case, method, setting, task)
        if case == QUICK or iterations_to(LEVEL, done) is not None:
            return done
        return super().finish(journal, case, method, setting, longer)

    def run(self, method: str, setting: Setting, task: Task) -> Any:
        scores = run_trials(method, [setting], task, task.test_rows, task.checkpoints, seed=0)
        values = {name: rounded(values[0]) for name, values in scores._asdict().items()}
        return {"checkpoints": list(task.checkpoints), **values}

    def scores(self, method: str, result: Any, task: Task) -> Scores:
        checkpoints = result["checkpoints"]
        return {
            f"{metric}@{iteration}": np.array(result[metric], float)[:, checkpoints.index(iteration)]
            for metric in self.metrics
            for iteration in REPORTED
            if iteration in checkpoints
        }

    def check(self, method: str, setting: Any) -> Setting:
        filled = fill(super().check(method, setting), rule=..., step_size=..., horizon=None, damping=None)
        check_choice("rule", filled["rule"], rules_of(method))
        check_positive("step_size", filled["step_size"])
        return without_none(filled)

    def cells(self, method: str, case: str, task: Task) -> list[Cell]:
        dampings: Sequence[float | None] = DAMPINGS if method in PRECONDITIONED else (None,)
        cells = []
        for rule in rules_of(method):
            horizons: Sequence[float | None] = HORIZONS if rule == "decay" else (None,)
            settings = grid(rule=(rule,), step_size=STEP_SIZES, horizon=horizons, damping=dampings)
            settings = [without_none(setting) for setting in settings]
            made_from = {"settings": settings, "checkpoints": task.checkpoints, **task.protocol()}
            cells.append(Cell(f"{method}/{rule}", settings, made_from))
        return cells

    def evaluate(self, method: str, cell: Cell, task: Task) -> list[float | None]:
        """The validation log-likelihood, a mean over trials and checkpoints, 50 to 2000."""
        scores = run_trials(method, cell.settings, task, task.validation_rows, task.checkpoints, seed=1)
        return rounded(scores.log_likelihood.mean(axis=(1, 2)), places=5)

    def columns(self, outcome: Outcome) -> list[Column]:
        (case,) = outcome.tasks
        scores = outcome.scores[case][outcome.methods[0]]
        return [Column(str(t), case, f"@{t}") for t in REPORTED if f"accuracy@{t}" in scores]

    def record(self, outcome: Outcome) -> dict[str, Any]:
        ((case, task),) = outcome.tasks.items()
        needed = {method: iterations_to(LEVEL, outcome.results[case, method]) for method in outcome.methods}
        return {
            "protocol": task.protocol(),
            "step_sizes": STEP_SIZES,
            "horizons": HORIZONS,
            "dampings": DAMPINGS,
            "level": LEVEL,
            "iterations_to_level": {method: number and round(number, 1) for method, number in needed.items()},
        }

    def caption(self, outcome: Outcome) -> str:
        ((case, task),) = outcome.tasks.items()
        if case == QUICK:
            return "Breast cancer (scikit-learn's copy): a quick look."
        return self.text("caption.txt").format(trials=len(task.partitions))

    def verdicts(self, outcome: Outcome) -> list[str]:
        """How many iterations each method needs to the paper's 0.75, and how many times those of matrix variants."""
        (case,) = outcome.tasks
        results = {method: outcome.results[case, method] for method in outcome.methods}
        needed = {method: iterations_to(LEVEL, result) for method, result in results.items()}
        lines = []
        for method, iterations in needed.items():
            last = results[method]["checkpoints"][-1]
            when = f"not within {last}" if iterations is None else f"after {iterations:.0f}"
            lines.append(f"{TITLES[method]} reaches a test accuracy of {LEVEL} {when} iterations.")
        for method, other in product(PRECONDITIONED, ("vanilla", "psgld")):
            iterations = needed.get(method)
            if iterations is not None and other in needed:
                theirs, last = needed[other], results[other]["checkpoints"][-1]
                ratio = f"more than {last / iterations:.0f}" if theirs is None else f"{theirs / iterations:.1f}"
                lines.append(f"{TITLES[other]} needs {ratio} times the iterations of {TITLES[method]}.")
        lines.append(f'The paper: its matrix variants reach {LEVEL} "in less than 500 iterations".')
        return lines

    def write(self, outcome: Outcome, directory: Path) -> None:
        write_curves(directory / "curves.png", outcome, next(iter(outcome.tasks)), log_x=True)


def rules_of(method: str) -> tuple[str, ...]:
    """The step rules that a method searches."""
    return ("plain", "decay") if method in LANGEVIN else RULES


def iterations_to(level: float, result: Any) -> float | None:
    """The iterations until the mean accuracy of a result reaches `level`, interpolated; `None` where it does not."""
    mean, checkpoints = np.array(result["accuracy"], float).mean(axis=0), result["checkpoints"]
    above = np.flatnonzero(mean >= level)
    if not above.size:
        return None
    crossing = slice(max(0, above[0] - 1), above[0] + 1)
    return float(np.interp(level, mean[crossing], checkpoints[crossing]))
