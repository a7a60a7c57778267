"""The first stage: the Gaussian nearest to the target, from the parameters of one particle, and mass that it misses."""

import inspect
import sys
from collections.abc import Iterable, Iterator
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
from ...targets.target import AbstractTarget, BoundTarget, as_target
from .evaluation import Cloud, Evaluator
from .gaussian import Gaussian, first_precisions, nearest_gaussian
from .properness import search_problem
from .second_component import SecondComponent, find_second_component

CHAINS = 100
"""The number of points in a cloud, and the least number of chains."""
_MAX_SEARCHES = 4  # from different starts, until one finds a Gaussian


def candidate_starts(key: Key, target: AbstractTarget, start: PyTree) -> Iterator[PyTree]:
    """The caller's start; without one, draws from the target's prior."""
    if start is not None:
        return iter([as_particle("start", start)])
    model = model_of(target)
    if model is None:
        raise ValueError(
            "`start` is missing: give one particle's parameters, such as `jnp.zeros(3)`, or `fit` its `particles`. A "
            "NumPyro model that takes arguments needs `steinkern.interop.numpyro.from_model(model, ...)`."
        )
    return model.prior_draws(key)


def as_target_or_model(target: Any) -> AbstractTarget:
    """A target as for `fit`, or the posterior of a NumPyro model that takes no arguments; one that uses all data."""
    if str(type(target).__module__).partition(".")[0] == "pymc":
        raise ValueError("`target` is a model, not a log density: give `steinkern.interop.pymc.from_model(model)`.")
    if "numpyro" in sys.modules and not isinstance(target, AbstractTarget) and _takes_no_arguments(target):
        from ...interop.numpyro import from_model

        target = from_model(target)
    target = as_target(target)
    if target.sampled_rows(None, None):
        raise ValueError(
            "`target` draws minibatches, and all data are needed here: leave `subsample_size` out of the model's "
            "plates, or use `fit` with a sampler and particles."
        )
    return target


def _takes_no_arguments(function: Any) -> bool:
    """Whether a function has no parameters without a default; `*args` counts as one, but not in NumPyro's handlers."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    if str(type(function).__module__).partition(".")[0] == "numpyro":
        return True
    return all(one.default is not one.empty or one.kind is one.VAR_KEYWORD for one in parameters)


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

    vector: np.ndarray
    """The start of the search, in unconstrained coordinates."""
    nearest: Gaussian
    cloud: Cloud
    """Points of the Gaussian."""
    second_component: SecondComponent | None
    """Mass that chains from these points may not reach; `None` where none was found."""
    problem: Notice | None
    """Why no Gaussian was found; `None` where one was."""


def find_start(random: np.random.Generator, evaluator: Evaluator, starts: Iterable[PyTree]) -> Start:
    """Fit the nearest Gaussian and look for mass that it misses.

    The search begins at the first candidate at which the log density and its gradient are finite. Where it fails, it
    begins again at points drawn uniformly from (−2, 2) in unconstrained coordinates.

    Args:
        random: draws these points.
        evaluator: of the target.
        starts: candidates, each the parameters of one particle in constrained coordinates.

    Raises:
        ValueError: the log density or its gradient is not finite at any of the candidates.
    """
    for start in starts:
        vector = evaluator.unconstrain(in_default_precision(start))
        first, curvature = evaluator.derivatives(np.broadcast_to(vector, evaluator.noise.shape))
        if np.isfinite(first.log_densities[0]) and np.isfinite(first.scores[0]).all():
            break
    else:
        raise ValueError(
            "`start` must lie where the log density and its gradient are finite, got "
            f"{float(first.log_densities[0])} there. Start inside the support, or declare it with `support=`."
        )
    failed = []
    for _ in range(_MAX_SEARCHES):
        nearest, cloud = nearest_gaussian(evaluator, vector, first_precisions(curvature))
        problem = search_problem(evaluator, nearest, vector)
        if problem is None:
            return Start(vector, nearest, cloud, find_second_component(evaluator, nearest), None)
        failed.append(Start(vector, nearest, cloud, None, problem))
        vector = random.uniform(-2, 2, len(vector))
        _, curvature = evaluator.derivatives(np.broadcast_to(vector, evaluator.noise.shape))
    return next(
        (start for start in failed if start.problem is not None and start.problem.code == "not-found"), failed[0]
    )
