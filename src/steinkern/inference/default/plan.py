"""Before the run of a `fit` without a sampler or without particles: the choices that the caller leaves open."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import jax
import numpy as np

from ...core.arrays import as_concrete_key, as_numpy, with_columns
from ...core.errors import explain_errors
from ...core.notices import Notice, Phrase, RefusalError
from ...core.particles import check_particles
from ...core.types import Batch, KeyLike, LogDensityFunction, PyTree
from ...results.result import Result
from ...samplers.sampler import AbstractSampler
from ...samplers.untuned import Untuned
from ...targets.target import AbstractTarget
from ..arguments import as_count
from ..automatic.precision import bind, double_precision, in_shapes
from ..automatic.randomness import even_noise, generators
from ..automatic.sample import as_target_or_model, candidate_starts
from ..automatic.second_component import SecondComponent
from ..automatic.start import Start, find_start
from ..automatic.whitening import Whitening
from .evaluate import finite_and_particles
from .minibatch import RowSample, centre_on_rows
from .thin import FLOW

STEPS = 400
"""The most steps of a run without a sampler; most come to rest before."""
MOST_EPOCHS = 8
"""The most passes over the data in the steps of a run with minibatches."""
PARTICLES = 100
_HALVINGS = 40  # of the distance from a first particle to the Gaussian's mean, until the density there is finite


@dataclass(frozen=True)
class Plan:
    """The choices for a run, and what finding them took."""

    target: AbstractTarget
    """Of the caller."""
    run_target: AbstractTarget
    """Whose scores the particles follow; with minibatches it has less noise than `target`."""
    sampler: AbstractSampler
    particles: PyTree
    num_steps: int
    untuned: bool
    """Whether the sampler is the library's choice, so that the particles are compared with chains at the end."""
    other: SecondComponent | None
    """Mass that particles from the nearest Gaussian do not reach."""
    spent: np.ndarray
    """Values, gradients, Hessians and batches of them, up to the first step."""
    warnings: tuple[Notice, ...] = ()
    epochs: float = 0.0
    """With minibatches: passes over the data up to the first step."""
    num_returned: int | None = None
    """The number of particles to return where it is smaller than that of the flow."""
    row_sample: RowSample | None = None
    """With minibatches: what chains held aside see."""
    steps_before: int = 0
    """Steps of the fits that this one continues."""


def make_plan(
    key: KeyLike,
    target: AbstractTarget | LogDensityFunction,
    sampler: AbstractSampler | None,
    particles: PyTree,
    data: Batch,
    *,
    start: PyTree,
    num_particles: int | None,
    num_steps: int | None,
    batch_size: int | None,
) -> Plan:
    """Choose what is missing: particles around the nearest Gaussian, a sampler in its metric, a number of steps.

    Args:
        key: as in `fit`.
        target: as in `fit`.
        sampler: the caller's; `None` for `Untuned`.
        particles: the caller's, or a `Result`; `None` for draws of the nearest Gaussian.
        data: as in `fit`.
        start: as in `fit`.
        num_particles: as in `fit`.
        num_steps: as in `fit`.
        batch_size: as in `fit`.

    Raises:
        RefusalError: the density has no finite mass that can be found, or the target draws minibatches itself.
    """
    key, given = as_concrete_key(key), as_target_or_model(target)
    steps = STEPS if num_steps is None else as_count("num_steps", num_steps)
    earlier = particles if isinstance(particles, Result) and isinstance(particles.sampler, Untuned) else None
    if earlier is not None and sampler is None and batch_size is None:
        return Plan(
            given, given, earlier.sampler, earlier, steps, True, None, np.zeros(4, int),
            num_returned=len(earlier.points), steps_before=earlier.num_steps,
        )  # fmt: skip
    if particles is None and start is None and not given.has_prior:
        raise ValueError("`particles` or `start` must be given: particles, or one particle's parameters as `start`.")
    if given.sampled_rows(None, None):
        draws = "`target` draws minibatches, and a fit without a sampler needs all data: "
        raise RefusalError(Notice("minibatches", draws, Phrase.WHOLE_DATA, " with a sampler and particles."))
    number = PARTICLES if num_particles is None else as_count("num_particles", num_particles)
    data = jax.tree.map(lambda leaf: as_numpy("data", leaf), with_columns(data))
    given.check_data(data, batch_size)
    starts = candidate_starts(key, given, start) if particles is None else _rows_of(particles)
    for_start, for_particles = generators(key, 2)
    returned = None
    if sampler is None and particles is None:
        number, returned = max(number, FLOW), number
    if batch_size is not None:
        plan = _plan_minibatches(
            for_start, given, sampler, particles, data, starts, number, num_steps, batch_size, for_particles, returned
        )
        if earlier is None or sampler is not None:
            return plan
        own: Any = {"num_returned": len(earlier.points), "steps_before": earlier.num_steps}
        return replace(plan, sampler=earlier.sampler, **own)
    found, drawn = _search(for_start, for_particles, given, starts, data, number if particles is None else 0)
    chosen = sampler if sampler is not None else untuned_sampler(found.nearest.whitening, steps)
    first = particles if particles is not None else drawn
    return Plan(given, given, chosen, first, steps, sampler is None, found.other, found.spent, num_returned=returned)


def untuned_sampler(whitening: Whitening, steps: int) -> Untuned:
    """`Untuned` in a metric, with a step size that decays over this number of steps."""
    return Untuned(whitening.metric(), float(steps))


def _search(
    for_start: np.random.Generator,
    for_particles: np.random.Generator,
    target: AbstractTarget,
    starts: Iterator[PyTree],
    data: Batch,
    number: int,
) -> tuple[Start, PyTree]:
    """The nearest Gaussian as `sample` finds it, in double precision, and this number of particles from it."""
    first = next(starts)
    with double_precision(target, first, data) as (wide, inner):
        with explain_errors(*in_shapes(first, data)):
            bound, particle, batch = bind(inner, first, data, wide)
            bound.bound_space.check(jax.tree.map(lambda leaf: np.asarray(leaf)[None], particle), "start")
        others = (bind(inner, other, None, wide)[1] for other in chain([first], starts))
        found = find_start(for_start, bound, others, batch, 1)
        if found.problem is not None:
            raise RefusalError(found.problem)
        dtype = jax.tree.leaves(particle)[0].dtype
        drawn = _draw(for_particles, bound, found, batch, number, dtype) if number else None
    return found, drawn


def _draw(
    random: np.random.Generator, target: AbstractTarget, found: Start, data: Batch, number: int, dtype: Any
) -> PyTree:
    """Particles of the nearest Gaussian, those outside of the support moved towards its mean until they are inside."""
    nearest = found.nearest
    points = nearest.cloud(even_noise(random, number, len(nearest.mean))).astype(dtype)
    centre = nearest.mean.astype(dtype)
    for _ in range(_HALVINGS):
        good, particles = jax.tree.map(np.asarray, finite_and_particles(target, jax.device_put(points), data))
        if good.all():
            return particles
        points = np.where(good[:, None], points, (points + centre) / 2)
    raise ValueError(
        "`start` leads to where the log density or its gradient is not finite: the Gaussian nearest to the target has "
        "draws there. Start elsewhere, or declare the support with `support=`."
    )


def _plan_minibatches(
    for_start: np.random.Generator,
    given: AbstractTarget,
    sampler: AbstractSampler | None,
    particles: PyTree,
    data: Batch,
    starts: Iterator[PyTree],
    number: int,
    num_steps: int | None,
    batch_size: int,
    for_particles: np.random.Generator,
    returned: int | None,
) -> Plan:
    """The same with minibatches: a Gaussian on a sample of the rows, and scores centred at its mean on all rows."""
    first = next(starts)
    rows = len(jax.tree.leaves(data)[0])
    most = max(1, MOST_EPOCHS * rows // batch_size)
    steps = min(STEPS, most) if num_steps is None else as_count("num_steps", num_steps)
    with double_precision(given, first, data) as (wide, inner):
        with explain_errors(*in_shapes(first, data)):
            bound, particle, batch = bind(inner, first, data, wide)
        others = (bind(inner, other, None, wide)[1] for other in chain([first], starts))
        centred = centre_on_rows(for_start, bound, others, batch)
        dtype = jax.tree.leaves(particle)[0].dtype
        drawn = None
        if particles is None:
            noise = even_noise(for_particles, number, len(centred.centre))
            points = (centred.centre + centred.whitening.unwhiten(noise)).astype(dtype)
            _, drawn = jax.tree.map(np.asarray, finite_and_particles(bound, jax.device_put(points), centred.sample))
    chosen = sampler if sampler is not None else untuned_sampler(centred.whitening, steps)
    first_particles = particles if particles is not None else drawn
    row_sample = None if sampler is not None else centred.row_sample(given, data)
    followed = given if row_sample is None else row_sample.target
    return Plan(
        given, followed, chosen, first_particles, steps, sampler is None, None, centred.spent,
        centred.warnings, centred.epochs, returned, row_sample,
    )  # fmt: skip


def _rows_of(particles: PyTree) -> Iterator[PyTree]:
    """The particles one by one, as starts of the search."""
    values = particles.particles if isinstance(particles, Result) else particles
    check_particles(values)
    leaves = jax.tree.map(np.asarray, values)
    for place in range(len(jax.tree.leaves(leaves)[0])):
        yield jax.tree.map(lambda leaf, place=place: leaf[place], leaves)
