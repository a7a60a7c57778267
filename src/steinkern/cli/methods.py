"""The methods of `steinkern sample`: from a loaded target to a result."""

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
import optax

from ..core.messages import SteinWarning
from ..inference.fit import fit
from ..inference.sample import sample
from ..kernels.scalar import IMQ
from ..results.result import Result
from ..samplers.sampler import AbstractSampler
from ..samplers.stein import matrix_svgd, svgd, svn
from ..targets.curvature import Hessian
from .target import Loaded

AUTO, STEIN = "auto", "stein"
METHODS = (AUTO, STEIN, "average", "mixture", "vanilla", "svn")
STEPS = 1000
"""The default number of steps of a method that takes one."""
_MAX_RECORDED_NUMBERS = 100_000
"""With more numbers in the particles, the history does not record them."""


def run(loaded: Loaded, method: str, num_particles: int, num_steps: int | None, seed: int, checkpoint: Path) -> Result:
    """Run a method. Its warnings go to the page and the terminal instead, one line each."""
    key, start_key = jr.split(jr.key(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteinWarning)
        if method == AUTO:
            start = loaded.particle(start_key)
            return sample(key, loaded.target, start, num_particles, loaded.data, throw=False)
        if method == STEIN:
            sampler, record_every, checkpoint_every = None, 4, 50
            first: dict[str, Any] = {"start": loaded.particle(start_key), "num_particles": num_particles}
            numbers = num_particles * _size(first["start"])
        else:
            num_steps = STEPS if num_steps is None else num_steps
            sampler, record_every, checkpoint_every = _sampler(method, num_steps), num_steps // 100, num_steps // 20
            first = {"particles": loaded.particles(start_key, num_particles)}
            numbers = _size(first["particles"])
        return fit(
            key, loaded.target, sampler,
            data=loaded.data,
            num_steps=num_steps,
            record_every=max(1, record_every),
            record_particles=numbers <= _MAX_RECORDED_NUMBERS,
            checkpoint=checkpoint,
            checkpoint_every=max(1, checkpoint_every),
            throw=False,
            **first,
        )  # fmt: skip


def _sampler(method: str, num_steps: int) -> AbstractSampler:
    """A sampler with the IMQ kernel and a cosine decay of the step size to 0.

    The heavy tails of the IMQ keep the spread that an RBF with the median bandwidth loses, and the decay lets the
    particles converge. With a metric the velocity has the units of the parameters, so the step size starts at 1;
    without one Adam adapts the scale.
    """
    if method == "vanilla":
        return svgd(IMQ(), optax.adam(optax.cosine_decay_schedule(0.1, num_steps)))
    optimizer = optax.sgd(optax.cosine_decay_schedule(1.0, num_steps))
    if method == "svn":
        return svn(Hessian(), IMQ(), optimizer)
    return matrix_svgd("average" if method == "average" else "mixture", Hessian(), IMQ(), optimizer)


def _size(tree: Any) -> int:
    return sum(int(np.size(leaf)) for leaf in jax.tree_util.tree_leaves(tree))
