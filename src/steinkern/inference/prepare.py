"""Before the first step of a `fit`: checks the inputs, binds the target and evaluates it at the first particles."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.arrays import as_arrays, as_concrete, as_concrete_key
from ..core.errors import explain_errors, shapes
from ..core.messages import Notice
from ..core.multihost import on_host
from ..core.particles import check_particles
from ..core.programs import compiled
from ..core.types import Batch, KeyLike, LogDensityFunction, Points, PyTree, Vector
from ..results.result import Result
from ..samplers.sampler import AbstractSampler
from ..targets.checks import batch_length
from ..targets.supports import Space
from ..targets.target import AbstractTarget, BoundTarget, as_target
from .arguments import as_count, check_tempering
from .distributed import spread
from .judge import judge_start
from .loop import Evaluation, LoopState, batch_of, evaluate, first_loop
from .run import Run


@dataclass(frozen=True)
class Start:
    """A run before its first step, and the target's values at its first particles."""

    run: Run
    points: Points
    batch: Batch
    """A batch of the run's size: the first rows, or all of them."""
    seen: Evaluation
    """The target at the first particles."""
    given: PyTree
    """The start of the run: particles, or the state of an earlier run."""
    warnings: tuple[Notice, ...]


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
    data = as_concrete("data", data)
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

    with _explain_shapes(bound, particles, data):
        ahead = None if mesh is not None else evaluate.compile_ahead(sampler, bound, points, batch)
    if ahead is not None:
        first_loop_ahead = first_loop.compile_ahead(sampler, bound, points, batch, step)
        if first_loop_ahead is not None:
            begin_at(first_loop_ahead, first).compile_ahead()
    with _explain_shapes(bound, particles, data):
        seen = evaluate(sampler, bound, points, batch)
    _check_first_particles(on_host(seen.log_densities), on_host(seen.smooth), data)
    if batch_size is not None:
        _check_rows(bound, points, data, batch_size)
    warnings = _start_warnings(sampler, bound, points, batch, seen)
    if isinstance(particles, Result) and _continues(particles, bound, sampler):
        loop = particles.loop._replace(
            healthy=jax.device_put(np.bool_(True)), converged=jax.device_put(np.bool_(False))
        )
        given: PyTree = particles.loop
    else:
        with _explain_shapes(bound, particles, data):
            loop = first_loop(sampler, bound, points, batch, step)
        earlier = isinstance(particles, Result)
        given = (particles.points, particles.particles, particles.shared) if earlier else particles
    run = begin_at(loop, int(loop.step))
    return Start(run, points, batch, seen, given, warnings)


def _starting_point(target: AbstractTarget, particles: PyTree) -> tuple[BoundTarget, Points, int]:
    """The target bound to the particles' space, the particles as (n, d), and the number of steps already taken."""
    earlier = particles if isinstance(particles, Result) else None
    values = particles if earlier is None else earlier.particles
    check_particles(values)
    values = as_arrays("particles", values) if earlier is None else jax.tree.map(_as_array, values)
    bound = target.bind(jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), values))
    bound.space.check(values)
    if earlier is None:
        return bound, _unconstrain_if_needed(bound, values), 0
    if earlier.shared is not None:
        bound = bound.sharing(earlier.shared)
    # Other constraints have other coordinates; those of a result without its target are not known.
    same = earlier.target is not None and eqx.tree_equal(earlier.target.space, bound.space)
    points = _as_array(earlier.points) if same else _unconstrain_if_needed(bound, values)
    return bound, points, 0 if earlier._chains else earlier.num_steps  # chains' transitions are not steps of `fit`


def _start_warnings(
    sampler: AbstractSampler, target: BoundTarget, points: Points, batch: Batch, seen: Evaluation
) -> tuple[Notice, ...]:
    """The warnings about the first particles, and the gradient there."""
    n = len(points)
    zero_gradient, wrong = False, 0.0
    # Finite differences are not available in half precision.
    if sampler.traits.differentiates and points.dtype.itemsize >= 4:
        if not on_host(seen.slopes).any():
            zero_gradient = np.unique(on_host(seen.log_densities)).size > 1
        else:
            wrong = _wrong_slopes(sampler, target, points, batch, seen)
    together = n > 1 and (sampler.traits.interacting or sampler.traits.deterministic) and bool(seen.coincide)
    return judge_start(
        zero_gradient=zero_gradient, wrong_slopes=wrong, num_particles=n,
        coincident=type(sampler).__name__ if together else "",
    )  # fmt: skip


def _wrong_slopes(
    sampler: AbstractSampler, target: BoundTarget, points: Points, batch: Batch, seen: Evaluation
) -> float:
    """The share of particles at which finite differences along one direction contradict the gradient."""
    precision = float(jnp.finfo(points.dtype).eps)
    spread = float(seen.spread) or float(np.max(np.abs(on_host(points)))) or 1.0
    d = points.shape[1]
    signs = 2.0 * np.unpackbits(np.frombuffer(np.random.default_rng(0).bytes(-(-d // 8)), np.uint8))[:d] - 1.0
    offset = jax.device_put((precision ** (1 / 3) * spread * signs).astype(points.dtype))
    *moved, slopes = _beside(points, seen.scores, offset)
    above, below = (on_host(evaluate(sampler, target, each, batch).log_densities).astype(np.float64) for each in moved)
    value = on_host(seen.log_densities).astype(np.float64)
    # Compares the difference of the values along `offset` with the one that the gradient predicts. Allows for the
    # function's curvature, by which the two one-sided differences differ, and for rounding errors.
    with np.errstate(all="ignore"):  # comparisons with numbers that overflow are false
        difference, expected = (above - below) / 2, on_host(slopes).astype(np.float64)
        bend, rounding = np.abs(above - 2 * value + below), 100 * precision * (np.abs(value) + np.abs(above))
        allowed = 0.25 * np.maximum(np.abs(difference), np.abs(expected)) + bend + rounding
        return float(np.mean(np.abs(difference - expected) > allowed))


@compiled
def _beside(points: Points, scores: Points, offset: Vector) -> tuple[Points, Points, Array]:
    """The points moved by plus and minus an offset, and the expected half differences, for moves that are rounded."""
    above, below = points + offset[None], points - offset[None]
    return above, below, jnp.sum(scores * (above - below), axis=1) / 2


def _continues(earlier: Result, target: BoundTarget, sampler: AbstractSampler) -> bool:
    """Whether a run can continue from an earlier result's whole state; otherwise it starts from its particles."""
    if earlier.loop is None:
        return False
    return bool(eqx.tree_equal(earlier.sampler, sampler)) and bool(eqx.tree_equal(earlier.target.space, target.space))


def _as_array(leaf: Any) -> Array:
    return leaf if isinstance(leaf, jax.Array) else jax.device_put(np.array(leaf))


def _unconstrain_if_needed(target: BoundTarget, particles: PyTree) -> Points:
    """The particles in unconstrained coordinates; without constraints there is nothing to compile on a CPU."""
    space = target.space
    if not (isinstance(space, Space) and space.unconstrained):
        return _unconstrain(target, particles)
    leaves = space.layout.structure.flatten_up_to(particles)
    if len(leaves) == 1 and leaves[0].ndim == 2:
        return leaves[0]
    if jax.default_backend() != "cpu":
        return _unconstrain(target, particles)
    return jax.device_put(np.concatenate([on_host(leaf).reshape(len(leaf), -1) for leaf in leaves], axis=1))


@compiled
def _unconstrain(target: BoundTarget, particles: PyTree) -> Points:
    return jax.vmap(target.space.unconstrain)(particles)


def _explain_shapes(target: BoundTarget, particles: PyTree, data: Batch) -> AbstractContextManager[None]:
    values = particles.particles if isinstance(particles, Result) else particles
    whole = "one row of `data`" if target.exchangeable else "`data`"
    given = "" if data is None else f", and {whole}, {shapes(data, int(target.exchangeable))}"
    expected = f"`target` must take one particle, {shapes(values)}{given}"
    return explain_errors(expected, "Was it written for other names or shapes?")


def _check_first_particles(log_densities: np.ndarray, smooth: np.ndarray, data: Batch) -> None:
    missing = " NaN in `data` makes it so, and labels that the likelihood does not know (see its method `check`)."
    why = "" if data is None else missing
    for good, what in ((np.isfinite(log_densities), "log density"), (smooth, "gradient of the log density")):
        bad = int(np.sum(~good))
        if bad:
            raise ValueError(
                f"`particles` must start where the target is finite: the {what} is NaN or infinite at {bad} of the "
                f"{len(smooth)} initial particles. Start inside the support, or declare it with "
                f"`support=`.{why}"
            )


def _check_rows(target: BoundTarget, points: Points, data: Batch, batch_size: int) -> None:
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
def _finite_rows(target: BoundTarget, points: Points, data: Batch, batch_size: int) -> Array:
    return jax.lax.map(lambda row: jnp.isfinite(target.log_example(points[0], row)), data, batch_size=batch_size)
