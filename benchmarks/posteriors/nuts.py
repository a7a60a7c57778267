"""NumPyro's NUTS on a plain log density, with its gradient evaluations counted."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import NUTS

CHUNK = 100  # iterations of one compiled call


class Chains:
    """Chains of one kernel, compiled once for a length of the warm-up.

    Args:
        log_density: of one vector.
        num_warmup: iterations in which step size and mass matrix are adapted.
        options: for `numpyro.infer.NUTS`; its defaults otherwise (a diagonal mass matrix, acceptance 0.8).
    """

    def __init__(self, log_density: Callable[[Any], Any], num_warmup: int, **options: Any):
        self.num_warmup = num_warmup
        self.kernel = NUTS(potential_fn=lambda x: -log_density(x), **options)
        self._steps = jax.jit(self._chunk)

    def _chunk(self, state: Any) -> Any:
        def step(state: Any, _: None) -> Any:
            state = self.kernel.sample(state, (), {})
            return state, (state.z, state.num_steps)

        return jax.lax.scan(step, state, length=CHUNK)

    def run(self, key: Any, start: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Points and numbers of leapfrog steps (a gradient each), `CHUNK` iterations at a time, warm-up included."""
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # inside NumPyro
            state = self.kernel.init(key, self.num_warmup, jnp.asarray(start))
            while True:
                state, (points, steps) = self._steps(state)
                yield np.asarray(points), np.asarray(steps)

    def take(self, key: Any, start: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The first `count` points and numbers of steps; whole chunks."""
        points, steps = zip(*islice(self.run(key, start), count // CHUNK), strict=True)
        return np.concatenate(points), np.concatenate(steps)
