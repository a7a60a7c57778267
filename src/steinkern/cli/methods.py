"""The methods of `steinkern sample`: from a loaded target to a result."""

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
import optax

from ..core.types import SteinWarning
from ..inference.automatic import sample as sample_automatically
from ..inference.default import compare_with_chains
from ..inference.fit import fit
from ..inference.run_warnings import LONG_ENOUGH
from ..kernels.scalar import IMQ
from ..results.result import DivergedError, Result, Status
from ..samplers.sampler import AbstractSampler
from ..samplers.stein import matrix_svgd, svgd, svn
from ..targets.curvature import Hessian
from .target import Loaded
from .words import reword_refusals

_LINES = 100  # about the number of records in the history
_UNTUNED_LINE, _UNTUNED_CHECKPOINT = 4, 50  # steps between records, and between checkpoints, of --method stein
_MOST_NUMBERS = 100_000  # with more numbers in the particles, the history does not keep them


def sampler_for(method: str, num_steps: int) -> AbstractSampler:
    """The sampler of a `--method` other than auto, with the IMQ kernel and a cosine decay of the step size to 0.

    The heavy tails of the IMQ keep the spread that an RBF with the median bandwidth loses, and the decay lets the
    particles converge. With a metric the velocity has the units of the parameters, so the step size starts at 1;
    without one Adam adapts the scale.
    """
    if method == "vanilla":
        return svgd(IMQ(), optax.adam(optax.cosine_decay_schedule(0.1, num_steps)))
    optimiser = optax.sgd(optax.cosine_decay_schedule(1.0, num_steps))
    if method == "svn":
        return svn(Hessian(), IMQ(), optimiser)
    return matrix_svgd("average" if method == "average" else "mixture", Hessian(), IMQ(), optimiser)


def run_automatically(loaded: Loaded, particles: int, seed: int) -> tuple[Result, bool]:
    """Run `steinkern.sample`; the result, and whether the run diverged."""
    key, start = _key_and_start(loaded, seed)
    with warnings.catch_warnings(), reword_refusals():
        warnings.simplefilter("ignore", SteinWarning)
        result = sample_automatically(key, loaded.target, start, particles, loaded.data, throw=False)
    return result, result.status is Status.DIVERGED


def _key_and_start(loaded: Loaded, seed: int) -> tuple[Any, Any]:
    """The key of a run that starts at one particle, and that particle."""
    key, start_key = jr.split(jr.key(seed))
    start = loaded.start
    if callable(start) or loaded.target.has_prior:
        start = jax.tree.map(lambda leaf: leaf[0], loaded.particles(start_key, 1))
    return key, start


def run_untuned(loaded: Loaded, checkpoint: Path, particles: int, steps: int | None, seed: int) -> tuple[Result, bool]:
    """Run `fit` without a sampler; the result, and whether the run diverged."""
    key, start = _key_and_start(loaded, seed)
    numbers = particles * sum(int(np.size(leaf)) for leaf in jax.tree_util.tree_leaves(start))
    with warnings.catch_warnings(), reword_refusals():
        warnings.simplefilter("ignore", SteinWarning)
        result = fit(
            key, loaded.target, None, None, loaded.data,
            start=start,
            num_particles=particles,
            num_steps=steps,
            record_every=_UNTUNED_LINE,
            record_particles=numbers <= _MOST_NUMBERS,
            checkpoint=checkpoint,
            every=_UNTUNED_CHECKPOINT,
            throw=False,
        )  # fmt: skip
    return result, result.status is Status.DIVERGED


def run_sampler(
    loaded: Loaded, sampler: AbstractSampler, checkpoint: Path, particles: int, steps: int, seed: int
) -> tuple[Result, bool]:
    """Run `fit`; the result, and whether the run diverged. Its warnings go to the page and the terminal instead."""
    loop_key, start_key = jr.split(jr.key(seed))
    start = loaded.particles(start_key, particles)
    numbers = sum(int(np.size(leaf)) for leaf in jax.tree_util.tree_leaves(start))
    with warnings.catch_warnings(), reword_refusals():
        warnings.simplefilter("ignore", SteinWarning)  # the result repeats them, one line each
        try:
            result = fit(
                loop_key, loaded.target, sampler, start, loaded.data,
                num_steps=steps,
                record_every=max(1, steps // _LINES),
                record_particles=numbers <= _MOST_NUMBERS,
                checkpoint=checkpoint,
                every=max(1, steps // 20),
                progress=None,
            )  # fmt: skip
        except DivergedError as diverged:
            return diverged.result, True
        if result.status is not Status.STOPPED and steps >= LONG_ENOUGH and not _draws_minibatches(loaded):
            result = compare_with_chains(loop_key, result, loaded.data).result
    return result, False


def _draws_minibatches(loaded: Loaded) -> bool:
    """Whether the target draws minibatches, so that no chains can be run on it."""
    return bool(loaded.target.sampled_rows(loaded.data, None))
