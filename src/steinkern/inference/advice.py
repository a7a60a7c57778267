"""Advice for runs whose particles fail a check, without measures that the run already takes."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..core.notices import Fragment, Phrase, ways_out
from ..kernels.bandwidth import AbstractBandwidth
from ..kernels.graphical import Graphical
from ..kernels.scalar import IMQ
from ..samplers.half_bayesian import HalfBayesian
from ..samplers.kernel_rule import AnchorMixture, AverageMetric
from ..samplers.stein import SVN
from ..samplers.untuned import Untuned
from .run import Run

AT_REST = 0.1
"""Particles count as at rest where the velocity is at most this fraction of its largest value."""
FALLEN = 0.1
"""A step size counts as decayed where it is at most this fraction of its largest value."""
STILL_LARGEST = 0.95
"""A velocity counts as still at its largest above this fraction of its largest value."""


GROWN = 2.0
"""Particles count as running away where the velocity is more than this many times the first one."""


def for_narrow(run: Run) -> list[Fragment]:
    """Advice for particles that are too close together."""
    n, d = run.loop.state.points.shape
    if not run.sampler.interacting:
        return ways_out([Phrase.MORE_STEPS, "raise the step size: the chains have not spread over the target yet"])
    ways = list(_onwards(run)) if velocity_fraction(run) > AT_REST else []
    if not _has(run, IMQ):
        ways.append(Phrase.HEAVIER_TAILS)
    if not (_has_metric(run) or _has(run, Graphical)):
        ways += [Phrase.METRIC, Phrase.GRAPHICAL]
    if n <= d:
        few = (
            f"{n} particles span at most {n - 1} of the {d} dimensions, so that no kernel gives them the whole spread. "
        )
        held_out = "judge the run by predictions on held-out data"
        return [few, *ways_out([*ways, Phrase.MORE_PARTICLES, held_out])]
    return ways_out([*ways, Phrase.MORE_PARTICLES, *_chains(run)])


def for_wide(run: Run) -> list[Fragment]:
    """Advice for particles that are too far apart."""
    if not run.sampler.interacting:
        smaller = "lower the step size, which makes chains spread too far where it is large"
        return ways_out([Phrase.MORE_STEPS, smaller])
    towards = "They may still be on their way along a flat direction. "
    return [towards, *ways_out([*_noise(run), *_onwards(run), *_chains(run)])]


def for_shifted(run: Run) -> list[Fragment]:
    """Advice for particles that are shifted from the target."""
    if not run.sampler.interacting:
        return ways_out([Phrase.MORE_STEPS, "raise the step size", "start closer"])
    still: list[Fragment] = []
    if run.sampler.deterministic and run.done > 1 and velocity_fraction(run) > STILL_LARGEST:
        still = ["The velocity is still at its largest: the particles are not moving downhill. "]
    return [*still, *ways_out([*_noise(run), *_onwards(run), *_chains(run)])]


def for_decoupled(run: Run) -> list[Fragment]:
    """Advice for particles that the kernel does not couple."""
    mixtures = [rule for rule in _all(run, AnchorMixture) if isinstance(rule, AnchorMixture)]
    if not mixtures:
        return ["Use the bandwidth `Median()`."]
    ways: list[Fragment] = []
    if not any(isinstance(rule.temperature, AbstractBandwidth) for rule in mixtures):
        ways.append("use a larger `temperature`, such as `Median()`")
    if any(rule.weighting == "exact" for rule in mixtures):
        ways.append('leave the determinants out of the weights (`weighting="no_determinant"`)')
    if any(jax.tree_util.tree_leaves(rule.kernel) for rule in mixtures):
        ways.append("use the bandwidth `Median()`")
    return ways_out(ways or ['use one metric for all (`matrix_svgd("average", …)`)'])


def velocity_fraction(run: Run) -> float:
    """The velocity of the last step over the largest velocity of the run."""
    return float(run.loop.info.velocity_norm) / (float(run.loop.largest_velocity) or 1.0)


def _noise(run: Run) -> Iterator[Fragment]:
    """Advice against the noise of minibatches."""
    if not run.target.sampled_rows(run.data, run.batch_size):
        return
    yield Phrase.LARGER_BATCH if run.batch_size is not None else Phrase.LARGER_SUBSAMPLE
    sizes = np.asarray(run.recorder.lines().info.step_size, np.float64)
    if len(sizes) and sizes[-1] > FALLEN * sizes.max():
        yield Phrase.DECAY_RATE


def _onwards(run: Run) -> Iterator[Fragment]:
    """Advice for particles that are still moving towards the target."""
    if isinstance(run.sampler, Untuned):  # it chooses its step size itself
        yield Phrase.MORE_STEPS
        return
    velocities = np.asarray(run.recorder.lines().info.velocity_norm, np.float64)
    if len(velocities) > 1 and velocities[-1] > GROWN * velocities[0]:
        yield Phrase.LOWER_GROWN_RATE
    else:
        yield Phrase.MORE_STEPS
        yield Phrase.RAISE_RATE
    if not _has_metric(run):
        yield Phrase.METRIC


def _chains(run: Run) -> Iterator[Fragment]:
    if not isinstance(run.sampler, HalfBayesian) and not run.target.sampled_rows(run.data, run.batch_size):
        yield Phrase.SAMPLE


def _has_metric(run: Run) -> bool:
    return any(_has(run, kind) for kind in (AverageMetric, AnchorMixture, SVN, Untuned))


def _has(run: Run, kind: type) -> bool:
    """Whether the sampler holds an object of a class, at any depth."""
    return bool(_all(run, kind))


def _all(run: Run, kind: type) -> list[Any]:
    def is_kind(node: Any) -> bool:
        return isinstance(node, kind)

    return [node for node in jax.tree_util.tree_leaves(run.sampler, is_leaf=is_kind) if is_kind(node)]
