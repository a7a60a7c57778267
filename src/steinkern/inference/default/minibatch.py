"""With minibatches: a Gaussian on a sample of the rows, moved to all rows by Newton's steps."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...core.notices import Notice, Phrase, RefusalError
from ...core.programs import compiled
from ...core.types import Batch, Points, PyTree, Vector
from ...targets.centred import CentredPosterior, centre_posterior
from ...targets.checks import batch_length
from ...targets.target import AbstractTarget, Posterior
from ..automatic.start import find_start
from ..automatic.whitening import Whitening, eigh

SAMPLE = 500
"""The least number of rows in the sample on which the first Gaussian is found; 20 a coordinate where that is more."""
MOST_DIMENSIONS = 200
"""The most coordinates for which the Hessian on all rows is computed."""
_PASSES = 5  # the most passes over all rows in Newton's method
_CLOSE = 0.1  # a Newton step, in standard deviations a coordinate, after which the centre is close enough
_BLOCK = 1024  # rows at a time in a pass
CHAIN_EPOCHS, CHAIN_BATCHES = 3.0, 700
"""The passes over the data that chains held aside may cost, and the batches that they see one after another."""
_FEW = 32  # the least rows of the chains
_OFF = 0.1  # the largest error of the log density on the rows of the chains


class RowSample(NamedTuple):
    """What chains held aside see in place of all rows."""

    target: CentredPosterior
    rows: Batch
    """A sample of the rows, the same for all transitions of the chains."""


@dataclass(frozen=True)
class Centre:
    """A Gaussian near the posterior, and the derivatives of the log-likelihood of all rows at its mean."""

    centre: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    whitening: Whitening
    sample: Batch
    """The rows of the sample."""
    places: np.ndarray
    """Their indices."""
    spent: np.ndarray
    """Values, gradients, Hessians and batches of them, on the sample or on all rows."""
    epochs: float
    """Rows that were visited, in units of all rows: the batches on the sample, and passes over all rows."""
    warnings: tuple[Notice, ...]

    def target_of(self, given: AbstractTarget) -> CentredPosterior:
        """The caller's target, centred."""
        assert isinstance(given, Posterior)
        arrays = (jax.device_put(part) for part in (self.centre, self.gradient, self.hessian))
        return centre_posterior(given, *arrays)

    def row_sample(self, given: AbstractTarget, data: Batch) -> RowSample:
        """The centred target, and as many rows for chains as they may see."""
        number = batch_length(data)
        for_chains = min(max(int(CHAIN_EPOCHS * number / CHAIN_BATCHES), _FEW), len(self.places))
        chosen = self.places[np.arange(for_chains) * len(self.places) // for_chains]
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], data)
        return RowSample(self.target_of(given), rows)


def centre_on_rows(
    random: np.random.Generator, target: AbstractTarget, starts: Iterable[PyTree], data: Batch
) -> Centre:
    """Find the nearest Gaussian on a sample of the rows, and the posterior's mode from its mean by Newton's method.

    Args:
        random: draws the sample and the clouds of the search.
        target: bound to its space.
        starts: each one particle's parameters; the first at which the density is finite is taken.
        data: all of them.
    """
    d, rows = target.bound_space.layout.size, batch_length(data)
    if not isinstance(target, Posterior):
        raise RefusalError(
            Notice("minibatches", "`batch_size` without a sampler needs a `Posterior`, got another target.")
        )
    if d > MOST_DIMENSIONS:
        raise RefusalError(
            Notice(
                "minibatches",
                f"`batch_size` without a sampler takes at most {MOST_DIMENSIONS} coordinates, because it needs the "
                f"Hessian on all rows, got {d}. Give a sampler, such as `matrix_svgd('average', Fisher(...))`.",
            )
        )
    size = min(rows, max(SAMPLE, 20 * d))
    chosen = np.sort(random.choice(rows, size, replace=False))
    sample = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[chosen]), data)
    found = find_start(random, target, starts, sample, 1)
    if found.problem is not None:
        raise RefusalError(found.problem)
    point, whitening = found.nearest.mean, found.nearest.whitening
    spent, epochs = found.spent, float(found.spent[3]) * size / rows
    warnings: tuple[Notice, ...] = ()
    for turn in range(_PASSES):
        gradient, hessian, slope, curvature = _derivatives(target, point, data)
        spent, epochs = spent + np.array([0, 1, 1, 1]), epochs + 1
        values, _ = eigh(curvature)
        if np.isfinite(values).all() and values[0] > 1e-10 * values[-1]:
            whitening = Whitening.of_precision(curvature)
        step = whitening.pull_scores(slope)
        length = float(np.sqrt(np.mean(step**2)))
        if not np.isfinite(length) or length < _CLOSE:
            break
        if turn + 1 < _PASSES:
            point = point + whitening.unwhiten(step * min(1.0, 1000.0 / length))
    else:
        warnings = (
            Notice(
                "centre-not-found",
                f"Newton's method has not come to the posterior's mode after {_PASSES} passes over the data (the last "
                f"step was {length:.2g} standard deviations a coordinate), so that minibatches are noisier than they "
                "could be: ",
                Phrase.LARGER_BATCH,
                ", or leave it out.",
            ),
        )
    return Centre(point, gradient, hessian, whitening, sample, chosen, spent, epochs, warnings)


def differs_from_all_rows(target: AbstractTarget, points: np.ndarray, rows: Batch, data: Batch) -> Notice | None:
    """A notice where the log density of a `CentredPosterior` on a sample of the rows is not that on all rows.

    Both are compared at the points, up to a constant. This takes a pass over the data: a scatter of the sample's rows
    would not tell of rare rows that it does not have.

    Args:
        target: bound to its space.
        points: the particles.
        rows: the sample.
        data: all rows.
    """
    on_device = jax.device_put(points)
    exact, _ = on_all_rows(target, points, data)
    on_sample = np.asarray(_log_densities(target, on_device, rows), np.float64)
    error = float(np.std(on_sample - exact))
    if error <= _OFF:
        return None
    return Notice(
        "not-compared",
        f"the particles of a run with minibatches were not compared with chains: on {batch_length(rows)} rows the log "
        f"density differs by {error:.2g} from that on all rows, since its curvature changes within the mass. Only "
        "Stein's identity was checked: ",
        Phrase.SAMPLE,
        ".",
    )


def on_all_rows(target: AbstractTarget, points: np.ndarray, data: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The log density at points, up to a constant, and the scores, by one pass over all rows."""
    found = _on_all_rows(target, jax.device_put(points), data)
    values, scores = (np.asarray(part, np.float64) for part in found)
    return values, scores


@compiled
def _log_densities(target: AbstractTarget, points: Points, rows: Batch) -> Any:
    return target.log_densities(points, rows)


@compiled
def _on_all_rows(target: AbstractTarget, points: Points, data: Batch) -> tuple[Any, Any]:
    def total(vector: Vector, rows: Batch) -> Any:
        return jnp.sum(target.log_examples(vector, rows))

    def likelihood(rows: Batch) -> tuple[Any, Any]:
        return jax.vmap(jax.value_and_grad(total), (0, None))(points, rows)

    zero = jnp.zeros(points.shape[0], points.dtype), jnp.zeros_like(points)
    values, scores = _sum_over_blocks(likelihood, zero, data)
    base, base_scores = jax.vmap(jax.value_and_grad(target.log_base))(points)
    return values + base, scores + base_scores


def _sum_over_blocks(function: Callable[[Batch], Any], zero: Any, data: Batch) -> Any:
    """The sum of a function of rows over blocks of all rows."""
    number = batch_length(data)
    blocks = number // _BLOCK
    whole = jax.tree.map(lambda leaf: leaf[: blocks * _BLOCK].reshape(blocks, _BLOCK, *leaf.shape[1:]), data)
    rest = jax.tree.map(lambda leaf: leaf[blocks * _BLOCK :], data)

    def add(sums: Any, rows: Batch) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, function(rows)), None

    sums, _ = jax.lax.scan(add, zero, whole)
    return jax.tree.map(jnp.add, sums, function(rest)) if number % _BLOCK else sums


def _derivatives(
    target: AbstractTarget, point: np.ndarray, data: Batch
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of the log-likelihood of all rows: gradient and Hessian; of the log density: gradient and negative Hessian."""
    dtype = jnp.result_type(float)
    found = _pass_over(target, jax.device_put(point.astype(dtype)), data)
    gradient, hessian, base_gradient, base_hessian = (np.asarray(part, np.float64) for part in found)
    curvature = -(hessian + base_hessian)
    return gradient, hessian, gradient + base_gradient, (curvature + curvature.T) / 2


@compiled
def _pass_over(target: AbstractTarget, point: Vector, data: Batch) -> tuple[Any, Any, Any, Any]:
    """Gradients and Hessians of the log-likelihood of all rows, in blocks, and of the prior."""

    def total(vector: Vector, rows: Batch) -> Any:
        return jnp.sum(target.log_examples(vector, rows))

    def derivatives(rows: Batch) -> tuple[Any, Any]:
        return jax.grad(total)(point, rows), jax.hessian(total)(point, rows)

    zero = jnp.zeros_like(point), jnp.zeros((point.size, point.size), point.dtype)
    sums = _sum_over_blocks(derivatives, zero, data)
    return *sums, jax.grad(target.log_base)(point), jax.hessian(target.log_base)(point)
