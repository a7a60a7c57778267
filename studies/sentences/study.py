"""Sentence classification with half-Bayesian recurrent networks: which settings, how they are chosen, and the tables.

Word vectors and a bidirectional GRU with 50 units each way are shared and trained by Adam; the output weights are ten
particles with an N(0, 1) prior (one, for the point estimate). The matrix variants use the exact softmax Fisher
information of the output weights in a running average; the mixture's weights leave the determinants out and widen with
the median bandwidth: Eq. (17) itself is one-hot here. Particles move by Adam, those of the Langevin chains by plain
steps of step size / N.

A method's step size, and the damping of the metric where there is one, are chosen for every fold by itself, on the
validation part of its training rows; no fold's choice sees its test rows. All methods have the same grid of step sizes,
the matrix variants three dampings for each. Dropout, the network's step sizes and the readout's average were settled
with the point estimate on validation rows of three folds, which are test rows of other folds.

With `--all-weights` the weights of the GRU are particles too, and the word vectors alone are shared (`cells.py`). A run
then has three step sizes at once, and the validation rows of every fold choose among them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from steinkern.core.types import check_positive

from ..data.datasets import data_directory
from ..data.text import TABLES, TEXTS, generate_corpus, load_sentences, word_vectors
from ..driver import check_names
from ..methods import PRECONDITIONED, TITLES, Setting, fill, grid, without_none
from ..study import Cell, Column, Data, Line, Outcome, Scores, Study, Winners
from ..tables import Metric, count_names, read_json, rounded, write_json
from .figures import write_dots
from .runs import EPOCHS, FOLDS, READOUTS, Task, prepare, run_folds

QUICK = "generated"
STEP_SIZES = (1e-4, 1e-3, 1e-2, 1e-1)
"""The particles' step sizes that are searched, for every method."""
DAMPINGS = (0.01, 0.1, 1.0)
"""The dampings of the metric that are searched, where there is one."""
WHOLE_SIZES, WHOLE_DAMPING = (3e-3, 1e-2, 3e-2), 0.1
"""Where all weights are particles: the step sizes of a run by Adam, and the damping."""
WHOLE_LANGEVIN_SIZES = {"sgld": (0.1, 0.3, 1.0), "psgld": (3e-4, 1e-3, 3e-3)}
"""The same for the Langevin chains."""
TABLE_2 = read_json(Path(__file__).with_name("paper.json"))
"""The numbers that the paper prints: metric, dataset, method."""
_QUICK_EPOCHS, _QUICK_FOLDS, _QUICK_STEP, _QUICK_DAMPING = 10, 2, 3e-3, 0.1


class Sentences(Study):
    """Table 2."""

    name = "sentences"
    methods = ("sgld", "psgld", "vanilla", "average", "mixture", "point")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "error": Metric("Test error, %", 1, 2, paper=TABLE_2["error"]),
        "log_likelihood": Metric("Test log-likelihood", -1, 4),
        "ece": Metric("Expected calibration error, %", 1, 2),
    }
    help = "Sentence classification with half-Bayesian recurrent networks: Table 2."
    quick_help = "A small generated corpus and two folds: a look in two minutes, offline."

    def tasks(
        self,
        quick: bool = False,
        *,
        data: Data = None,
        datasets: Annotated[tuple[str, ...], "Comma-separated; those of Table 2 by default."] = TEXTS,
        vectors: Annotated[
            tuple[str, ...] | None,
            "Comma-separated files of word vectors (.npz, word2vec's .bin, text), used side by side; by default those "
            "of the data directory.",
        ] = None,
        folds: Annotated[int, "How many of the ten folds to run."] = FOLDS,
        all_weights: Annotated[
            bool, "The GRU's weights are particles too, with KFAC; step sizes are chosen within the run."
        ] = False,
    ) -> Mapping[str, Task]:
        if not 1 <= folds <= FOLDS:
            raise ValueError(f"`--folds` must be a whole number from 1 to {FOLDS}, got {folds!r}.")
        if quick:
            if vectors is not None or tuple(datasets) != TEXTS:
                raise ValueError("`--quick` runs on a generated corpus: leave out `--datasets` and `--vectors`.")
            corpus, words = generate_corpus()
            more = {"epochs": _QUICK_EPOCHS, "tables": [(QUICK, len(words))], "all_weights": all_weights}
            return {QUICK: prepare(corpus, words, range(min(folds, _QUICK_FOLDS)), **more)}
        check_names("--datasets", datasets, TEXTS)
        where = data_directory(data)
        paths = [where / "vectors" / f"{table}.npz" for table in TABLES]
        paths = paths if vectors is None else [Path(path) for path in vectors]
        names = TABLES if vectors is None else [path.name for path in paths]
        tasks = {}
        for name in datasets:
            corpus = load_sentences(name, where)
            words, counts = word_vectors(corpus.words, paths)
            tables = list(zip(names, counts, strict=True))
            tasks[name] = prepare(corpus, words, range(folds), epochs=EPOCHS, tables=tables, all_weights=all_weights)
        return tasks

    def tuning_tasks(self, **options: Any) -> Mapping[str, Task]:
        if options.get("folds", FOLDS) != FOLDS:
            raise ValueError("`--tune` searches settings for all folds: leave out `--folds`.")
        if options.get("all_weights"):
            raise ValueError("`--tune` has nothing to search with `--all-weights`, which chooses within the run.")
        return self.tasks(**options)

    def reads_settings(self, **options: Any) -> bool:
        return not options.get("all_weights", False)

    def key(self, case: str, method: str, task: Task) -> str:
        folds = "" if len(task.folds) == FOLDS else f"/{len(task.folds)} folds"
        return f"{case}/{method}{'/all weights' if task.all_weights else ''}{folds}"

    def made_from(self, method: str, setting: Setting, task: Task) -> dict[str, Any]:
        return {"settings": [setting], "epochs": task.epochs, **task.protocol()}

    def run(self, method: str, setting: Setting, task: Task) -> dict[str, Any]:
        """The checks, and the test scores of both readouts where early stopping stopped them.

        Of several step sizes each fold has the one with the highest validation log-likelihood.
        """
        settings = _candidates(setting, len(task.folds))
        checks, measured = run_folds(method, settings, task)
        validation = measured.stop_early(_readout(method)).validation
        best = np.argmax(np.where(np.isfinite(validation), validation, -np.inf), axis=0)
        done: dict[str, Any] = {"checks": checks, "validation": rounded(validation)}
        if len(settings) > 1:
            done["step_size"] = [setting["step_sizes"][which] for which in best]
        for readout in READOUTS:
            stopped = measured.stop_early(readout)
            scores = {metric: rounded(_of_best(values, best)) for metric, values in stopped.test._asdict().items()}
            done[readout] = {"check": _of_best(stopped.check, best).tolist(), **scores}
        return done

    def scores(self, method: str, result: Any, task: Task) -> Scores:
        """The method's own readout under the metric's name, both as metric@readout; errors in percent."""
        scores: dict[str, np.ndarray] = {}
        for metric in self.metrics:
            unit = 100 if metric in ("error", "ece") else 1
            both = {readout: unit * np.array(result[readout][metric], float) for readout in READOUTS}
            scores[metric] = both[_readout(method)]
            scores |= {f"{metric}@{readout}": values for readout, values in both.items()}
        return scores

    def check(self, method: str, setting: Any) -> Setting:
        filled = fill(super().check(method, setting), step_size=..., damping=None)
        check_positive("step_size", filled["step_size"])
        for name, values in without_none(filled).items():
            if np.shape(values) != (FOLDS,):
                raise ValueError(f"there must be {FOLDS} of {name}, one a fold, got {values}")
        return without_none(filled)

    def setting(self, chosen: Winners, case: str, method: str, task: Task) -> Setting:
        if case == QUICK:
            damping = [_QUICK_DAMPING] * FOLDS if method in PRECONDITIONED else None
            chosen = {QUICK: {method: without_none({"step_size": [_QUICK_STEP] * FOLDS, "damping": damping})}}
        elif task.all_weights:
            sizes = list(WHOLE_LANGEVIN_SIZES.get(method, WHOLE_SIZES))
            return {"step_sizes": sizes} | ({"damping": WHOLE_DAMPING} if method in PRECONDITIONED else {})
        whole = super().setting(chosen, case, method, task)
        return {name: values[: len(task.folds)] for name, values in whole.items()}

    def cells(self, method: str, case: str, task: Task) -> list[Cell]:
        """For every damping all step sizes, the same on all folds."""
        cells = []
        for damping in DAMPINGS if method in PRECONDITIONED else (None,):
            settings = [without_none(setting) for setting in grid(step_size=STEP_SIZES, damping=(damping,))]
            per_fold = [{name: [value] * FOLDS for name, value in setting.items()} for setting in settings]
            key = f"{case}/{method}" + ("" if damping is None else f"/damping {damping:g}")
            cells.append(Cell(key, per_fold, {"settings": per_fold, "epochs": task.epochs, **task.protocol()}))
        return cells

    def evaluate(self, method: str, cell: Cell, task: Task) -> list[list[float | None]]:
        """The validation log-likelihoods, (settings, folds): a search does not use test scores."""
        return rounded(run_folds(method, cell.settings, task)[1].stop_early(_readout(method)).validation)

    def columns(self, outcome: Outcome) -> list[Column]:
        return [Column(case.upper(), case) for case in outcome.tasks]

    def lines(self, methods: Sequence[str]) -> list[Line]:
        averaged = Line(f"{TITLES['point']}, averaged over checks", "point", "@averaged")
        return super().lines(methods) + ([averaged] if "point" in methods else [])

    def record(self, outcome: Outcome) -> dict[str, Any]:
        counts = {case: [number for _, number in task.tables] for case, task in outcome.tasks.items()}
        more: dict[str, Any] = {"words_found": counts, "vectors": _tables(outcome)}
        if not _has_all_weights(outcome):
            more |= {"step_sizes": STEP_SIZES, "dampings": DAMPINGS}
        return super().record(outcome) | more

    def caption(self, outcome: Outcome) -> str:
        folds = len(next(iter(outcome.tasks.values())).folds)
        if outcome.quick:
            words, choices = "drawn for a generated corpus", "A quick look: settings are fixed, and epochs few."
        else:
            listed_tables = ", ".join(_tables(outcome))
            words = f"{listed_tables} side by side, where the paper's code has all of GoogleNews (word2vec, 300-d)"
            settled = "Stopping was" if _has_all_weights(outcome) else "Step sizes, dampings and stopping were"
            choices = (
                f"{settled} chosen on a tenth of every fold's training rows; dropout, the "
                "network's step sizes and the average with the point estimate on such rows of three folds, test rows "
                "of other folds."
            )
        caption = self.text("caption.txt").format(folds=folds, words=words, choices=choices)
        return f"{self.text('all_weights.txt')} {caption}" if _has_all_weights(outcome) else caption

    def verdicts(self, outcome: Outcome) -> list[str]:
        """Where the mixture stands beside the point estimate, vanilla SVGD, our best, and the paper."""
        if "mixture" not in outcome.methods:
            return []
        cases = list(outcome.tasks)
        both = ("point", "vanilla")
        others = [line for other in both for line in self.lines(outcome.methods) if line.method == other]
        lines = [
            outcome.describe_comparison("mixture", line, name, "folds") for line in others for name in self.metrics
        ]
        for name, metric in self.metrics.items():
            near = count_names([case for case in cases if _is_near_best(outcome, case, name)], of=len(cases))
            near_best = "best, or within one standard error (paired over folds) of our best method"
            lines.append(f"{metric.title}: the mixture is {near_best}, on {near}.")
        rows = [outcome.row(case, "mixture", "error") for case in cases]
        beside = [f"{row.case} {row.mean - row.paper:+.2f}" for row in rows if row.paper is not None]
        if beside:
            lines.append(f"Test error, mixture − the paper's mixture, with other word vectors: {', '.join(beside)}.")
        return lines

    def write(self, outcome: Outcome, directory: Path) -> None:
        """The fold of every sentence, a digit each, and the figure."""
        folds = {case: "".join(map(str, task.fold_of)) for case, task in outcome.tasks.items()}
        write_json(directory / "folds.json", folds)
        write_dots(directory / "scores.png", outcome)


def _candidates(setting: Setting, folds: int) -> list[Setting]:
    """The settings of a run, each with a value for every fold."""
    if "step_sizes" not in setting:
        return [setting]
    rest = {name: [value] * folds for name, value in setting.items() if name != "step_sizes"}
    return [{"step_size": [size] * folds, **rest} for size in setting["step_sizes"]]


def _of_best(values: np.ndarray, best: np.ndarray) -> np.ndarray:
    """From values (settings, folds) those of each fold's best setting."""
    return np.take_along_axis(np.asarray(values), best[None], axis=0)[0]


def _has_all_weights(outcome: Outcome) -> bool:
    return bool(next(iter(outcome.tasks.values())).all_weights)


def _readout(method: str) -> str:
    """Which of the readouts is the method's own."""
    return "now" if method == "point" else "averaged"


def _tables(outcome: Outcome) -> list[str]:
    """Which tables the word vectors are from."""
    return [name for name, _ in next(iter(outcome.tasks.values())).tables]


def _is_near_best(outcome: Outcome, case: str, name: str) -> bool:
    """Whether the mixture is behind our best method by at most one standard error of the paired difference."""
    best = outcome.study.metrics[name].best(outcome.row(case, method, name) for method in outcome.methods)
    gap = outcome.paired_difference(case, "mixture", best.method, name)
    return outcome.study.metrics[name].verdict(gap) in ("level", "better")
