"""What to do about particles that fail: advice that leaves out what a run does already."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from ..kernels.bandwidth import AbstractBandwidth
from ..kernels.graphical import Graphical
from ..kernels.scalar import IMQ
from ..samplers.half_bayesian import HalfBayesian
from ..samplers.kernel_rule import AnchorMixture, AverageMetric
from ..samplers.stein import SVN
from .run import Run

AT_REST = 0.1
"""Below this fraction of its largest value a velocity is that of particles at rest."""
FALLEN = 0.1
"""Below this fraction of its largest value a step size has fallen."""
STILL_LARGEST = 0.95
"""From this fraction on a velocity is still at its largest."""


GROWN = 2.0
"""A velocity that is so many times the first one is of particles that run away."""


def for_narrow(run: Run) -> str:
    """For particles that are too close together."""
    n, d = run.loop.state.points.shape
    if not run.sampler.interacting:
        return _ways_out(["raise `num_steps`", "raise the step size: the chains have not spread over the target yet"])
    ways = list(_onwards(run)) if velocity_fraction(run) > AT_REST else []
    if not _has(run, IMQ):
        ways.append("use a kernel with heavier tails (`IMQ()`)")
    if not (_has_metric(run) or _has(run, Graphical)):
        ways.append("use a kernel with a metric (`matrix_svgd`)")
        ways.append("use a `Graphical` kernel where the target factorises")
    if n <= d:
        few = (
            f"{n} particles span at most {n - 1} of the {d} dimensions, so that no kernel gives them the whole spread. "
        )
        return few + _ways_out([*ways, "take more particles", "judge the run by predictions on held-out data"])
    return _ways_out([*ways, "take more particles", *_chains(run)])


def for_wide(run: Run) -> str:
    """For particles that are too far apart."""
    if not run.sampler.interacting:
        return _ways_out(
            ["raise `num_steps`", "lower the step size, which makes chains spread too far where it is large"]
        )
    towards = "They may still be on their way along a flat direction. "
    return towards + _ways_out([*_noise(run), *_onwards(run), *_chains(run)])


def for_shifted(run: Run) -> str:
    """For particles that are beside the target."""
    if not run.sampler.interacting:
        return _ways_out(["raise `num_steps`", "raise the step size", "start closer"])
    still = ""
    if run.sampler.deterministic and run.done > 1 and velocity_fraction(run) > STILL_LARGEST:
        still = "The velocity is still at its largest: the particles are not moving downhill. "
    return still + _ways_out([*_noise(run), *_onwards(run), *_chains(run)])


def for_decoupled(run: Run) -> str:
    """For particles that do not feel one another."""
    mixtures = [rule for rule in _all(run, AnchorMixture) if isinstance(rule, AnchorMixture)]
    if not mixtures:
        return "Use the bandwidth `Median()`."
    ways = (
        []
        if any(_has_rule(rule.temperature) for rule in mixtures)
        else ["use a larger `temperature`, such as `Median()`"]
    )
    if any(rule.weighting == "exact" for rule in mixtures):
        ways.append('leave the determinants out of the weights (`weighting="no_determinant"`)')
    if any(jax.tree_util.tree_leaves(rule.kernel) for rule in mixtures):
        ways.append("use the bandwidth `Median()`")
    return _ways_out(ways or ['use one metric for all (`matrix_svgd("average", …)`)'])


def velocity_fraction(run: Run) -> float:
    """The velocity of the last step over the largest one."""
    return float(run.loop.info.velocity_norm) / (float(run.loop.largest_velocity) or 1.0)


def _noise(run: Run) -> Iterator[str]:
    """Against the noise of minibatches."""
    if not run.target.sampled_rows(run.data, run.batch_size):
        return
    yield "raise `batch_size`" if run.batch_size is not None else "raise `subsample_size`"
    sizes = np.asarray(run.recorder.lines().info.step_size, np.float64)
    if len(sizes) and sizes[-1] > FALLEN * sizes.max():
        yield "let the step size fall (`optimiser=optax.rmsprop(optax.cosine_decay_schedule(0.1, num_steps))`)"


def _onwards(run: Run) -> Iterator[str]:
    """For particles on their way."""
    velocities = np.asarray(run.recorder.lines().info.velocity_norm, np.float64)
    if len(velocities) > 1 and velocities[-1] > GROWN * velocities[0]:
        yield "lower the learning rate, because the velocity has grown since the first step"
    else:
        yield "raise `num_steps`"
        yield "raise the learning rate"
    if not _has_metric(run):
        yield "use a kernel with a metric (`matrix_svgd`)"


def _chains(run: Run) -> Iterator[str]:
    if not isinstance(run.sampler, HalfBayesian) and not run.target.sampled_rows(run.data, run.batch_size):
        yield "call `sample`, which needs no tuning"


def _has_metric(run: Run) -> bool:
    return any(_has(run, kind) for kind in (AverageMetric, AnchorMixture, SVN))


def _has(run: Run, kind: type) -> bool:
    """Whether a sampler is made with one of a kind, at whatever depth."""
    return bool(_all(run, kind))


def _all(run: Run, kind: type) -> list[Any]:
    def found(node: Any) -> bool:
        return isinstance(node, kind)

    return [node for node in jax.tree_util.tree_leaves(run.sampler, is_leaf=found) if found(node)]


def _has_rule(temperature: Any) -> bool:
    return isinstance(temperature, AbstractBandwidth)


def _ways_out(ways: Iterable[str]) -> str:
    listed = list(dict.fromkeys(ways))
    return f"Ways out: {', '.join(listed[:-1])}{' or ' if len(listed) > 1 else ''}{listed[-1]}."
