"""The methods that are compared, each with nothing tuned: from a target and a key to means, sds and what they cost."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk

from ..outcome import cost_of, warnings_of
from .mode import find_mode
from .target import Target

PARTICLES = 100
SVGD_STEPS = 1000
FEWEST_DRAWS = 50
PATHFINDER_DRAWS = 10_000


@dataclass(frozen=True)
class Outcome:
    """Moments that a method found, NaN where it failed, and its cost.

    Args:
        mean: (d,).
        sd: (d,).
        gradients: evaluations of the gradient at one point.
        hessians: evaluations of the Hessian at one point, beside the gradients.
        values: evaluations of the log density alone.
        sequential: batches of evaluations that had to wait for each other.
        warnings: what the method itself said against its answer.
        seconds: wall time, compilation included.
        processor_seconds: of all threads of the process, compilation included; about the same on a busy machine.
    """

    mean: np.ndarray
    sd: np.ndarray
    gradients: int = 0
    hessians: int = 0
    values: int = 0
    sequential: int = 0
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    processor_seconds: float = 0.0

    @property
    def evaluations(self) -> int:
        """Gradients, a Hessian counted as d of them."""
        return self.gradients + self.mean.size * self.hessians


def _failed(target: Target, *why: str, **cost: int) -> Outcome:
    nothing = np.full(target.dim, np.nan)
    return Outcome(nothing, nothing, warnings=why, **cost)


def _of(result: Any, **cost: float) -> Outcome:
    points = np.asarray(result.points, np.float64)
    return Outcome(points.mean(0), points.std(0), warnings=tuple(warnings_of(result)), **cost)


def ours(target: Target, key: Any) -> Outcome:
    """`sample` with its defaults."""
    result = sk.sample(key, target.log_density, jnp.asarray(target.start), num_particles=PARTICLES)
    return _of(result, **cost_of(result))


def stein(target: Target, key: Any, particles: int = PARTICLES) -> Outcome:
    """`fit` without a sampler: Matrix-SVGD with everything chosen, and its comparison with chains."""
    start = jnp.asarray(target.start)
    try:
        result = sk.fit(
            key, target.log_density, start=start, num_particles=particles, record_every=100, progress=False, throw=False
        )  # fmt: skip
    except ValueError as error:  # no Gaussian was found
        return _failed(target, str(error))
    return _of(result, **cost_of(result))


def svgd(target: Target, key: Any) -> Outcome:
    """Vanilla SVGD from the same start, with N(0, I) around it."""
    start_key, fit_key = jr.split(key)
    particles = jnp.asarray(target.start) + jr.normal(start_key, (PARTICLES, target.dim))
    try:
        result = sk.fit(
            fit_key, target.log_density, sk.svgd(), particles, num_steps=SVGD_STEPS, record_every=SVGD_STEPS,
            progress=False, throw=False,
        )  # fmt: skip
    except ValueError as error:  # first particles where the density or its gradient is not finite
        return _failed(target, str(error))
    return _of(result, gradients=PARTICLES * SVGD_STEPS, sequential=SVGD_STEPS)


def laplace(target: Target, key: Any) -> Outcome:
    """The Gaussian at the mode; its exact moments. No part of it is random."""
    mode = find_mode(target.log_density, target.start)
    cost = {"gradients": mode.gradients, "hessians": mode.hessians, "sequential": mode.sequential}
    if not np.isfinite(mode.precision).all() or np.linalg.eigvalsh(mode.precision).min() <= 0:
        return _failed(target, "no mode was found: the Hessian is not positive definite", **cost)
    return Outcome(mode.point, np.sqrt(np.diagonal(np.linalg.inv(mode.precision))), **cost)


def pathfinder(target: Target, key: Any) -> Outcome:
    """BlackJAX's Pathfinder; it does not report the gradients of its line searches, which are left out."""
    from blackjax.vi.pathfinder import approximate, sample

    path_key, draws_key = jr.split(key)

    @jax.jit
    def run(start: Any) -> Any:
        state, info = approximate(path_key, target.log_density, start)
        return sample(draws_key, state, PATHFINDER_DRAWS)[0], jnp.sum(jnp.isfinite(info.path.elbo))

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # inside BlackJAX
        draws, steps = (np.asarray(part) for part in run(jnp.asarray(target.start)))
    return Outcome(draws.mean(0), draws.std(0), gradients=int(steps), sequential=int(steps))


def nuts(target: Target, key: Any, budget: int, warmup_gradients: int) -> Outcome:
    """One chain of NUTS with NumPyro's defaults and `budget` gradients.

    The warm-up has 1000 iterations where that takes less than half of the budget, else as many as half allows,
    judging by `warmup_gradients`, the cost of 1000.
    """
    num_warmup = int(min(1000, 1000 * 0.5 * budget / warmup_gradients))
    points, steps = np.zeros((0, target.dim)), np.zeros(0, int)
    while num_warmup > 0:
        parts = []
        for part in _chains(target.log_density, num_warmup).run(key, target.start):
            parts.append(part)
            if sum(int(counts.sum()) for _, counts in parts) >= budget:
                break
        points, steps = (np.concatenate(column) for column in zip(*parts, strict=True))
        within = np.cumsum(steps) <= budget
        points, steps = points[within][num_warmup:], steps[within]
        if len(points) >= FEWEST_DRAWS:
            break
        num_warmup //= 2
    if len(points) < FEWEST_DRAWS:
        return _failed(target, f"fewer than {FEWEST_DRAWS} draws within the budget", gradients=budget)
    spent = int(steps.sum())
    return Outcome(points.mean(0), points.std(0), gradients=spent, sequential=spent)


@lru_cache(maxsize=4)
def _chains(log_density: Callable[[Any], Any], num_warmup: int) -> Any:
    """Compiled once for a target, so that a second call does not compile."""
    from .nuts import Chains

    return Chains(log_density, num_warmup)


METHODS: dict[str, Callable[[Target, Any], Outcome]] = {
    "ours": ours,
    "stein": stein,
    "stein-20": partial(stein, particles=20),
    "stein-50": partial(stein, particles=50),
    "stein-500": partial(stein, particles=500),
    "svgd": svgd,
    "laplace": laplace,
    "pathfinder": pathfinder,
}
"""Those that need nothing but the target; `nuts` needs the budget of `ours` too."""

NAMES = (*METHODS, "nuts")


def run_method(name: str, target: Target, seed: int, budget: int = 0, warmup_gradients: int = 1) -> Outcome:
    """One method on one target. Warnings are caught: those of ours are part of its answer."""
    begin, work, key = time.perf_counter(), time.process_time(), jr.key(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = nuts(target, key, budget, warmup_gradients) if name == "nuts" else METHODS[name](target, key)
    seconds, processor_seconds = time.perf_counter() - begin, time.process_time() - work
    return replace(outcome, seconds=seconds, processor_seconds=processor_seconds)
