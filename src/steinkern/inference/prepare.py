"""Before the first step of a `fit`: checks the inputs, binds the target and evaluates it at the first particles."""

from contextlib import AbstractContextManager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.arrays import as_arrays, as_concrete, as_concrete_key
from ..core.errors import explain_errors, shapes
from ..core.messages import Notice
from ..core.multihost import on_host, prefetch
from ..core.particles import check_particles
from ..core.programs import compiled, compiled_quickly
from ..core.types import Batch, KeyLike, LogDensityFunction, Points, PyTree, Vector
from ..interop._model import as_target_or_model
from ..results.result import Result
from ..samplers.sampler import AbstractSampler
from ..targets.checks import batch_length
from ..targets.supports import Space
from ..targets.target import AbstractTarget, BoundTarget
from .arguments import check_tempering
from .diagnostics import measured
from .distributed import spread
from .judge import judge_start
from .loop import Evaluation, LoopState, Options, Run, advance, evaluate, first_loop


def prepare(
    key: KeyLike,
    target: AbstractTarget | LogDensityFunction,
    sampler: AbstractSampler,
    particles: PyTree,
    data: Batch,
    mesh: Any,
    options: Options,
) -> tuple[Run, LoopState, Evaluation, tuple[Notice, ...]]:
    """Check the arguments of `fit`, bind the target, and evaluate it at the first particles.

    Returns:
        The run, its state before the first step, the target at the first particles, and warnings about them.
    """
    key = as_concrete_key(key, "For many runs at once, `vmap` the steps of `as_blackjax`.")
    data = as_concrete("data", data)
    bound, points, first_step = _starting_point(as_target_or_model(target), particles)
    check_tempering(options.tempering, first_step, int(options.num_steps))
    if mesh is not None:
        points = spread(points, mesh, (key, data))
    bound.check_data(data, options.batch_size)
    run = Run(key, bound, sampler, data, options, mesh, first_step)
    batch = run.first_batch()
    inputs = sampler, bound, points, batch
    with _explain_shapes(bound, particles, data):
        if mesh is None and evaluate.compile_ahead(*inputs) is not None:
            shapes_of_loop = first_loop.compile_ahead(*inputs, run.first_step)
            if shapes_of_loop is not None:
                advance.compile_ahead(run, shapes_of_loop, np.int32(1))
        evaluation, loop = evaluate(*inputs), first_loop(*inputs, run.first_step)
    prefetch((evaluation.log_densities, evaluation.finite_scores, loop.longest_move))
    _check_first_particles(evaluation, data)
    if options.batch_size is not None:
        _check_rows(bound, points, data, options.batch_size)
    # Finite differences are not available in half precision.
    checks_slopes = sampler.traits.differentiates and points.dtype.itemsize >= 4
    wrong_slopes = _wrong_slopes(run, points, batch, evaluation, float(loop.longest_move)) if checks_slopes else 0.0
    warnings = judge_start(sampler, measured(points), evaluation, wrong_slopes)
    # An earlier result of an equal sampler in the same space continues from its whole state.
    same = isinstance(particles, Result) and particles.loop is not None and eqx.tree_equal(particles.sampler, sampler)
    if same and eqx.tree_equal(particles.target.space, bound.space):
        loop = particles.loop.marked(healthy=True)._replace(faults=loop.faults)
    return run, loop, evaluation, warnings


def _starting_point(target: AbstractTarget, particles: PyTree) -> tuple[BoundTarget, Points, int]:
    """The target bound to the particles' space, the particles as (n, d), and the number of steps already taken."""
    earlier = particles if isinstance(particles, Result) else None
    values = particles if earlier is None else earlier.particles
    check_particles(values)
    values = as_arrays("particles", values) if earlier is None else jax.tree.map(_as_array, values)
    bound = target.bind(jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), values))
    bound.space.check(values)
    if earlier is None:
        return bound, _unconstrain(bound, values), 0
    if earlier.shared is not None:
        bound = bound.sharing(earlier.shared)
    # Other constraints have other coordinates; those of a result without its target are not known.
    same_space = earlier.target is not None and eqx.tree_equal(earlier.target.space, bound.space)
    points = _as_array(earlier.points) if same_space else _unconstrain(bound, values)
    return bound, points, 0 if earlier._chains else earlier.num_steps  # chains' transitions are not steps of `fit`


def _wrong_slopes(run: Run, points: Points, batch: Batch, first: Evaluation, scale: float) -> float:
    """The share of particles at which finite differences along one direction contradict the gradient."""
    precision, d = float(jnp.finfo(points.dtype).eps), points.shape[1]
    scale = scale or float(np.max(np.abs(measured(points)))) or 1.0
    length = points.dtype.type(precision ** (1 / 3) * scale)
    offset = jax.device_put(np.random.default_rng(0).choice([-length, length], d))
    *moved, slopes = _displace_both_ways(points, first.scores, offset)
    values = [evaluate(run.sampler, run.target, each, batch).log_densities for each in moved]
    numbers = (*values, first.log_densities, slopes)
    prefetch(numbers)
    above, below, value, expected = (on_host(each).astype(np.float64) for each in numbers)
    # Compares the difference of the values along `offset` with the one that the gradient predicts. Allows for the
    # function's curvature, by which the two one-sided differences differ, and for rounding errors.
    with np.errstate(all="ignore"):  # comparisons with numbers that overflow are false
        difference = (above - below) / 2
        bend, rounding = np.abs(above - 2 * value + below), 100 * precision * (np.abs(value) + np.abs(above))
        allowed = 0.25 * np.maximum(np.abs(difference), np.abs(expected)) + bend + rounding
        return float(np.mean(np.abs(difference - expected) > allowed))


@compiled_quickly
def _displace_both_ways(points: Points, scores: Points, offset: Vector) -> tuple[Points, Points, Array]:
    """The points moved by plus and minus an offset, and the expected half differences, for moves that are rounded."""
    above, below = points + offset[None], points - offset[None]
    return above, below, jnp.sum(scores * (above - below), axis=1) / 2


def _as_array(leaf: Any) -> Array:
    return leaf if isinstance(leaf, jax.Array) else jax.device_put(np.array(leaf))


def _unconstrain(target: BoundTarget, particles: PyTree) -> Points:
    """The particles in unconstrained coordinates; one array without constraints is left as it is."""
    leaves, space = jax.tree.leaves(particles), target.space
    if isinstance(space, Space) and space.unconstrained and len(leaves) == 1 and leaves[0].ndim == 2:
        return leaves[0]
    return _unconstrained(target, particles)


@compiled
def _unconstrained(target: BoundTarget, particles: PyTree) -> Points:
    return jax.vmap(target.space.unconstrain)(particles)


def _explain_shapes(target: BoundTarget, particles: PyTree, data: Batch) -> AbstractContextManager[None]:
    values = particles.particles if isinstance(particles, Result) else particles
    data_text = "one row of `data`" if target.exchangeable else "`data`"
    and_data = "" if data is None else f", and {data_text}, {shapes(data, int(target.exchangeable))}"
    expected = f"`target` must take one particle, {shapes(values)}{and_data}"
    return explain_errors(expected, "Was it written for other names or shapes?")


def _check_first_particles(first: Evaluation, data: Batch) -> None:
    missing = " NaN in `data` makes it so, and labels that the likelihood does not know (see its method `check`)."
    good = np.isfinite(on_host(first.log_densities))
    what, good = (
        ("log density", good) if not good.all() else ("gradient of the log density", on_host(first.finite_scores))
    )
    if not good.all():
        raise ValueError(
            f"`particles` must start where the target is finite: the {what} is NaN or infinite at {np.sum(~good)} of "
            f"the {len(good)} initial particles. Start inside the support, or declare it with `support=`."
            f"{'' if data is None else missing}"
        )


def _check_rows(target: BoundTarget, points: Points, data: Batch, batch_size: int) -> None:
    """Raise where a row of the data has no finite log-likelihood, since a later step would draw it.

    The rows are evaluated at one particle, which costs 1/n of an epoch without gradients.
    """
    rows_at_once = min(batch_size * len(points), batch_length(data))  # as many as a step evaluates, with gradients
    bad = np.flatnonzero(~on_host(_finite_rows(target, points, data, rows_at_once)))
    if bad.size:
        raise ValueError(
            f"`data` must have a finite log-likelihood in every row, but it is NaN or infinite at the first particle "
            f"in {bad.size} of {batch_length(data)} rows, the first of them row {bad[0]}. See that labels are such as "
            "the likelihood takes (`likelihood.check(labels)`), and that nothing is missing."
        )


@compiled
def _finite_rows(target: BoundTarget, points: Points, data: Batch, rows_at_once: int) -> Array:
    return jax.lax.map(lambda row: jnp.isfinite(target.log_example(points[0], row)), data, batch_size=rows_at_once)
