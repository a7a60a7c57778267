"""The methods that are compared, each with nothing tuned: from a target and a key to means, sds and what they cost.

A NumPyro model goes to `sample` and `fit` without a start, and to NUTS from a uniform(-2, 2) point, where NumPyro
starts its chains. Other methods need a start, and are not run on models.
"""

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
from steinkern.interop.numpyro import from_model

from .mode import find_mode
from .nuts import Chains
from .target import Target

PARTICLES = 100
SVGD_STEPS = 1000
FEWEST_DRAWS = 50
PATHFINDER_DRAWS = 10_000


@dataclass(frozen=True)
class Outcome:
    """Moments that a method found, NaN where it failed, and its cost.

    Args:
        mean: (d,), and those of the target's functions after them.
        sd: as `mean`.
        gradients: evaluations of the gradient at one point.
        hessians: evaluations of the Hessian at one point, beside the gradients.
        values: evaluations of the log density alone.
        sequential: batches of evaluations that had to wait for each other.
        warnings: what the method itself said against its answer.
        seconds: wall time, compilation included.
        points: (n, d), where the target has functions.
        at_particles: the same run with the moments of its particles; of `sample`, whose moments are those of its draws.
        dim: d.
    """

    mean: np.ndarray
    sd: np.ndarray
    gradients: int = 0
    hessians: int = 0
    values: int = 0
    sequential: int = 0
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    points: np.ndarray | None = None
    at_particles: "Outcome | None" = None
    dim: int = 0

    @property
    def evaluations(self) -> int:
        """Gradients, a Hessian counted as d of them."""
        return self.gradients + (self.dim or self.mean.size) * self.hessians


def _failed(target: Target, *why: str, **cost: int) -> Outcome:
    return _of_points(np.full((1, target.dim), np.nan), warnings=why, **cost)


def _of_points(points: np.ndarray, **others: Any) -> Outcome:
    return Outcome(points.mean(0), points.std(0), points=points, dim=points.shape[1], **others)


def _of(result: Any, **cost: float) -> Outcome:
    """Its message, which is an error by default, counts as a warning where the run diverged."""
    texts = [str(notice) for notice in result.warnings]
    texts += [str(result.message)] * (result.status is sk.Status.DIVERGED)
    return _of_points(np.asarray(result.points, np.float64), warnings=tuple(texts), **cost)


def _cost_of(result: Any) -> dict[str, int]:
    cost = result.diagnostics.cost
    return {name: getattr(cost, name) for name in ("values", "gradients", "hessians", "sequential")}


def with_functions(outcome: Outcome, target: Target) -> Outcome:
    """The moments of the target's functions too, at the same points."""
    if target.functions is None:
        return outcome
    values = jax.jit(partial(jax.lax.map, target.functions, batch_size=100))(jnp.asarray(outcome.points))
    both = np.concatenate([outcome.points, values], axis=1)
    few = outcome.at_particles and with_functions(outcome.at_particles, target)
    return replace(outcome, mean=both.mean(0), sd=both.std(0), points=None, at_particles=few)


def _problem(target: Target) -> tuple[Any, Any]:
    """A model, which needs no start; or a log density, and zeros."""
    if target.model is None:
        return target.log_density, jnp.asarray(target.start)
    return from_model(target.model), None


def ours(target: Target, key: Any) -> Outcome:
    """`sample` with its defaults, at the draws of its chains, and at its particles."""
    problem, start = _problem(target)
    result = sk.sample(key, problem, start, num_particles=PARTICLES, throw=False)
    few = _of(result, **_cost_of(result))
    if result.recorded is None:
        return replace(few, at_particles=few)
    draws = np.asarray(result.recorded.points, np.float64).reshape(-1, few.dim)
    return replace(few, mean=draws.mean(0), sd=draws.std(0), points=draws, at_particles=few)


def stein(target: Target, key: Any) -> Outcome:
    """`fit` without a sampler: Matrix-SVGD with everything chosen, and its comparison with chains."""
    problem, start = _problem(target)
    result = sk.fit(
        key, problem, start=start, num_particles=PARTICLES, record_every=100, progress=False, throw=False
    )  # fmt: skip
    return _of(result, **_cost_of(result))


def svgd(target: Target, key: Any) -> Outcome:
    """Vanilla SVGD from the same start, with N(0, I) around it."""
    start_key, fit_key = jr.split(key)
    particles = jnp.asarray(target.start) + jr.normal(start_key, (PARTICLES, target.dim))
    result = sk.fit(
        fit_key, target.log_density, sk.svgd(), particles, num_steps=SVGD_STEPS, record_every=SVGD_STEPS,
        progress=False, throw=False,
    )  # fmt: skip
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
        for part in _chains(target.log_density, num_warmup).run(key, _first_point(target, key)):
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
    return _of_points(points, gradients=spent, sequential=spent)


def nuts_1000(target: Target, key: Any) -> Outcome:
    """One chain of NUTS as NumPyro's users run it: 1000 iterations of warm-up and 1000 draws, all else by default."""
    points, steps = _chains(target.log_density, 1000).take(key, _first_point(target, key), 2000)
    return _of_points(points[1000:], gradients=int(steps.sum()), sequential=int(steps.sum()))


def _first_point(target: Target, key: Any) -> np.ndarray:
    uniform = jr.uniform(key, (target.dim,), minval=-2.0, maxval=2.0)
    return target.start if target.model is None else np.asarray(uniform)


@lru_cache(maxsize=4)
def _chains(log_density: Callable[[Any], Any], num_warmup: int) -> Chains:
    """Compiled once for a target, so that a second call does not compile."""
    return Chains(log_density, num_warmup)


METHODS: dict[str, Callable[[Target, Any], Outcome]] = {
    "ours": ours,
    "stein": stein,
    "svgd": svgd,
    "laplace": laplace,
    "pathfinder": pathfinder,
    "nuts-1000": nuts_1000,
}
"""Those that need nothing but the target; `nuts` needs the budget of `ours` too."""

NAMES = (*METHODS, "nuts")
OF_MODELS = ("ours", "stein", "nuts-1000", "nuts")
"""Those that are run on NumPyro models."""


def run_method(name: str, target: Target, seed: int, budget: int = 0, warmup_gradients: int = 1) -> Outcome:
    """One method on one target. Warnings and errors are caught: those of ours are part of its answer."""
    begin, key = time.perf_counter(), jr.key(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = nuts(target, key, budget, warmup_gradients) if name == "nuts" else METHODS[name](target, key)
        except ValueError as error:  # no start was found, or particles where the density is not finite
            outcome = _failed(target, str(error))
    seconds = time.perf_counter() - begin
    return replace(with_functions(outcome, target), seconds=seconds)
