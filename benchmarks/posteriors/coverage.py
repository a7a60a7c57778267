"""The errors that `sample` states, beside the errors that it makes: on a banana and on a heavy-tailed target, 400 keys.

A stated error is one standard error. `mean_coverage` and `sd_coverage` are the shares of the moments of the particles,
over all keys and coordinates, that are within two of them: 0.95 where the errors are normal. Of the draws,
`min_sd_ratio` is the smallest ratio to an exact standard deviation, and `narrow_unwarned` counts the keys with a ratio
below 0.9 and without a warning.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk

from ..bench import Answer, Benchmark, Row
from .target import normal

KEYS = 400


class Known(NamedTuple):
    """A log density with its exact means and standard deviations."""

    log_density: Callable[[Any], Any]
    mean: np.ndarray
    sd: np.ndarray


CASES = {  # x ~ N(0, 2²) and y ~ N(x²/4, 0.3²): Var x² = 2 · 2⁴
    "banana": Known(
        lambda x: normal(x[0], 0.0, 2.0) + normal(x[1], x[0] ** 2 / 4, 0.3),
        np.array([0.0, 1.0]),
        np.array([2.0, np.sqrt(2 + 0.3**2)]),
    ),
    "student-five": Known(lambda x: -5 * jnp.log1p(jnp.sum(x**2) / 5), np.zeros(5), np.full(5, np.sqrt(5 / 3))),
}


def run(case: str, method: str, options: Namespace) -> Answer:
    """All keys on one target."""
    target, within, ratios, narrow = CASES[case], [], [], 0
    for seed in range(options.seeds or KEYS):
        result = sk.sample(jr.key(seed), target.log_density, jnp.zeros(len(target.mean)), throw=False)
        mean_errors = np.abs(result.points.mean(0) - target.mean) / target.sd
        sd_errors = np.abs(result.points.std(0) / target.sd - 1)
        stated = result.diagnostics.mean_errors, result.diagnostics.sd_errors
        within.append([mean_errors < 2 * stated[0], sd_errors < 2 * stated[1]])
        ratios.append((result.draws.std((0, 1)) / target.sd).min())
        narrow += ratios[-1] < 0.9 and not result.warnings
    coverage = np.mean(within, axis=(0, 2))
    numbers = dict(zip(("mean_coverage", "sd_coverage"), coverage, strict=True))
    numbers |= {"min_sd_ratio": min(ratios), "narrow_unwarned": narrow}
    return Answer([Row(case, method, metric, float(value), trials=len(ratios)) for metric, value in numbers.items()])


BENCHMARKS = {"coverage": Benchmark([(case, "sample") for case in CASES], run, precision="float64")}
