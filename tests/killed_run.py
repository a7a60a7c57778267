"""A run that a test kills: `python -m tests.killed_run DIRECTORY DTYPE`; what it ends with is in DIRECTORY/end.npz."""

import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import steinkern as sk

NUM_STEPS = 2000
DATA = np.linspace(-1.0, 1.0, 40)


def log_prior(x):
    return -0.5 * jnp.sum(x**2)


def log_likelihood(x, row):
    return -0.5 * (row - jnp.sum(jnp.sin(x))) ** 2


def run(checkpoint: Path | None, dtype: str, num_steps: int = NUM_STEPS, **options) -> sk.Result:
    """Minibatches, a momentum, a running average of curvature: every kind of state that a run can have."""
    particles = np.random.default_rng(0).normal(size=(5, 2)).astype(dtype)
    sampler = sk.matrix_svgd(
        "average", sk.Hessian(diagonal=True), optimiser=optax.adam(0.01), decay=0.9, refresh_every=3
    )
    target = sk.Posterior(log_prior, log_likelihood, len(DATA))
    saving = {} if checkpoint is None else {"checkpoint": checkpoint, "every": 30}
    return sk.fit(
        jr.key(3), target, sampler, particles, DATA.astype(dtype),
        num_steps=num_steps, batch_size=4, record_every=7, **saving, **options,
    )  # fmt: skip


def end_of(result: sk.Result) -> list[np.ndarray]:
    """All that a run ends with."""
    history = [result.history.step, result.history.velocity_norm, result.history.step_size, result.history.stein_ratio]
    return [np.asarray(leaf) for leaf in [*jax.tree.leaves(result.loop), *history]]


def slow_fsync(handle: int, sync=os.fsync) -> None:
    """A slow disk: half the time goes into writing, so that a kill meets a write."""
    time.sleep(0.01)
    sync(handle)


def main() -> None:
    directory, dtype = Path(sys.argv[1]), sys.argv[2]
    os.fsync = slow_fsync
    jax.config.update("jax_enable_x64", True)
    result = run(directory / "checkpoints", dtype)
    np.savez(directory / "writing.npz", *end_of(result))
    (directory / "writing.npz").rename(directory / "end.npz")


if __name__ == "__main__":
    main()
