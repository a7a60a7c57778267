"""`fit` without a sampler: the settings of the paper's method, and reference chains to compare its particles with.

`choose` finds the Gaussian nearest to the target as `sample` does. Its draws are the first particles, and the sampler
is `AutoSVGD` in its metric. With minibatches the Gaussian is that of all rows, by Newton's method from a sample of
them, and the target is centered at its mean, where scores of minibatches have little noise. The run itself is that of
every other `fit`. `reference_chains` then starts Hamiltonian chains at its particles: draws of the target stay draws.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core.arrays import as_concrete, as_concrete_key
from ..core.errors import explain_errors
from ..core.particles import check_particles
from ..core.programs import compiled
from ..core.progress import progress_bar
from ..core.types import Batch, KeyLike, LogDensityFunction, Points, PyTree, Vector
from ..interop._model import as_target_or_model
from ..results.outcome import Cost, Diagnostics
from ..results.result import Result
from ..samplers.auto import AutoSVGD
from ..samplers.sampler import AbstractSampler
from ..targets.centered import CenteredPosterior, center_posterior
from ..targets.checks import batch_length
from ..targets.target import AbstractTarget, BoundTarget, Posterior
from .arguments import as_count
from .diagnostics import chain_numbers, evenly_spaced
from .loop import LoopState, Run, evaluate
from .sample.chains import Chains, chains_at, run_chains
from .sample.evaluation import DENSE_DIMENSIONS, Cloud, Evaluator
from .sample.gaussian import Gaussian
from .sample.randomness import even_noise, generators
from .sample.second_component import SecondComponent
from .sample.start import (
    CHAINS,
    bind,
    candidate_starts,
    expected_shapes,
    find_start,
    in_default_precision,
)
from .sample.whitening import Whitening, eigh

PARTICLES = 100
STEPS, MAX_EPOCHS = 400, 8
"""The most steps, and with minibatches the most passes over the data in them; most runs converge before."""
TRANSITIONS = 25
"""Of the 100 reference chains, in a round: two rounds adapt step size and metric, two are compared."""
MAX_CHAIN_DIMENSIONS = 4000  # of reference chains, whose draws take too much memory in more dimensions
ROWS = 500  # the least number of rows in the sample of the first Gaussian; 20 a coordinate where that is more
_CHAIN_EPOCHS, _CHAIN_BATCHES, _MIN_ROWS = 3.0, 700, 32  # of reference chains, which need about 700 batches
_MAX_ERROR = 0.1  # standard deviation, over the particles, of the error of a log density on a sample of the rows
_NEWTON_STEPS = 5
_MAX_LAST_STEP, _MAX_STEP = 0.1, 1000.0  # standard deviations per coordinate: of the last Newton step, and of any
_BLOCK = 1024  # rows at a time in a pass over all of them
_HALVINGS = 40  # of the distance from a first particle to the Gaussian's mean, until the density there is finite


class Choice(NamedTuple):
    """The arguments of a run, and what choosing them took."""

    target: AbstractTarget | LogDensityFunction
    sampler: AbstractSampler
    particles: PyTree
    num_steps: int
    compares: bool = False
    """Whether the particles are to be compared with reference chains: the sampler is `AutoSVGD`."""
    second_component: SecondComponent | None = None
    """Mass that particles from the nearest Gaussian do not reach."""
    cost: Cost = Cost()
    """Up to the first step."""


def choose(
    key: KeyLike, target: AbstractTarget | LogDensityFunction, sampler: AbstractSampler | None, particles: PyTree,
    data: Batch, start: PyTree, num_particles: int | None, num_steps: int | None, batch_size: int | None,
) -> Choice:  # fmt: skip
    """Choose what a call of `fit` leaves open: particles, a sampler, a number of steps. Arguments are as in `fit`.

    Raises:
        ValueError: the density has no finite mass that can be found.
    """
    key, target = as_concrete_key(key), as_target_or_model(target)
    compares, on_all_rows = sampler is None, target.on_all_rows()
    target = on_all_rows if compares else target
    if sampler is None and isinstance(particles, Result) and isinstance(particles.sampler, AutoSVGD):
        sampler = particles.sampler
    number = as_count("num_particles", PARTICLES if num_particles is None else num_particles)
    data = as_concrete("data", data)
    target.check_data(data, batch_size)
    max_steps = STEPS if batch_size is None else min(STEPS, max(1, MAX_EPOCHS * batch_length(data) // batch_size))
    steps = as_count("num_steps", max_steps if num_steps is None else num_steps)
    if sampler is not None and particles is not None and batch_size is None:  # it continues a run
        return Choice(target, sampler, particles, steps, compares)
    starts = candidate_starts(key, target, start) if particles is None else _each_particle(particles)
    first = next(starts)
    start_random, particle_random = generators(key, 2)
    with explain_errors(*expected_shapes(first, data)):
        bound, particle, rows = bind(on_all_rows, first, data, start is not None)
        start_rows = rows if batch_size is None else _sample_of_rows(start_random, bound, rows)
        evaluator = Evaluator(bound, particle, even_noise(start_random, CHAINS, bound.space.layout.size), start_rows)
        from_caller = start is not None or particles is not None
        search = find_start(start_random, evaluator, chain([first], starts), from_caller)
    if search.problem is not None:
        raise ValueError(search.problem.text)
    nearest, cost = search.nearest, evaluator.cost
    if batch_size is not None:
        centered, nearest, passes = center_on_rows(bound, nearest, rows)
        epochs = cost.sequential * batch_length(start_rows) / batch_length(rows) + passes
        cost += Cost(gradients=passes, hessians=passes, sequential=passes, epochs=epochs)
        target = centered if compares else target
    sampler = AutoSVGD(nearest.whitening.metric(), float(steps)) if sampler is None else sampler
    if particles is None:
        particles = _draw(particle_random, sampler, bound, nearest, start_rows, number)
    return Choice(target, sampler, particles, steps, compares, search.second_component, cost)


def _each_particle(particles: PyTree) -> Iterator[PyTree]:
    values = particles.particles if isinstance(particles, Result) else particles
    for i in range(check_particles(values)):
        yield jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], values)


def _draw(
    random: np.random.Generator, sampler: AbstractSampler, target: BoundTarget, nearest: Gaussian, data: Batch,
    number: int,
) -> PyTree:  # fmt: skip
    """Draws of the nearest Gaussian, moved towards its mean where the density is not finite."""
    points, mean = nearest.cloud(even_noise(random, number, len(nearest.mean))), nearest.mean
    for _ in range(_HALVINGS):
        evaluation = evaluate(sampler, target, jax.device_put(points), data)
        is_finite = np.isfinite(evaluation.log_densities) & np.asarray(evaluation.finite_scores)
        if is_finite.all():
            return jax.tree.map(np.asarray, evaluation.particles)
        points = np.where(is_finite[:, None], points, (points + mean) / 2)
    raise ValueError(
        "`start` leads to where the log density or its gradient is not finite: the Gaussian nearest to the target has "
        "draws there. Start elsewhere, or declare the support with `support=`."
    )


def _sample_of_rows(random: np.random.Generator, target: BoundTarget, data: Batch) -> Batch:
    """The rows on which the first Gaussian is found."""
    d, rows = target.space.layout.size, batch_length(data)
    if not isinstance(target.target, Posterior):
        raise ValueError("`batch_size` without a sampler needs a `Posterior`, got another target.")
    if d > DENSE_DIMENSIONS:
        raise ValueError(
            f"`batch_size` without a sampler takes at most {DENSE_DIMENSIONS} coordinates, because it needs the "
            f"Hessian on all rows, got {d}. Give a sampler, such as `matrix_svgd('average', Fisher(...))`."
        )
    indices = np.sort(random.choice(rows, min(rows, max(ROWS, 20 * d)), replace=False))
    return jax.tree.map(lambda leaf: leaf[indices], data)


def center_on_rows(target: BoundTarget, nearest: Gaussian, data: Batch) -> tuple[CenteredPosterior, Gaussian, int]:
    """The posterior centered near its mode on all rows, the Gaussian there, and the passes over the data.

    Newton's method starts at the Gaussian's mean. Where it does not come to the mode, the scores of minibatches are
    unbiased but have more noise.

    Args:
        target: bound to its space.
        nearest: near the posterior, such as the Gaussian of a sample of the rows.
        data: all rows.
    """
    assert isinstance(target.target, Posterior)
    mean, precision, passes, step, length = nearest.mean, nearest.precision, 0, np.zeros(1), np.inf
    while passes < _NEWTON_STEPS and length > _MAX_LAST_STEP:
        mean, passes = mean + step, passes + 1
        arrays = _derivatives(target, jax.device_put(mean), data)
        gradient, hessian, prior_gradient, prior_hessian = (np.asarray(array, np.float64) for array in arrays)
        curvature = -(hessian + prior_hessian)
        curvature = (curvature + curvature.T) / 2
        values, _ = eigh(curvature)
        if values[0] > 1e-10 * values[-1]:  # false for NaN
            precision = curvature
        whitening = Whitening.of_precision(precision)
        white = whitening.pull_scores(gradient + prior_gradient)
        length = float(np.sqrt(np.mean(white**2)))
        step = whitening.unwhiten(white / max(1.0, length / _MAX_STEP))
    centered = center_posterior(target.target, *map(jax.device_put, (mean, gradient, hessian)))
    return centered, nearest._replace(mean=mean, precision=precision), passes


@compiled
def _derivatives(target: BoundTarget, point: Vector, data: Batch) -> tuple[Any, Any, Any, Any]:
    """Gradient and Hessian of the log-likelihood of all rows, and of the prior."""

    def derivatives(function: Callable[[Vector], Any]) -> tuple[Any, Any]:
        return jax.grad(function)(point), jax.hessian(function)(point)

    def likelihood(rows: Batch) -> tuple[Any, Any]:
        return derivatives(lambda vector: jnp.sum(target.log_examples(vector, rows)))

    return *_sum_over_blocks(likelihood, data), *derivatives(target.log_base)


@compiled
def log_densities_on_all_rows(target: BoundTarget, points: Points, data: Batch) -> Any:
    """The log density at points, up to a constant, in float32 as well."""

    def likelihood(rows: Batch) -> Any:
        reference = target.log_examples(points[0], rows)  # differences by row are small: float32 holds their sum
        return jax.vmap(lambda point: jnp.sum(target.log_examples(point, rows) - reference))(points)

    return _sum_over_blocks(likelihood, data) + jax.vmap(target.log_base)(points)


def _sum_over_blocks(function: Callable[[Batch], Any], data: Batch) -> Any:
    """The sum of a function of rows over blocks of all rows."""
    rows = batch_length(data)
    blocks = (rows - 1) // _BLOCK
    rest = rows - blocks * _BLOCK
    first = jax.tree.map(lambda leaf: leaf[:rest], data)
    others = jax.tree.map(lambda leaf: leaf[rest:].reshape(blocks, _BLOCK, *leaf.shape[1:]), data)

    def add(sums: Any, block: Batch) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, function(block)), None

    return jax.lax.scan(add, function(first), others)[0]


def reference_chains(
    key: KeyLike, choice: Choice, run: Run, loop: LoopState, particles: PyTree, diagnostics: Diagnostics
) -> Diagnostics:
    """The diagnostics with the particles' moments compared with those of chains, and the cost.

    Args:
        key: of the `fit`.
        choice: of the run.
        run: the run.
        loop: its last state.
        particles: its last particles, in constrained coordinates.
        diagnostics: of the particles.
    """
    (n, d), steps, batch_size = loop.state.points.shape, run.steps_done(loop), run.options.batch_size
    cost = choice.cost + Cost(gradients=n * steps, sequential=steps)
    problem = f"draws in {d:,} dimensions take too much memory" if d > MAX_CHAIN_DIMENSIONS else ""
    if not problem:
        first = in_default_precision(jax.tree.map(lambda leaf: np.asarray(leaf)[0], particles))
        target, data = run.target.target.bind(first).sharing(run.target_at(loop).shared), in_default_precision(run.data)
        points = np.asarray(loop.state.points, jnp.result_type(float))
        random, rows, share = generators(as_concrete_key(key), 3)[2], data, 0.0
        if batch_size is not None:
            rows, problem = sample_for_chains(random, run.sampler, target, points, data)
            share = batch_length(rows) / batch_length(data)
            cost += Cost(epochs=1 + steps * batch_size / batch_length(data))
    if not problem:
        chains = chains_from(random, run.sampler, target, points, rows)
        cost += chains.cost + Cost(gradients=n, sequential=1, epochs=(chains.cost.sequential + 1) * share)
        problem = "Ctrl-C ended them" if chains.stopped else chains.problem.text if chains.problem else ""
    if problem:
        not_checked = (*diagnostics.not_checked, f"reference chains: {problem}")
        return replace(diagnostics, not_checked=not_checked, cost=cost)
    return replace(
        compare(diagnostics, points, chains.draws), cost=cost,
        missed_component=choice.second_component.warning(chains.draws.points) if choice.second_component else "",
    )  # fmt: skip


def sample_for_chains(
    random: np.random.Generator, sampler: AbstractSampler, target: BoundTarget, points: np.ndarray, data: Batch
) -> tuple[Batch, str]:
    """Rows on which chains of a `CenteredPosterior` may run, and the reason why they may not, empty without one.

    At the points the log density on these rows must equal that on all rows, up to a constant. This takes a pass over
    the data: the variance within the sample does not show rare rows that it misses.

    Args:
        random: draws the rows.
        sampler: of the run.
        target: bound to its space.
        points: the particles.
        data: all rows.
    """
    number = min(max(int(_CHAIN_EPOCHS * batch_length(data) / _CHAIN_BATCHES), _MIN_ROWS), batch_length(data))
    indices = random.choice(batch_length(data), number, replace=False)
    rows, on_device = jax.tree.map(lambda leaf: leaf[indices], data), jax.device_put(points)
    on_sample = np.asarray(evaluate(sampler, target, on_device, rows).log_densities, np.float64)
    error = float(np.std(on_sample - np.asarray(log_densities_on_all_rows(target, on_device, data))))
    problem = (
        f"on {number} rows the log density differs by {error:.2g} from that on all rows, since its curvature changes "
        "within the mass"
    )
    return rows, "" if error <= _MAX_ERROR else problem


def chains_from(
    random: np.random.Generator, sampler: Any, target: BoundTarget, points: np.ndarray, data: Batch
) -> Chains:
    """Chains from the particles: two rounds of warm-up, and two whose draws are compared.

    Args:
        random: draws the momenta and jumps.
        sampler: of the run; its metric is that of the first round.
        target: bound to its space, in the precision of the points.
        points: (n, d) the particles. Every chain starts at one; of many particles, evenly spaced ones start a chain.
        data: the rows.
    """
    evaluation = evaluate(sampler, target, jax.device_put(points), data)
    indices, arrays = evenly_spaced(len(points), CHAINS), (points, evaluation.log_densities, evaluation.scores)
    state = chains_at(Cloud(*(np.asarray(array)[indices] for array in arrays)), CHAINS)
    root = np.asarray(sampler.metric.root, np.float64)
    precision = root**2 if root.ndim == 1 else root.T @ root
    return run_chains(random, target, state, precision, data, progress_bar(0, wanted=False), TRANSITIONS, 2)


def compare(diagnostics: Diagnostics, points: np.ndarray, draws: Any) -> Diagnostics:
    """The diagnostics with the particles' means and standard deviations compared with those of the chains' draws.

    The stated errors are the difference and the chains' standard error in quadrature.
    """
    numbers = chain_numbers(diagnostics, draws)
    x = points.astype(np.float64)
    sd = draws.points.std(axis=(0, 1))
    sd = np.where(sd > 0, sd, 1)
    differences, ratios = (x.mean(axis=0) - draws.points.mean(axis=(0, 1))) / sd, x.std(axis=0) / sd
    return replace(
        numbers,
        mean_errors=np.hypot(differences, numbers.mean_errors),
        sd_errors=np.hypot(ratios - 1, numbers.sd_errors),
        mean_differences=differences,
        sd_ratios=ratios,
    )
