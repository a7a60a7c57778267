"""Everyday posteriors with nothing tuned: `sample`, and `fit` without a sampler, beside other methods.

    python -m benchmarks.posteriors.run [--targets NAME ...] [--methods NAME ...] [--seeds 3] [--workers 1] [--resume]

Everything runs in double precision, from the same start of zeros. Errors of means are in reference standard deviations.
"Good" is a largest error of the means below 0.35 and every ratio of standard deviations in 0.7 to 1.4, "excellent"
below 0.1 and in 0.9 to 1.1; a target counts where every seed does. NUTS has as many gradients as ours used, a Hessian
counted as d of them. Rows of other targets and methods that the file of `--json` has are kept; `--resume` skips what is
done. With `--workers` several targets run at once, each in a process and thread of its own.
"""

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from steinkern.core.files import environment, write_text
from steinkern.experiments.tables import Row, aligned, read_results, write_results

from ..jobs import in_processes, machine
from .methods import NAMES, Outcome, run_method
from .references import fingerprint, read_references
from .target import Target
from .targets import TARGETS

GOOD = (0.35, 0.7, 1.4)
EXCELLENT = (0.1, 0.9, 1.1)
WARMUPS = ("diagonal", "dense")
HALVES = ("all", "rules", "held out")
RESULTS = Path(__file__).parents[1] / "results" / "posteriors.json"


@dataclass(frozen=True)
class Judgement:
    """One outcome beside the reference."""

    max_mean_error: float
    mean_mean_error: float
    min_sd_ratio: float
    max_sd_ratio: float

    @classmethod
    def of(cls, mean: Any, sd: Any, reference: dict[str, Any]) -> "Judgement":
        errors = np.abs(np.asarray(mean) - reference["mean"]) / reference["sd"]
        ratios = np.asarray(sd) / reference["sd"]
        return cls(*(float(value) for value in (errors.max(), errors.mean(), ratios.min(), ratios.max())))

    def within(self, limits: tuple[float, float, float]) -> bool:
        """False for NaN."""
        error, low, high = limits
        return self.max_mean_error < error and self.min_sd_ratio >= low and self.max_sd_ratio <= high


def rows_of(target: Target, method: str, outcomes: Sequence[Outcome], reference: dict[str, Any]) -> list[Row]:
    """The rows of one method on one target, each over the seeds."""
    judged = [Judgement.of(outcome.mean, outcome.sd, reference) for outcome in outcomes]
    columns: dict[str, list[float]] = {
        name: [getattr(one, name) for one in judged]
        for name in ("max_mean_error", "mean_mean_error", "min_sd_ratio", "max_sd_ratio")
    }
    columns["good"] = [float(one.within(GOOD)) for one in judged]
    columns["excellent"] = [float(one.within(EXCELLENT)) for one in judged]
    columns["warned"] = [float(bool(outcome.warnings)) for outcome in outcomes]
    columns["silent_failure"] = [
        float(not one.within(GOOD) and not outcome.warnings) for one, outcome in zip(judged, outcomes, strict=True)
    ]
    for name in ("evaluations", "gradients", "hessians", "values", "sequential", "seconds"):
        columns[name] = [float(getattr(outcome, name)) for outcome in outcomes]
    for name, outcome in zip(("first", "second"), outcomes, strict=False):  # with compilation, and without
        columns[f"{name}_seconds"] = [outcome.seconds]
        columns[f"{name}_processor_seconds"] = [outcome.processor_seconds]
    return [Row.over(values, target.name, method, metric) for metric, values in columns.items()]


@dataclass
class Bench:
    """Rows by target and method, written after each."""

    path: Path
    references: dict[str, dict[str, Any]]
    rows: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    warnings: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    measured: dict[str, dict[str, str]] = field(default_factory=dict)
    """By method: the versions, the date and the machine of its last measurement."""

    def load(self, path: Path | None = None, methods: Sequence[str] = NAMES) -> None:
        """Take the rows of a file, its own by default, in place of those of the same target and method."""
        path = self.path if path is None else path
        if path.exists():
            _, settings, rows = read_results(path)
            for name, said in settings["warnings"].items():
                self.warnings.setdefault(name, {}).update({key: said[key] for key in said if key in methods})
            found: dict[tuple[str, str], list[Row]] = {}
            for row in rows:
                if row.case in TARGETS and row.method in methods:
                    found.setdefault((row.case, row.method), []).append(row)
            self.rows |= found
            self.measured |= {key: value for key, value in settings.get("measured", {}).items() if key in methods}

    def line(self, target: str, method: str) -> str:
        """One target and method in a line of text."""
        number = {row.metric: row.mean for row in self.rows[target, method]}
        return (
            f"{target:22} {method:10} means {number['max_mean_error']:8.3g}  sds {number['min_sd_ratio']:.3g} to "
            f"{number['max_sd_ratio']:.3g}  {number['seconds']:.1f} s  {verdict(number)}"
        )

    def value(self, target: str, method: str, metric: str) -> float:
        """The mean of a metric, NaN where it has not been measured."""
        found = [row.mean for row in self.rows.get((target, method), ()) if row.metric == metric]
        return found[0] if found else math.nan

    def done(self, target: str, method: str, seeds: int) -> bool:
        rows = self.rows.get((target, method))
        return bool(rows) and rows[0].trials >= (1 if method == "laplace" else seeds)

    def measure(self, target: Target, method: str, seeds: int) -> None:
        reference = self.references[target.name]
        budget, warmup = self.value(target.name, "ours", "evaluations"), reference["warmup_gradients"]["diagonal"]
        if method == "nuts" and math.isnan(budget):
            raise SystemExit(f"nuts on {target.name} has the budget of ours: run ours first, or with it.")
        outcomes = [
            run_method(method, target, seed, int(budget) if method == "nuts" else 0, warmup)
            for seed in range(1 if method == "laplace" else seeds)  # no part of Laplace's method is random
        ]
        self.rows[target.name, method] = rows_of(target, method, outcomes, reference)
        said = sorted({text for outcome in outcomes for text in outcome.warnings})
        self.warnings.setdefault(target.name, {})[method] = said
        self.measured[method] = {**environment(), "machine": machine()}
        self.write()

    def warmups(self) -> list[Row]:
        """Gradients, one after the other, of a warm-up of NUTS: what `sequential` is to be compared with."""
        return [
            Row(name, f"nuts-warmup-{kind}", "sequential", float(reference["warmup_gradients"][kind]), math.nan, 1)
            for name, reference in self.references.items()
            for kind in WARMUPS
        ]

    def summary(self) -> list[Row]:
        """By half and method: how many targets are good and excellent on every seed, and the median costs."""
        found = []
        for half in HALVES:
            names = [name for name, target in TARGETS.items() if half in ("all", target.half)]
            for method in NAMES:
                measured = [name for name in names if (name, method) in self.rows]
                if not measured:
                    continue
                counts = {
                    "targets": float(len(measured)),
                    "good_targets": float(sum(self.value(name, method, "good") == 1 for name in measured)),
                    "excellent_targets": float(sum(self.value(name, method, "excellent") == 1 for name in measured)),
                    "silent_failures": float(sum(self.value(name, method, "silent_failure") > 0 for name in measured)),
                }
                for metric in ("evaluations", "sequential", "seconds"):
                    counts[f"median_{metric}"] = float(
                        np.median([self.value(name, method, metric) for name in measured])
                    )
                found += [Row(half, method, metric, value, math.nan, 1) for metric, value in counts.items()]
            for kind in WARMUPS:
                counted = [self.references[name]["warmup_gradients"][kind] for name in names if name in self.references]
                if counted:
                    median = float(np.median(counted))
                    found.append(Row(half, f"nuts-warmup-{kind}", "median_sequential", median, math.nan, 1))
        return found

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        order = [(name, method) for name in TARGETS for method in NAMES if (name, method) in self.rows]
        rows = [row for pair in order for row in self.rows[pair]] + self.warmups() + self.summary()
        settings = {
            "good": GOOD,
            "excellent": EXCELLENT,
            "halves": {name: target.half for name, target in TARGETS.items()},
            "warnings": self.warnings,
            "measured": self.measured,
            "environment": environment(),
        }
        write_results(self.path, "posteriors", settings, rows)
        write_text(self.path.with_suffix(".md"), f"{self.summary_table()}\n\n{self.table(list(TARGETS))}\n")

    def table(self, names: Sequence[str]) -> str:
        """One line a target and method, as Markdown."""
        lines = [
            "| target | d | half | method | max error | mean error | sd ratios | evaluations | sequential | seconds "
            "| verdict |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for name in names:
            target = TARGETS[name]
            for method in NAMES:
                if (name, method) not in self.rows:
                    continue
                number = {row.metric: row.mean for row in self.rows[name, method]}
                cells = [
                    name, str(target.dim), target.half, method, f"{number['max_mean_error']:.2g}",
                    f"{number['mean_mean_error']:.2g}",
                    f"{number['min_sd_ratio']:.2f} to {number['max_sd_ratio']:.2f}",
                    f"{number['evaluations']:.0f}", f"{number['sequential']:.0f}", f"{number['seconds']:.1f}",
                    verdict(number),
                ]  # fmt: skip
                lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def summary_table(self) -> str:
        """Counts by method and half, and what a warm-up of NUTS takes, as Markdown."""
        metrics = ("targets", "good_targets", "excellent_targets", "silent_failures")
        medians = ("median_evaluations", "median_sequential", "median_seconds")
        heads = [metric.replace("_", " ") for metric in metrics + medians]
        lines = ["| half | method | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
        numbers: dict[tuple[str, str], dict[str, float]] = {}
        for row in self.summary():
            numbers.setdefault((row.case, row.method), {})[row.metric] = row.mean
        for (half, method), values in numbers.items():
            cells = [f"{values[metric]:.0f}" if metric in values else "" for metric in metrics + medians]
            lines.append(f"| {half} | {method} | {' | '.join(cells)} |")
        return "\n".join(lines)


def in_parallel(bench: Bench, options: argparse.Namespace) -> None:
    """Targets and methods at once, each in a process with one thread; their rows as they come."""
    # NUTS has the budget of ours, and the flow of a hundred particles is compiled once for all that it is thinned to.
    groups = [
        [m for m in group if m in options.methods] for group in (("ours", "nuts"), ("stein", "stein-50", "stein-20"))
    ]
    alone = [[method] for method in options.methods if not any(method in group for group in groups)]
    longest = sorted(options.targets, key=lambda name: -TARGETS[name].dim)
    with tempfile.TemporaryDirectory() as directory:
        commands, names = {}, {}
        for methods in [group for group in [*reversed(groups), *alone] if group]:
            for name in longest:
                if options.resume and all(bench.done(name, method, options.seeds) for method in methods):
                    continue
                job = f"{name},{methods[0]}"
                path = Path(directory) / f"{job}.json"
                known = {
                    pair: bench.rows[pair] for pair in bench.rows if pair[0] == name and pair[1] in (*methods, "ours")
                }
                if known:  # the budget of NUTS is in them, and what `--resume` leaves out
                    Bench(path, bench.references, known, {name: bench.warnings.get(name, {})}).write()
                own = ["--targets", name, "--methods", *methods, "--seeds", str(options.seeds), "--json", str(path)]
                commands[job] = ["benchmarks.posteriors.run", *own, *["--resume"] * options.resume]
                names[job] = name, methods, path

        def finish(job: str) -> None:
            name, methods, path = names[job]
            bench.load(path, methods)
            bench.write()
            for method in methods:
                print(bench.line(name, method), flush=True)

        for job, why in in_processes(commands, options.workers, finish, options.limit).items():
            print(f"{job} failed: {why}", flush=True)


def verdict(number: dict[str, float]) -> str:
    """In a word; where seeds differ, the share that is good; and whether a failure was told."""
    if number["excellent"] == 1:
        return "excellent"
    if number["good"] == 1:
        return "good"
    share = f"{number['good']:.0%} good" if number["good"] > 0 else "off"
    return share + (", silent" if number["silent_failure"] > 0 else ", warned")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS), metavar="NAME")
    parser.add_argument("--methods", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=RESULTS, help="the rows; a Markdown table goes beside them")
    parser.add_argument("--workers", type=int, default=1, help="targets at once")
    parser.add_argument("--limit", type=float, default=math.inf, help="with --workers: seconds after which it stops")
    parser.add_argument("--resume", action="store_true", help="skip what the file has already")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)  # this process is the benchmark's own
    bench = Bench(options.json, read_references())
    bench.load()
    outdated = [
        name
        for name in options.targets
        if name not in bench.references or bench.references[name]["made_from"] != fingerprint(TARGETS[name])
    ]
    if outdated:
        raise SystemExit(f"No references for {', '.join(outdated)}: run `python -m benchmarks.posteriors.references`.")
    if options.workers > 1:
        in_parallel(bench, options)
        print(aligned(bench.summary_table()))
        return
    for name in options.targets:
        for method in (method for method in NAMES if method in options.methods):
            if not (options.resume and bench.done(name, method, options.seeds)):
                bench.measure(TARGETS[name], method, options.seeds)
            print(bench.line(name, method), flush=True)
        jax.clear_caches()  # a program a target and method: together they are more than memory mappings allow
    print(aligned(bench.table(options.targets)), aligned(bench.summary_table()), sep="\n\n")


if __name__ == "__main__":
    main()
