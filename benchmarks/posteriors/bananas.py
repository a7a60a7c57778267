"""Bananas with nothing tuned: are wrong particles told of, and right ones left alone?

    python -m benchmarks.posteriors.bananas [--keys 6] [--workers 1]

Bends are what `fit` without a sampler cannot follow with one metric, and where chains that start from too narrow
particles can be as narrow as these. None of these targets is among the 28 of `run`. The limit of R-hat in
`inference/default/held_aside.py` was set with the README's banana, others like these, and healthy targets in view.
"Wrong" is what is not good in the sense of `run`. Rows of other targets and methods that the file of `--json` has are
kept.
"""

import argparse
import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steinkern.core.files import environment
from steinkern.experiments.tables import Row, read_results, write_results

from ..jobs import in_processes, machine
from .methods import Outcome, run_method
from .references import on_a_grid
from .run import EXCELLENT, GOOD, Judgement
from .target import Target, normal

RESULTS = Path(__file__).parents[1] / "results" / "bananas.json"
METHODS = ("stein", "stein-20", "ours")
COUNTS = ("good", "excellent", "warned", "silent_failure", "false_alarm")


def _banana(x: Any, sd: float, bend: float, width: float) -> Any:
    return normal(x[0], 0.0, sd) + normal(x[1], bend * x[0] ** 2, width) + normal(x[2:])


def _moments(sd: float, bend: float, width: float, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """E x² = s² and Var x² = 2s⁴ for x ~ N(0, s²)."""
    rest = dim - 2
    second = math.sqrt(2 * bend**2 * sd**4 + width**2)
    return np.array([0.0, bend * sd**2] + rest * [0.0]), np.array([sd, second] + rest * [1.0])


SHAPES = {  # sd of x, bend, sd of y around the bend, dimensions
    "banana-readme": (2.0, 0.25, 0.3, 2),
    "banana-narrow": (1.0, 1.0, 0.2, 2),
    "banana-wide": (3.0, 0.5, 1.0, 2),
    "banana-five": (2.0, 0.25, 0.3, 5),
}


def _student(x: Any) -> Any:
    return -0.5 * (8 + x.size) * jnp.log1p(jnp.sum(x**2) / 8)


def _logistic(x: Any) -> Any:
    random = np.random.default_rng(5)
    features = random.standard_normal((80, 2)) * np.array([1.0, 10.0])
    labels = (random.random(80) < 1 / (1 + np.exp(-features @ np.array([0.8, -0.1])))).astype(float)
    linear = jnp.asarray(features, x.dtype) @ x
    return jnp.sum(jnp.asarray(labels, x.dtype) * linear - jnp.logaddexp(0, linear)) + normal(x, 0.0, 5.0)


Reference = Callable[[], tuple[np.ndarray, np.ndarray]]


def _healthy() -> dict[str, tuple[Target, Reference]]:
    logistic = Target("logistic", _logistic, 2, "rules", "a logistic regression with two columns")
    gaussian = Target("gaussian", lambda x: normal(x, 1.0, jnp.arange(1.0, 6.0, dtype=x.dtype)), 5, "rules", "")
    student = Target("student", _student, 3, "rules", "a t distribution with 8 degrees of freedom")
    return {
        "gaussian": (gaussian, lambda: (np.ones(5), np.arange(1.0, 6.0))),
        "student": (student, lambda: (np.zeros(3), np.full(3, math.sqrt(8 / 6)))),
        "logistic": (logistic, lambda: on_a_grid(logistic)),
    }


def _bananas() -> dict[str, tuple[Target, Reference]]:
    found: dict[str, tuple[Target, Reference]] = {}
    for name, (sd, bend, width, dim) in SHAPES.items():
        density = partial(_banana, sd=sd, bend=bend, width=width)
        found[name] = Target(name, density, dim, "rules", ""), partial(_moments, sd, bend, width, dim)
    return found


TARGETS = {**_bananas(), **_healthy()}


def rows_of(name: str, method: str, outcomes: list[Outcome]) -> list[Row]:
    """The worst of every number over the keys, and how many keys are good, warned and so on."""
    mean, sd = TARGETS[name][1]()
    reference = {"mean": mean, "sd": sd}
    judged = [Judgement.of(outcome.mean, outcome.sd, reference) for outcome in outcomes]
    warned = [bool(outcome.warnings) for outcome in outcomes]
    good = [one.within(GOOD) for one in judged]
    counts = (
        good, [one.within(EXCELLENT) for one in judged], warned,
        [not right and not told for right, told in zip(good, warned, strict=True)],
        [right and told for right, told in zip(good, warned, strict=True)],
    )  # fmt: skip
    numbers = {
        "max_mean_error": max(one.max_mean_error for one in judged),
        "min_sd_ratio": min(one.min_sd_ratio for one in judged),
        "max_sd_ratio": max(one.max_sd_ratio for one in judged),
        **{metric: float(sum(values)) for metric, values in zip(COUNTS, counts, strict=True)},
        "evaluations": float(np.median([outcome.evaluations for outcome in outcomes])),
    }
    return [Row(name, method, metric, value, math.nan, len(outcomes)) for metric, value in numbers.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS), metavar="NAME")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--keys", type=int, default=6)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=1, help="targets and methods at once")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which it stops")
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)  # this process is the benchmark's own
    if options.to is not None:
        name, method = options.targets[0], options.methods[0]
        outcomes = [run_method(method, TARGETS[name][0], key) for key in range(options.keys)]
        rows = rows_of(name, method, outcomes)
        said = sorted({text for outcome in outcomes for text in outcome.warnings})
        write_results(options.to, "bananas", {"warnings": said}, rows)
        return
    options.json.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[tuple[str, str], list[Row]] = {}
    warnings: dict[str, list[str]] = {}
    if options.json.exists():
        _, settings, rows = read_results(options.json)
        warnings = settings["warnings"]
        for row in rows:
            kept.setdefault((row.case, row.method), []).append(row)
    with tempfile.TemporaryDirectory() as directory:
        pairs = {f"{name},{method}": (name, method) for name in options.targets for method in options.methods}
        places = {job: Path(directory) / f"{job}.json" for job in pairs}
        commands = {
            job: [
                "benchmarks.posteriors.bananas", "--targets", name, "--methods", method, "--keys", str(options.keys),
                "--to", str(places[job]),
            ]
            for job, (name, method) in pairs.items()
        }  # fmt: skip

        def finish(job: str) -> None:
            _, own, rows = read_results(places[job])
            kept[pairs[job]], warnings[job] = rows, own["warnings"]
            settings = {"warnings": warnings, "environment": environment(), "machine": machine()}
            order = [(name, method) for name in TARGETS for method in METHODS if (name, method) in kept]
            write_results(options.json, "bananas", settings, [row for pair in order for row in kept[pair]])
            told = {row.metric: row.mean for row in rows}
            print(
                f"{job:24} means {told['max_mean_error']:.2g} sds {told['min_sd_ratio']:.2f} to "
                f"{told['max_sd_ratio']:.2f}, of {options.keys}: " + ", ".join(f"{c} {told[c]:.0f}" for c in COUNTS),
                flush=True,
            )

        for job, why in in_processes(commands, options.workers, finish, options.limit).items():
            print(f"{job} failed: {why}", flush=True)


if __name__ == "__main__":
    main()
