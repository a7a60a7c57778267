"""Checks after a run; each yields a notice with advice.

`end_check` tests the particles at the end of every run. Checks that compile a program, and those that expect particles
at rest, need a run of at least `LONG_ENOUGH` steps.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.multihost import on_host
from ..core.notices import Fragment, Notice, Phrase, quantity, some_of, ways_out
from ..core.particles import Scored
from ..core.programs import compiled_quickly
from ..core.types import Batch, Points, Scalar
from ..core.types import SteinWarning as SteinWarning
from ..kernels.matrix import AbstractMatrixKernel
from ..results.verdict import Verdict
from ..samplers.sampler import AbstractSampler
from ..targets.target import AbstractTarget
from . import advice
from .advice import AT_REST, velocity_fraction
from .double_precision import check_double_precision, scores_of
from .end_check import EndCheck
from .run import Run
from .stein_test import UNCLEAR_PARTICLES

LONG_ENOUGH = 100
"""Shorter runs get no checks that cost a compilation or expect particles at rest."""
LEAST_MOVE = 1e-6
"""Particles count as unmoved where none has moved this far in the whole run, relative to their spread."""
LARGEST_MOVE = 0.1
"""Particles count as not at rest where the last move is longer than this, relative to their spread."""
LEAST_NEIGHBOURS = 0.1
"""The least kernel weight of all other particles together, relative to a particle's weight on itself."""
_SAMPLE = 32  # particles whose coupling is measured
_NAMED = 5  # the most coordinates that a warning lists
_FEW = 4  # particles beside which flat coordinates are sought


def after(run: Run, batch: Batch, start: Points, first: Array, end: EndCheck, *, told: bool) -> Iterator[Notice]:
    """All warnings about a run that ended without interruption.

    Where a cause is found, its consequences get no further warning; the verdict holds them.

    Args:
        run: the run at its end.
        batch: a batch of the run's size.
        start: the first particles.
        first: the scores at the first particles.
        end: the evaluation of the last particles. Errors inside checks are added to its `failures`.
        told: whether the run already had a warning before its first step.
    """
    verdict, last, failures = end.verdict, end.scores, end.failures
    if not run.loop.healthy:
        return
    long = run.done >= LONG_ENOUGH

    def collect(check: Callable[[], Iterator[Notice]], wanted: bool = True) -> list[Notice]:
        return _collect(check, failures) if wanted else []

    if verdict.outward:
        yield from collect(lambda: beside_target(run, verdict))
        return
    unmoved = collect(lambda: _check_moved(run, start))
    # Lost digits and a wrong gradient both make a density look flat, so they are checked first.
    cause = (
        unmoved
        or collect(lambda: check_double_precision(run, batch, end), long)
        or collect(lambda: _check_flat(run, batch, first, last), not told)
    )
    yield from cause
    unconverged = collect(lambda: _check_tolerance(run), long and not unmoved)
    yield from unconverged
    restless = collect(lambda: _check_rest(run), long and not (cause or unconverged))
    yield from restless
    decoupled = collect(lambda: _check_coupling(run, batch), long and not _many_pass(run, verdict))
    yield from decoupled
    if not (cause or restless):
        yield from collect(lambda: beside_target(run, verdict, narrow=not decoupled))
        explained = decoupled or run.faults.stuck.any()  # particles at an edge have a warning of their own
        yield from collect(lambda: _report_unclear(run, verdict), verdict.unclear and not explained)


def beside_target(run: Run, verdict: Verdict, *, narrow: bool = True, ended_early: bool = False) -> Iterator[Notice]:
    """Notices for a verdict that fails, with advice for this run.

    Args:
        run: at its end.
        verdict: on its particles.
        narrow: whether to report particles that are too close together.
        ended_early: by Ctrl-C or for want of room; the advice is then to go on.
    """

    def ways(advice_for: Callable[[Run], list[Fragment]]) -> list[Fragment]:
        return ["The run was ended early: go on with it."] if ended_early else advice_for(run)

    ratio = f"their Stein ratio is {verdict.stein_ratio:.2g}, and 1 at draws of the target"
    if verdict.outward:
        yield Notice(
            "outward",
            f"the log density grows away from the particles: {ratio}. Did you pass −log p in place of log p? If not, "
            "it has no upper bound where they are: give the parameters a proper prior.",
        )
        return
    if verdict.shifted:
        number, where = verdict.worst_shift()
        yield Notice(
            "shifted",
            f"the particles are beside the target: {where} the mean score times the standard deviation is {number}, "
            "and 0 at draws of the target. ",
            *ways(advice.for_shifted),
        )
    if verdict.narrow and narrow:
        number, where = verdict.worst_spread(low=True)
        found = ratio if verdict.ratio_low else f"{where} their spread is {number}, and 1 at draws of the target"
        yield Notice(
            "narrow",
            f"the particles are too close together (variance collapse): {found}. ",
            *ways(advice.for_narrow),
        )
    if verdict.wide:
        number, where = verdict.worst_spread(low=False)
        found = ratio if verdict.ratio_high else f"{where} their spread is {number}, and 1 at draws of the target"
        yield Notice("wide", f"the particles are too far apart: {found}. ", *ways(advice.for_wide))


def _report_unclear(run: Run, verdict: Verdict) -> Iterator[Notice]:
    number, where = verdict.worst_unclear()
    yield Notice(
        "unclear",
        f"the check of the particles is unclear: {number} {where}, but the scores scatter so much over the particles "
        "that this may be chance. Some particles are probably far out. ",
        *advice.for_shifted(run),
    )


def stuck(which: Sequence[int], number: int) -> Notice:
    """The warning about particles, of `number`, that were moved back more than five steps in a row."""
    noun, was, stands = ("particle", "was", "it stands") if len(which) == 1 else ("particles", "were", "they stand")
    return Notice(
        "stuck",
        f"{noun} {some_of(which)} of {number} went, more than five steps in a row, to where the target is NaN or "
        f"infinite, and {was} moved back: {stands} at an edge that the target does not declare. Declare constraints "
        "with ",
        Phrase.SUPPORT,
        ", or ",
        Phrase.LOWER_RATE,
        ".",
    )


def _collect(check: Callable[[], Iterator[Notice]], failures: list[str]) -> list[Notice]:
    """The notices of a check. Its errors are added to `failures` instead of raised, so that the result is not lost."""
    try:
        return list(check())
    except Exception as error:
        failures.append(f"{type(error).__name__}: {error}")
        return []


def _check_moved(run: Run, start: Points) -> Iterator[Notice]:
    """Warns where the particles have not moved, although the velocity is not zero and they are not at rest."""
    velocity = float(run.loop.info.velocity_norm)
    if not run.done or velocity == 0 or resting(run) or run.loop.converged:
        return
    before, now = on_host(start).astype(np.float64), on_host(run.loop.state.points).astype(np.float64)
    spread = np.std(before, axis=0) + np.finfo(np.float64).tiny
    farthest = float(np.max(np.abs(now - before) / np.where(spread > 0, spread, 1)))
    if farthest < LEAST_MOVE:
        taken = quantity(run.done, "step")
        yield Notice(
            "not-moved",
            f"the particles have not moved: after {taken} none is farther than {farthest:.1g} of the spread from where "
            f"it began, at a velocity of {velocity:.2g}. The step size is 0, or too small for this precision: ",
            Phrase.RAISE_RATE,
            ".",
        )


def resting(run: Run) -> bool:
    """Whether the velocity has fallen to that of particles at rest."""
    return run.sampler.deterministic and velocity_fraction(run) <= AT_REST


def _check_flat(run: Run, batch: Batch, first: Array, last: Array) -> Iterator[Notice]:
    """Warns of coordinates on which the log density does not depend at any of the first and last particles."""
    if not run.sampler.differentiates or run.batch_size is not None:  # other rows may depend on the coordinate
        return
    slopes = on_host(first).any(axis=0) | on_host(last).any(axis=0)
    if not slopes.all():  # particles at a mode have a zero gradient too, so points beside them are evaluated
        slopes |= on_host(scores_of(run.target_now, _beside(run.loop.state.points), batch)).any(axis=0)
    flat = np.flatnonzero(~slopes)
    if flat.size:
        names = run.target.bound_space.layout.coordinate_names()
        named = some_of([names[place] for place in flat], _NAMED)
        yield Notice(
            "flat",
            f"the log density does not depend on {named}: its gradient there is exactly zero at all particles, the "
            "first and the last. A density that is flat in a direction cannot be normalised, and the particles spread "
            "along it without end. Leave out parameters that are not used, and give the others a prior.",
        )


def _beside(points: Points) -> Array:
    """A few particles moved in every coordinate by 0.3 to 0.7 of their spread; by their size where they coincide."""
    x = on_host(points).astype(np.float64)
    spread = np.std(x, axis=0)
    length = np.where(spread > 0, spread, 0.1 * np.maximum(np.max(np.abs(x), axis=0), 1))
    offset = length * np.random.default_rng(1).uniform(0.3, 0.7, size=(min(_FEW, len(x)), x.shape[1]))
    return jax.device_put((x[:_FEW] + offset).astype(points.dtype))


def _check_tolerance(run: Run) -> Iterator[Notice]:
    if run.tolerance is not None and not run.loop.converged:
        fraction = float(run.loop.info.velocity_norm) / float(run.loop.largest_velocity)
        yield Notice(
            "not-converged",
            f"the run has not converged: after {run.done} steps the velocity is {fraction:.2g} of its largest value, ",
            Phrase.TOLERANCE,
            f" asks for {run.tolerance:.2g}. ",
            *ways_out([Phrase.MORE_STEPS, Phrase.OTHER_RATE]),
        )


def _check_rest(run: Run) -> Iterator[Notice]:
    """Warns where the last move was long relative to the particles' spread, so that noise adds to their positions.

    The check uses moves, not velocities: with minibatches the velocity never falls below their noise, which is harmless
    at a step size near 0. Langevin chains move by design and are not checked.
    """
    if not (run.sampler.interacting and run.sampler.deterministic):
        return
    points = on_host(run.loop.state.points).astype(np.float64)
    spread = float(np.sqrt(np.mean(np.var(points, axis=0))))
    move = float(run.loop.info.velocity_norm) * float(run.loop.info.step_size)
    if move > LARGEST_MOVE * spread > 0:
        ways = [Phrase.DECAY_RATE, Phrase.LOWER_RATE, Phrase.MORE_STEPS]
        yield Notice(
            "not-at-rest",
            f"the particles are not at rest: the last of {run.done} steps moved them by {move / spread:.2g} of their "
            "spread, so that their positions depend on the last steps, and on the last minibatches, if any. ",
            *ways_out([*ways, Phrase.LARGER_BATCH] if run.batch_size is not None else ways),
        )


def _many_pass(run: Run, verdict: Verdict) -> bool:
    """Whether many particles pass the check. Those that do not repel one another end at modes, and fail it."""
    return verdict.passed is True and len(run.loop.state.points) >= UNCLEAR_PARTICLES


def _check_coupling(run: Run, batch: Batch) -> Iterator[Notice]:
    points = run.loop.state.points
    if points.shape[0] < 2:
        return
    if not run.sampler.may_decouple:
        return
    neighbours = _neighbours(run.sampler, run.loop.state, run.target, batch)
    if neighbours is not None and float(neighbours) < LEAST_NEIGHBOURS:
        yield Notice(
            "decoupled",
            f"the particles hardly interact: the kernel gives all others together {float(neighbours):.1g} of the "
            "weight that it gives a particle itself, so each one moves to a mode independently. ",
            *advice.for_decoupled(run),
        )


@compiled_quickly
def _neighbours(sampler: AbstractSampler, state: Any, target: AbstractTarget, batch: Batch) -> Scalar | None:
    """‖Σ_{j≠i} K(x_i, x_j) v‖ / ‖K(x_i, x_i) v‖ for a vector v of ones, the median over `_SAMPLE` particles i."""
    kernel = sampler.coupling(state, target, batch)
    if kernel is None:
        return None
    points = state.points
    some = points if points.shape[0] <= _SAMPLE else points[:_SAMPLE]
    everyone = _pull(kernel, some, points)
    alone = jax.vmap(lambda one: _pull(kernel, one, one)[0])(some[:, None])
    size = jnp.sqrt(jnp.sum(alone**2, axis=1))
    others = jnp.sqrt(jnp.sum((everyone - alone) ** 2, axis=1))
    return jnp.median(others / jnp.where(size > 0, size, 1))


def _pull(kernel: AbstractMatrixKernel, at: Array, points: Array) -> Array:
    """Σ_j K(x, x_j) v: the velocity is linear in the scores, and this is its derivative along v."""
    ones, weights = jnp.ones_like(points), jnp.ones(points.shape[:1], points.dtype)

    def velocity(scores: Array) -> Array:
        return kernel.velocity(at, Scored(points, scores, weights))

    return jax.jvp(velocity, (jnp.zeros_like(points),), (ones,))[1]
