"""Before the first step of a `fit`: checks the inputs, binds the target and evaluates it at the first particles."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.arrays import as_arrays, as_concrete_data, as_concrete_key
from ..core.errors import explain_errors, shapes
from ..core.multihost import on_host, placed_like
from ..core.notices import Notice, Phrase, RefusalError
from ..core.particles import check_particles
from ..core.programs import Begun, compiled
from ..core.types import Batch, KeyLike, LogDensityFunction, Points, PyTree
from ..results.result import Result
from ..samplers.sampler import AbstractSampler
from ..targets.checks import batch_length
from ..targets.constrained import constrained
from ..targets.supports import Space
from ..targets.target import AbstractTarget, as_target
from . import start_warnings
from .arguments import as_count, check_tempering
from .distributed import spread
from .loop import LoopState, batch_of, look
from .run import Run


@dataclass(frozen=True)
class Start:
    """A run before its first step, and the target's values at its first particles."""

    run: Run
    points: Points
    batch: Batch
    """A batch of the run's size: the first rows, or all of them."""
    log_densities: Array
    scores: Array
    """Zeros where the sampler does not differentiate."""
    given: PyTree
    """The start of the run: particles, or the state of an earlier run."""
    warnings: tuple[Notice, ...]
    particles: PyTree
    """The first particles, in the parameters' own coordinates."""
    steps: Begun[Any] | None
    """The program of the steps, traced and not yet compiled; `None` where it has been, or is not compiled ahead."""


def prepare(
    key: KeyLike,
    target: AbstractTarget | LogDensityFunction,
    sampler: AbstractSampler,
    particles: PyTree,
    data: Batch,
    mesh: Any,
    num_steps: int,
    *,
    tempering: Callable[[Array], Array] | None,
    batch_size: int | None,
    **settings: Any,
) -> Start:
    """Check the arguments of `fit`, bind the target, and evaluate it at the first particles.

    Args:
        key: as in `fit`.
        target: as in `fit`.
        sampler: as in `fit`.
        particles: as in `fit`.
        data: as in `fit`.
        mesh: as in `fit`.
        num_steps: as in `fit`.
        tempering: as in `fit`.
        batch_size: as in `fit`.
        **settings: further fields of the `Run`, already checked.
    """
    key = as_concrete_key(key, "For many runs at once, `vmap` the steps of `as_blackjax`.")
    data = as_concrete_data(data)
    if isinstance(particles, Result):
        particles = _with_all_particles(particles, sampler)
    bound, points, first = _starting_point(as_target(target), particles)
    as_count("num_steps and the steps before", first + num_steps)
    check_tempering(tempering, first, num_steps)
    if mesh is not None:
        points = spread(points, mesh, (key, data))
    bound.check_data(data, batch_size)
    sampler.check(points)
    sampled = bound.sampled_rows(data, batch_size)
    rows = {name: np.arange(number) for name, (_, number) in sampled.items()}
    batch = batch_of(bound, data, rows) if sampled else data
    step = jax.device_put(np.int32(first))

    def begin_at(loop: LoopState, first: int) -> Run:
        return Run(key, sampler, bound, tempering, data, batch_size, loop=loop, first=first, **settings)

    steps, failure = None, None
    with _explain_shapes(bound, particles, data):
        seeing = None if mesh is not None else look.begin(sampler, bound, points, batch, step)
    if seeing is not None:
        seeing.compile()
        try:
            steps = begin_at(seeing.value.first, first).begin()
        except Exception as error:  # raised below: the first particles may be its cause
            failure = error
    with _explain_shapes(bound, particles, data):
        seen = look(sampler, bound, points, batch, step)
    log_densities, scores = seen.log_densities, seen.scores
    _check_first_particles(on_host(log_densities), on_host(scores), data)
    if batch_size is not None:
        _check_rows(bound, points, data, batch_size)
    if failure is not None:
        raise failure
    warnings: list[Notice] = []
    if sampler.differentiates:

        def values_at(moved: Points) -> Array:
            return look(sampler, bound, moved, batch, seen.first.step).log_densities

        warnings += start_warnings.before(points, log_densities, scores, values_at)
    warnings += start_warnings.coincident(points, sampler)
    if isinstance(particles, Result) and _continues(particles, bound, sampler):
        loop = particles.loop._replace(
            healthy=jax.device_put(np.bool_(True)), converged=jax.device_put(np.bool_(False))
        )
        given: PyTree = particles.loop
    else:
        size = np.asarray(_root_mean_variance(on_host(points)), points.dtype)
        loop = seen.first._replace(longest_move_so_far=placed_like(size, seen.first.longest_move_so_far))
        earlier = isinstance(particles, Result)
        given = (particles.points, particles.particles, particles.shared) if earlier else particles
    run = begin_at(loop, int(loop.step))
    return Start(run, points, batch, log_densities, scores, given, tuple(warnings), seen.particles, steps)


def _starting_point(target: AbstractTarget, particles: PyTree) -> tuple[AbstractTarget, Points, int]:
    """The target bound to the particles' space, the particles as (n, d), and the number of steps already taken."""
    earlier = particles if isinstance(particles, Result) else None
    values = particles if earlier is None else earlier.particles
    check_particles(values)
    values = as_arrays("particles", values) if earlier is None else jax.tree.map(_as_array, values)
    bound = target.bind(jax.tree.map(lambda leaf: np.asarray(on_host(leaf)[0]), values))
    bound.bound_space.check(values)
    if earlier is None:
        return bound, _unconstrain_if_needed(bound, values), 0
    if earlier.target.shared is not None:
        bound = bound.sharing(earlier.target.shared)
    same = eqx.tree_equal(earlier.target.space, bound.space)  # other constraints have other coordinates
    points = earlier.points_in_jax() if same else _unconstrain_if_needed(bound, values)
    return bound, points, 0 if earlier._chains else earlier.num_steps  # chains' transitions are not steps of `fit`


def _root_mean_variance(points: np.ndarray) -> float:
    """√ of the variance, averaged over the coordinates."""
    return float(np.sqrt(np.mean(np.var(points.astype(np.float64), axis=0))))


def _with_all_particles(earlier: Result, sampler: AbstractSampler) -> Result:
    """A result with the particles of its state, which may be more than it returned; for the same sampler alone."""
    if earlier.loop is None or len(earlier.loop.state.points) == len(earlier.points):
        return earlier
    if not eqx.tree_equal(earlier.sampler, sampler):
        return earlier
    points = earlier.loop.state.points
    return replace(earlier, points=points, particles=constrained(earlier.target, points))


def _continues(earlier: Result, target: AbstractTarget, sampler: AbstractSampler) -> bool:
    """Whether a run can continue from an earlier result's whole state; otherwise it starts from its particles."""
    if earlier.loop is None:
        return False
    return bool(eqx.tree_equal(earlier.sampler, sampler)) and bool(eqx.tree_equal(earlier.target.space, target.space))


def _as_array(leaf: Any) -> Array:
    return leaf if isinstance(leaf, jax.Array) else jax.device_put(np.array(leaf))


def _unconstrain_if_needed(target: AbstractTarget, particles: PyTree) -> Points:
    """The particles in unconstrained coordinates; without constraints there is nothing to compile."""
    space = target.bound_space
    if not (isinstance(space, Space) and space.unconstrained):
        return _unconstrain(target, particles)
    leaves = space.layout.structure.flatten_up_to(particles)
    if len(leaves) == 1 and leaves[0].ndim == 2:
        return leaves[0]
    return jax.device_put(np.concatenate([on_host(leaf).reshape(len(leaf), -1) for leaf in leaves], axis=1))


@compiled
def _unconstrain(target: AbstractTarget, particles: PyTree) -> Points:
    return jax.vmap(target.bound_space.unconstrain)(particles)


def _explain_shapes(target: AbstractTarget, particles: PyTree, data: Batch) -> AbstractContextManager[None]:
    values = particles.particles if isinstance(particles, Result) else particles
    whole = "one row of `data`" if target.exchangeable else "`data`"
    given = "" if data is None else f", and {whole}, {shapes(data, int(target.exchangeable))}"
    expected = f"`target` must take one particle, {shapes(values)}{given}"
    return explain_errors(expected, "Was it written for other names or shapes?")


def _check_first_particles(log_densities: np.ndarray, scores: np.ndarray, data: Batch) -> None:
    missing = " NaN in `data` makes it so, and labels that the likelihood does not know (see its method `check`)."
    why = "" if data is None else missing
    smooth = np.isfinite(scores).all(axis=1)
    for good, what in ((np.isfinite(log_densities), "log density"), (smooth, "gradient of the log density")):
        bad = int(np.sum(~good))
        if bad:
            refused = (
                f"`particles` must start where the target is finite: the {what} is NaN or infinite at {bad} of the "
                f"{len(scores)} initial particles. Start inside the support, or declare it with "
            )
            raise RefusalError(Notice("not-finite-at-start", refused, Phrase.SUPPORT, f".{why}"))


def _check_rows(target: AbstractTarget, points: Points, data: Batch, batch_size: int) -> None:
    """Raise where a row of the data has no finite log-likelihood, since a later step would draw it.

    The rows are evaluated at one particle, which costs 1/n of an epoch without gradients.
    """
    bad = np.flatnonzero(~on_host(_finite_rows(target, points, data, batch_size)))
    if bad.size:
        raise ValueError(
            f"`data` must have a finite log-likelihood in every row, but it is NaN or infinite at the first particle "
            f"in {bad.size} of {batch_length(data)} rows, the first of them row {bad[0]}. See that labels are such as "
            "the likelihood takes (`likelihood.check(labels)`), and that nothing is missing."
        )


@compiled
def _finite_rows(target: AbstractTarget, points: Points, data: Batch, batch_size: int) -> Array:
    return jax.lax.map(lambda row: jnp.isfinite(target.log_example(points[0], row)), data, batch_size=batch_size)
