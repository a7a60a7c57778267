"""Silent wrongness made loud: looks at a run, before and after, that cost little and are warned of with the advice.

A short run is a trial: what takes a compilation of its own, and what only a run at rest can tell, is looked at after
`LONG_ENOUGH` steps.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._types import Batch, Points, Scalar
from .hosts import on_host
from .matrix_kernel import AbstractMatrixKernel
from .particles import Scored
from .run import Run
from .sampler import AbstractSampler
from .target import AbstractTarget

LONG_ENOUGH = 100
"""Steps of a run that is meant."""
AT_REST = 0.1
"""Below this fraction of its largest value a velocity is that of particles at rest."""
LEAST_RATIO, LARGEST_RATIO = 0.5, 3.0
"""Where the Stein ratio of particles at rest lies, if they are spread as they should be."""
LARGEST_MOVE = 0.1
"""Of the particles' spread: moves of the last step that are longer say that the particles have not settled."""
LEAST_NEIGHBOURS = 0.1
"""The least number of others, in units of itself, that a particle should feel."""
_SAMPLE = 32  # particles whose neighbours are counted
_NAMED = 5  # coordinates that a warning lists
_FEW = 4  # particles whose scores are compared in double precision

Look = Callable[[Points], tuple[Array, Array]]


class SteinWarning(UserWarning):
    """A run ended, but something about it says that its particles are not what they should be; with the advice.

    Where warnings are made errors, `result` holds what the run ended with; before its first step it is `None`.
    """

    def __init__(self, text: str, result: Any = None):
        super().__init__(text)
        self.result = result


def before(points: Points, log_densities: Array, scores: Array, look: Look) -> Iterator[str]:
    """What is wrong with the gradient at the first particles.

    Args:
        points: the first particles.
        log_densities: there.
        scores: there.
        look: log densities and scores at other points.
    """
    if points.dtype.itemsize < 4:  # too coarse for differences
        return
    x, value, slope = (on_host(array).astype(np.float64) for array in (points, log_densities, scores))
    if not slope.any():
        if np.unique(value).size > 1:
            yield (
                "the gradient of the log density is exactly zero at all first particles, though its value differs "
                "between them: it is constant in pieces (rounding, integers, argmax), or its gradient is cut off "
                "(stop_gradient). Make it differentiable, or use `gradient_free_svgd`."
            )
        return
    with np.errstate(all="ignore"):  # numbers that overflow compare as not wrong
        wrong = _is_not_the_slope(points, x, value, slope, look)
    if np.mean(wrong) > 0.5:
        yield (
            f"the gradient of the log density is not its slope at {int(wrong.sum())} of the {len(x)} first particles: "
            "it is not differentiable there, its gradient is cut off (stop_gradient), or its own derivative rule is "
            "wrong. Compare with finite differences, or use `gradient_free_svgd`."
        )


def _is_not_the_slope(points: Points, x: np.ndarray, value: np.ndarray, slope: np.ndarray, look: Look) -> np.ndarray:
    """Whether, at every particle, differences of the values along one direction contradict the gradient."""
    precision = float(jnp.finfo(points.dtype).eps)
    spread = float(np.sqrt(np.mean(np.var(x, axis=0)))) or float(np.max(np.abs(x))) or 1.0
    direction = np.random.default_rng(0).normal(size=x.shape[1:])
    length = precision ** (1 / 3) * spread
    offset = length * direction[None, :] / np.sqrt(np.mean(direction**2))
    above, below = (np.asarray(look(jnp.asarray(x + sign * offset, points.dtype))[0], np.float64) for sign in (1, -1))
    # Differences of the values along `offset`, and what the gradient says they are. A smooth function bends: the two
    # one-sided differences then differ, and so may the gradient; and values have rounding errors.
    difference, expected = (above - below) / 2, slope @ offset[0]
    bend, rounding = np.abs(above - 2 * value + below), 100 * precision * (np.abs(value) + np.abs(above))
    allowed = 0.25 * np.maximum(np.abs(difference), np.abs(expected)) + bend + rounding
    return np.abs(difference - expected) > allowed


def after(run: Run, batch: Batch, first: Array, last: Array) -> Iterator[str]:
    """What is wrong with a run that has taken all its steps or converged.

    Args:
        run: at its end.
        batch: one that the target takes.
        first: scores at the first particles.
        last: scores at the last ones.
    """
    if run.done < LONG_ENOUGH or not run.loop.healthy:
        return
    coarse = _found(lambda: _coarse(run, batch))
    yield from coarse or _found(lambda: _flat(run, first, last))  # digits that are lost make a density look flat
    yield from _found(lambda: _unconverged(run)) or _found(lambda: _restless(run))
    decoupled = _found(lambda: _decoupled(run, batch))
    yield from decoupled or _found(lambda: _collapsed(run))  # the first is a cause of the second


def _found(look: Callable[[], Iterator[str]]) -> list[str]:
    """What a look finds: nothing where it fails, since the result that it would have judged must not be lost."""
    try:
        return list(look())
    except Exception:
        return []


def resting(run: Run) -> bool:
    """Whether the particles have come to rest, as far as their velocity tells."""
    largest = float(run.loop.largest_velocity)
    return run.sampler.deterministic and float(run.loop.info.velocity_norm) <= AT_REST * largest


def _flat(run: Run, first: Array, last: Array) -> Iterator[str]:
    """Coordinates on which the log density does not depend, as far as all particles at both ends can tell."""
    if not run.sampler.differentiates or run.batch_size is not None:  # other rows may know more than these
        return
    flat = np.flatnonzero(~(np.asarray(first).any(axis=0) | np.asarray(last).any(axis=0)))
    if flat.size:
        assert run.target.space is not None
        names = run.target.space.layout.coordinate_names()
        listed = ", ".join(names[place] for place in flat[:_NAMED]) + (", …" if flat.size > _NAMED else "")
        yield (
            f"the log density does not depend on {listed}: its gradient there is exactly zero at all particles, the "
            "first and the last. A density that is flat in a direction cannot be normalised, and the particles spread "
            "along it for as long as they are let. Leave out parameters that are not used, and give the others a prior."
        )


def _unconverged(run: Run) -> Iterator[str]:
    if run.tolerance is not None and not run.loop.converged:
        fraction = float(run.loop.info.velocity_norm / run.loop.largest_velocity)
        yield (
            f"the run has not converged: after {run.done} steps the velocity is {fraction:.2g} of its largest value, "
            f"`tolerance` asks for {run.tolerance:.2g}. Raise `num_steps`, try another learning rate, or a step rule "
            "that decays."
        )


def _restless(run: Run) -> Iterator[str]:
    """Particles whose last step was long against their spread: where they stand is as much noise as posterior.

    A velocity alone cannot tell: with minibatches it never falls below their noise, and a step size that has fallen to
    0 makes that noise harmless. So moves are judged, not velocities; Langevin chains move by design.
    """
    if not (run.sampler.interacting and run.sampler.deterministic):
        return
    points = np.asarray(run.loop.state.points, np.float64)
    spread = float(np.sqrt(np.mean(np.var(points, axis=0))))
    move = float(run.loop.info.velocity_norm * run.loop.info.step_size)
    if move > LARGEST_MOVE * spread > 0:
        yield (
            f"the particles are not at rest: the last of {run.done} steps moved them by {move / spread:.2g} of their "
            "spread, so that they stand where the last steps, and minibatches where there are any, have thrown them. "
            "Let the step size fall (`optimiser=optax.rmsprop(optax.cosine_decay_schedule(0.1, num_steps))`), lower "
            "it, or raise `num_steps` or `batch_size`."
        )


def _collapsed(run: Run) -> Iterator[str]:
    if not (run.sampler.interacting and resting(run)):
        return
    ratios = np.asarray(run.recorder.lines().info.stein_ratio[-10:], np.float64)
    ratio = float(np.median(ratios)) if np.isfinite(ratios).all() else 1.0
    if ratio < LEAST_RATIO:
        yield (
            f"the particles are too close together (variance collapse): at rest their Stein ratio is {ratio:.2g}, and "
            "1 at draws of the target. More particles, a kernel with a metric (`matrix_svgd`), heavier tails (`IMQ()`) "
            "or a `Graphical` kernel help."
        )
    elif ratio > LARGEST_RATIO:
        yield (
            f"the particles are too far apart: at rest, or nearly, their Stein ratio is {ratio:.2g}, and 1 at draws of "
            "the target. They may still be on their way along a flat direction: raise `num_steps` or the learning "
            "rate, or use a kernel with a metric (`matrix_svgd`)."
        )


def _decoupled(run: Run, batch: Batch) -> Iterator[str]:
    points = run.loop.state.points
    if points.shape[0] < 2:
        return
    neighbours = _neighbours(run.sampler, run.loop.state, run.target, batch)
    if neighbours is not None and float(neighbours) < LEAST_NEIGHBOURS:
        yield (
            f"the particles hardly feel one another: the kernel gives all others together {float(neighbours):.1g} of "
            "the weight that it gives a particle itself, so each climbs to a mode of its own. Use the bandwidth "
            "`Median()`, or for a mixture a larger `temperature`, such as `Median()`."
        )


@eqx.filter_jit
def _neighbours(sampler: AbstractSampler, state: Any, target: AbstractTarget, batch: Batch) -> Scalar | None:
    """‖Σ_{j≠i} K(x_i, x_j) v‖ / ‖K(x_i, x_i) v‖ for a vector v of ones, the median over some particles i."""
    kernel = sampler.coupling(state, target, batch)
    if kernel is None:
        return None
    points = state.points
    some = points[:_SAMPLE]
    everyone = _pull(kernel, some, points)
    alone = jax.vmap(lambda x: _pull(kernel, x[None], x[None])[0])(some)
    size = jnp.sqrt(jnp.sum(alone**2, axis=1))
    others = jnp.sqrt(jnp.sum((everyone - alone) ** 2, axis=1))
    return jnp.median(others / jnp.where(size > 0, size, 1))


def _pull(kernel: AbstractMatrixKernel, at: Array, points: Array) -> Array:
    """Σ_j K(x, x_j) v: the velocity is linear in the scores, so its part without them goes away."""
    ones, weights = jnp.ones_like(points), jnp.ones(points.shape[:1], points.dtype)
    zeros = jnp.zeros_like(points)
    return kernel.velocity(at, Scored(points, ones, weights)) - kernel.velocity(at, Scored(points, zeros, weights))


def _coarse(run: Run, batch: Batch) -> Iterator[str]:
    points = run.loop.state.points
    if points.dtype.itemsize != 4 or not run.sampler.differentiates:
        return
    whole = on_host(points)
    some = jnp.asarray(whole[:_FEW])
    single = np.asarray(_scores(run.target_now, some, batch), np.float64)
    double = _double_scores(run.target_now, some, batch)
    if double is None:
        return
    spread = float(np.sqrt(np.mean(np.var(whole.astype(np.float64), axis=0)))) or 1.0
    error, size = (float(np.sqrt(np.mean(array**2))) for array in (single - double, double))
    if error > 0.1 * (size + 1 / spread):
        yield (
            f"float32 is too coarse for this target: its scores differ from those in float64 by {error:.2g}, where "
            f"their size is {size:.2g}. Enable double precision (`jax.config.update('jax_enable_x64', True)`) and give "
            "particles and data in float64, or write the log density so that large terms do not cancel."
        )


@eqx.filter_jit
def _scores(target: AbstractTarget, points: Points, batch: Batch) -> Points:
    """Compiled once: another fit of the same functions and shapes pays nothing for the comparison."""
    return target.scores(points, batch)


def _double_scores(target: AbstractTarget, points: Points, batch: Batch) -> np.ndarray | None:
    """The scores in double precision; `None` where the log density cannot be evaluated in it."""

    def double(tree: Any) -> Any:
        def cast(leaf: Any) -> Any:
            if not eqx.is_array_like(leaf):  # a function among shared leaves
                return leaf
            inexact = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
            return jnp.asarray(np.asarray(leaf, np.float64)) if inexact else leaf

        return jax.tree.map(cast, tree)

    try:
        assert target.space is not None
        particle = jax.tree.map(np.asarray, target.space.constrain(points[0]))
        # JAX remembers a NumPy constant that it has seen in single precision by its identity: give it others.
        fresh = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, target)
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            wide = fresh.bind(double(particle)).sharing(double(target.shared))
            scores = np.asarray(_scores(wide, double(points), double(batch)))
    except Exception:  # a log density that insists on its precision, in whatever words
        return None
    return scores if scores.dtype == np.float64 and np.isfinite(scores).all() else None
