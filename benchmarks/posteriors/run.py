"""Everyday posteriors with nothing tuned: `sample`, and `fit` without a sampler, beside other methods.

All methods start from zeros; NumPyro models have no start, and functions of their parameters are judged as coordinates
are. Errors of means are in reference standard deviations. "Good" is a largest error of the means below 0.35 and every
ratio of standard deviations in 0.7 to 1.4, "excellent" below 0.1 and in 0.9 to 1.1; a target counts where every seed
does. NUTS has as many gradients as `sample` used, a Hessian counted as d of them: those of the file of `--json`, or of
the stored results; `nuts-1000` is a chain of 1000 draws after 1000. The dtype is float64, and float32 with
`--precision float32`.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bench import RESULTS, Answer, Benchmark, Row, by_metric, read
from .methods import NAMES, OF_MODELS, Outcome, run_method
from .target import read_references
from .targets import TARGETS

GOOD = (0.35, 0.7, 1.4)
EXCELLENT = (0.1, 0.9, 1.1)
HALVES = ("all", "rules", "held out")


@dataclass(frozen=True)
class Judgement:
    """One outcome beside the reference; NaN where it is not finite."""

    max_mean_error: float
    mean_mean_error: float
    min_sd_ratio: float
    max_sd_ratio: float

    @classmethod
    def of(cls, mean: Any, sd: Any, reference: dict[str, Any]) -> "Judgement":
        errors = np.abs(np.asarray(mean) - reference["mean"]) / reference["sd"]
        ratios = np.asarray(sd) / reference["sd"]
        numbers = (errors.max(), errors.mean(), ratios.min(), ratios.max())
        return cls(*(float(value) if np.isfinite(value) else np.nan for value in numbers))

    def within(self, limits: tuple[float, float, float]) -> bool:
        """False for NaN."""
        error, low, high = limits
        return self.max_mean_error < error and self.min_sd_ratio >= low and self.max_sd_ratio <= high


def columns_of(outcomes: Sequence[Outcome], reference: dict[str, Any]) -> dict[str, list[float]]:
    """A value for each outcome, by metric."""
    judged = [Judgement.of(outcome.mean, outcome.sd, reference) for outcome in outcomes]
    columns: dict[str, list[float]] = {name: [getattr(one, name) for one in judged] for name in vars(judged[0])}
    columns["good"] = [float(one.within(GOOD)) for one in judged]
    columns["excellent"] = [float(one.within(EXCELLENT)) for one in judged]
    columns["warned"] = [float(bool(outcome.warnings)) for outcome in outcomes]
    columns["silent_failure"] = [
        (1 - good) * (1 - warned) for good, warned in zip(columns["good"], columns["warned"], strict=True)
    ]
    for name in ("evaluations", "gradients", "hessians", "values", "sequential", "seconds"):
        columns[name] = [float(getattr(outcome, name)) for outcome in outcomes]
    return columns


def rows_of(case: str, method: str, outcomes: Sequence[Outcome], reference: dict[str, Any]) -> list[Row]:
    """Means over the seeds; of seconds the first and the second too."""
    rows = [Row.over(values, case, method, metric) for metric, values in columns_of(outcomes, reference).items()]
    few = [outcome.at_particles for outcome in outcomes if outcome.at_particles]
    for metric, values in (columns_of(few, reference) if few else {}).items():
        rows.append(Row.over(values, case, f"{method}-particles", metric))
    for name, outcome in zip(("first", "second"), outcomes, strict=False):
        rows.append(Row(case, method, f"{name}_seconds", outcome.seconds))
    return rows


def budget_of(name: str, options: Namespace) -> tuple[int, int]:
    """The gradients that NUTS may use on a target, and what 1000 iterations of its warm-up take."""
    for path in (options.json, RESULTS / "posteriors.json"):
        rows = [] if path is None else read(path)[1]
        budgets = [row.mean for row in rows if row[:3] == (name, "ours", "evaluations")]
        if budgets:
            return int(budgets[0]), read_references()[name]["warmup_gradients"]["diagonal"]
    raise SystemExit(f"NUTS on {name} has the budget of `sample`: measure the method `ours` first.")


def run(case: str, method: str, options: Namespace) -> Answer:
    """One outcome of a method for each seed, and all warnings; no part of Laplace's method is random."""
    budget, warmup = budget_of(case, options) if method == "nuts" else (0, 1)
    seeds = range(1 if method == "laplace" else options.seeds or 3)
    outcomes = [run_method(method, TARGETS[case], seed, budget, warmup) for seed in seeds]
    texts = sorted({text for outcome in outcomes for text in outcome.warnings})
    return Answer(rows_of(case, method, outcomes, read_references()[case]), texts)


def summary(rows: list[Row]) -> list[Row]:
    """By half and method: how many targets are good and excellent on every seed, and the median costs.

    Alarms on excellent results are warnings, of any seed, about a target that is excellent on every seed.
    """
    numbers, made, references = by_metric(rows), [], read_references()
    for half in HALVES:
        names = [name for name, target in TARGETS.items() if half in ("all", target.half)]
        for method in dict.fromkeys(method for _, method in numbers):
            measured = [numbers[name, method] for name in names if (name, method) in numbers]
            if not measured:
                continue
            counts = {
                "targets": len(measured),
                "good_targets": sum(number["good"] == 1 for number in measured),
                "excellent_targets": sum(number["excellent"] == 1 for number in measured),
                "silent_failures": sum(number["silent_failure"] > 0 for number in measured),
                "excellent_alarms": sum(number["excellent"] == 1 and number["warned"] > 0 for number in measured),
            }
            for metric in ("evaluations", "sequential", "seconds"):
                counts[f"median_{metric}"] = np.median([number[metric] for number in measured])
            made += [Row(half, method, metric, float(value)) for metric, value in counts.items()]
        gradients = [references[name]["warmup_gradients"]["diagonal"] for name in names]
        made.append(Row(half, "nuts-warmup-diagonal", "median_sequential", float(np.median(gradients))))
    return made


SUMMARY = (
    "targets", "good_targets", "excellent_targets", "silent_failures", "excellent_alarms", "median_sequential",
    "median_seconds",
)  # fmt: skip
LARGEST_FIRST = sorted(TARGETS, key=lambda name: -TARGETS[name].dim)  # so that several processes end together
BENCHMARKS = {
    "posteriors": Benchmark(
        [
            (name, method)
            for method in NAMES
            for name in LARGEST_FIRST
            if method in OF_MODELS or TARGETS[name].model is None
        ],
        run,
        summary,
        SUMMARY,
        settings={"good": GOOD, "excellent": EXCELLENT, "halves": {name: TARGETS[name].half for name in TARGETS}},
        precision="float64",
    ),
}
