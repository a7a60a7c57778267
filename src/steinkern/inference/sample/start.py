"""The first stage: the Gaussian nearest to the target, from the parameters of one particle, and mass that it misses."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...core.arrays import as_particle
from ...core.errors import shapes
from ...core.messages import Notice
from ...core.types import Batch, Key, PyTree
from ...interop._model import model_of
from ...targets.target import AbstractTarget, BoundTarget
from .evaluation import Cloud, Evaluator
from .gaussian import Gaussian, continue_search, first_gaussian, first_precisions
from .properness import search_problem
from .second_component import SecondComponent, find_second_component

CHAINS = 100
"""The number of points in a cloud, and the least number of chains."""
_NUM_CANDIDATES = 4  # draws of the prior, and as many points drawn uniformly
_NUM_SEARCHES = 3  # from the candidates of highest density
_NUM_RACING, _FIRST_ROUNDS = 2, 5  # of them take these rounds each before the better one continues
_PROBLEMS = ["not-found", "start-at-edge", "improper"]  # the first of these is reported where several searches fail


def candidate_starts(key: Key, target: AbstractTarget, start: PyTree) -> Iterator[PyTree]:
    """The caller's start; without one, draws from the target's prior."""
    if start is not None:
        return iter([as_particle("start", start)])
    model = model_of(target)
    if model is None:
        raise ValueError(
            "`start` is missing: give one particle's parameters, such as `jnp.zeros(3)`, or `fit` its `particles`. For "
            "a NumPyro model that takes arguments, or fails before its first site, give "
            "`steinkern.interop.numpyro.from_model(model, ...)`."
        )
    return model.prior_draws(key)


def bind(target: AbstractTarget, particle: PyTree, data: Batch, check: bool) -> tuple[BoundTarget, PyTree, Batch]:
    """The target bound to the space of one particle; the particle and the data in JAX's default precision.

    With `check`, a particle outside of its support is an error that names `start`; draws from a prior are inside.
    """
    particle = in_default_precision(particle)
    bound = target.bind(particle)
    if check:
        bound.space.check(jax.tree.map(lambda leaf: np.asarray(leaf)[None], particle), "start")
    return bound, particle, in_default_precision(data)


def in_default_precision(tree: PyTree) -> PyTree:
    """Floating-point leaves in JAX's default precision, other leaves as they are."""
    precision = jnp.result_type(float)

    def cast(leaf: Any) -> Array:
        differs = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != precision
        return jax.device_put(np.asarray(leaf, precision) if differs else leaf)

    return jax.tree.map(cast, tree)


def expected_shapes(start: PyTree, data: Batch) -> tuple[str, str]:
    """The two arguments of `explain_errors`: the arguments that the target must accept, and a hint."""
    and_data = "" if data is None else f", and `data`, {shapes(data, 0)}"
    return f"`target` must take `start`, {shapes(start, 0)}{and_data}", "Was it written for other names or shapes?"


class Start(NamedTuple):
    """The nearest Gaussian, or the reason why there is none."""

    nearest: Gaussian
    cloud: Cloud
    """Points of the Gaussian."""
    second_component: SecondComponent | None
    """Mass that chains from these points may not reach; `None` where none was found."""
    problem: Notice | None
    """Why no Gaussian was found; `None` where one was."""


def find_start(random: np.random.Generator, evaluator: Evaluator, starts: Iterable[PyTree], from_caller: bool) -> Start:
    """Fit the nearest Gaussian and look for mass that it misses.

    Of the caller's starts the search begins at the first one at which the log density and its gradient are finite.
    Where there are none, or it fails, candidates are `starts` and points drawn uniformly from (−2, 2) in unconstrained
    coordinates. Searches from the two of highest density take five rounds each, and continue in the order of their
    evidence lower bounds until one succeeds. If none does, one from the third begins.

    Args:
        random: draws the points.
        evaluator: of the target.
        starts: each the parameters of one particle in constrained coordinates.
        from_caller: whether they are the caller's, and not draws of the prior.

    Raises:
        ValueError: the log density or its gradient is not finite at any of the starts.
    """
    failed = []
    for nearest, cloud in _searches(random, evaluator, starts, from_caller):
        problem = search_problem(evaluator, nearest)
        if problem is None:
            return Start(nearest, cloud, find_second_component(evaluator, nearest), None)
        failed.append((_PROBLEMS.index(problem.code), Start(nearest, cloud, None, problem)))
    return min(failed, key=lambda ranked: ranked[0])[1]


def _searches(
    random: np.random.Generator, evaluator: Evaluator, starts: Iterable[PyTree], from_caller: bool
) -> Iterator[tuple[Gaussian, Cloud]]:
    """The searches from the starts, each of which runs when it is asked for."""
    vectors = (evaluator.unconstrain(in_default_precision(start)) for start in starts)
    if from_caller:
        for vector in vectors:
            if first := _begin(evaluator, vector):
                yield continue_search(evaluator, first)
                break
        else:
            raise ValueError(
                "`start` must lie where the log density and its gradient are finite, got "
                f"{evaluator.log_densities(vector[None])[0]} there. Start inside the support, or declare it with "
                "`support=`."
            )
    race: list[tuple[Gaussian, Cloud]] = []
    while not race:
        uniform = random.uniform(-2, 2, (_NUM_CANDIDATES, len(evaluator.noise[0])))
        candidates = np.array([*islice(vectors, _NUM_CANDIDATES), *uniform])
        densities = evaluator.log_densities(candidates)
        ranked = (candidates[i] for i in np.argsort(-densities) if np.isfinite(densities[i]))
        begun = islice((first for vector in ranked if (first := _begin(evaluator, vector))), _NUM_SEARCHES)
        race = [continue_search(evaluator, first, _FIRST_ROUNDS) for first in islice(begun, _NUM_RACING)]
        if from_caller:
            break
    for nearest, cloud in sorted(race, key=lambda search: -search[0].bound):
        stopped = nearest.settled or nearest.diverged
        yield (nearest, cloud) if stopped else continue_search(evaluator, nearest)
    for first in begun:
        yield continue_search(evaluator, first)


def _begin(evaluator: Evaluator, vector: np.ndarray) -> Gaussian | None:
    """The first Gaussian of a search; `None` where the log density or its gradient is not finite."""
    first, curvature = evaluator.derivatives(np.broadcast_to(vector, evaluator.noise.shape))
    if not (np.isfinite(first.log_densities[0]) and np.isfinite(first.scores[0]).all()):
        return None
    return first_gaussian(evaluator, vector, first_precisions(curvature))
