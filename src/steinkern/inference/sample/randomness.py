"""Random numbers of a run, drawn by NumPy: compiling JAX's generators takes longer than most runs."""

from typing import Any

import jax
import jax.random as jr
import numpy as np

from ...core.types import Key
from ...samplers.hamiltonian import Hamiltonian, Noise, log_jitter


def generators(key: Key, number: int) -> list[np.random.Generator]:
    """`number` independent generators, which depend on the key alone."""
    words = np.asarray(jr.key_data(key)).ravel().tolist()
    return [np.random.default_rng(seed) for seed in np.random.SeedSequence(words).spawn(number)]


def even_noise(random: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Normal noise with sample mean 0 and, where n > d, with the identity as its sample covariance."""
    noise = random.standard_normal((n, d))
    left, sizes, right = np.linalg.svd(noise - noise.mean(axis=0), full_matrices=False)
    return np.asarray((left * (sizes > 1e-6 * sizes[0])) @ right * n**0.5)


def transition_noise(
    random: np.random.Generator, sampler: Hamiltonian, transitions: int, n: int, d: int, dtype: Any,
    max_halvings: float = 0.0,
) -> Noise:  # fmt: skip
    """The random numbers of `transitions` transitions of n chains in d dimensions, along a leading axis.

    The step size of all chains is halved up to `max_halvings` times, by a random factor in each transition. The
    trajectories of small steps are as long as others and have more leapfrog steps.
    """
    jumping = sampler.num_jumping(n)
    others = max(n - jumping, 2)
    order = random.permuted(np.tile(np.arange(n, dtype=np.int32), (transitions, 1)), axis=1)
    plus = random.integers(0, others, (transitions, jumping))
    minus = (plus + random.integers(1, others, (transitions, jumping))) % others  # another chain than `plus`
    pairs = [np.take_along_axis(order[:, jumping:], columns, axis=1) for columns in (plus, minus)]

    def uniform(*shape: int) -> np.ndarray:
        return random.random((transitions, *shape))

    with np.errstate(divide="ignore"):  # log 0: a jump that is always accepted
        log_acceptance = np.log(uniform(jumping))
    normal = random.standard_normal((transitions, n, d))
    jitter, length, factor = np.exp(log_jitter(uniform(n))), 0.5 + uniform(), 0.5 ** (max_halvings * uniform())
    floating = normal, length / factor, jitter * factor[:, None], uniform(n), log_acceptance
    momenta, length, jitter, acceptance, log_acceptance = (array.astype(dtype) for array in floating)
    rows = np.stack([order[:, :jumping], *pairs], axis=1)
    return Noise(*jax.device_put([momenta, length, jitter, acceptance, rows, log_acceptance]))
