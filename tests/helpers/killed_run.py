"""A run that a test kills, `python -m tests.helpers.killed_run DIRECTORY DTYPE [STEP PLACE]`: its end is in end.npz.

With a step and a place ("writing" or "stepping") the run stops there, leaves the file DIRECTORY/waiting and waits to be
killed: the test has no clock to race against.
"""

import os
import stat
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


def run(checkpoint: Path | None, dtype: str, num_steps: int = NUM_STEPS, **options) -> sk.Result:
    """Minibatches, a momentum, a running average of curvature: every kind of state that a run can have."""
    particles = np.random.default_rng(0).normal(size=(5, 2)).astype(dtype)
    sampler = sk.matrix_svgd(
        "average", sk.Hessian(diagonal=True), optimizer=optax.adam(0.01), decay=0.9, refresh_every=3
    )
    target = sk.Posterior(
        lambda x: -0.5 * jnp.sum(x**2), lambda x, row: -0.5 * (row - jnp.sum(jnp.sin(x))) ** 2, len(DATA)
    )
    saving = {} if checkpoint is None else {"checkpoint": checkpoint, "checkpoint_every": 30}
    return sk.fit(
        jr.key(3), target, sampler, particles, DATA.astype(dtype),
        num_steps=num_steps, batch_size=4, record_every=7, **saving, **options,
    )  # fmt: skip


def end_of(result: sk.Result) -> list[np.ndarray]:
    """All that a run ends with."""
    history = [result.history.step, result.history.velocity_norm, result.history.step_size, result.history.stein_ratio]
    return [np.asarray(leaf) for leaf in [*jax.tree.leaves(result.loop), *history]]


def newest(directory: Path) -> int:
    """The step of the newest checkpoint."""
    return max((int(path.stem.split("-")[1]) for path in (directory / "checkpoints").glob("step-*.npz")), default=0)


def wait_for_the_kill(directory: Path) -> None:
    (directory / "waiting").touch()
    time.sleep(3600)


def main() -> None:
    directory, dtype = Path(sys.argv[1]), sys.argv[2]
    step, place = (int(sys.argv[3]), sys.argv[4]) if len(sys.argv) > 3 else (NUM_STEPS, "nowhere")
    sync = os.fsync

    def fsync(handle: int) -> None:
        is_checkpoint = stat.S_ISREG(os.fstat(handle).st_mode)  # the directory is synced too
        if place == "writing" and is_checkpoint and newest(directory) >= step:
            wait_for_the_kill(directory)
        sync(handle)

    def callback(now: int, state: object, info: object) -> None:
        if place == "stepping" and now > step:
            wait_for_the_kill(directory)

    os.fsync = fsync
    jax.config.update("jax_enable_x64", True)
    result = run(directory / "checkpoints", dtype, callback=callback)
    np.savez(directory / "writing.npz", *end_of(result))
    (directory / "writing.npz").rename(directory / "end.npz")


if __name__ == "__main__":
    main()
