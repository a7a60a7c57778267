"""The methods: `fit` without a sampler, SGLD, pSGLD, a mean-field Gaussian by Adam, and SVGD."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk

from .posteriors import Posterior

PARTICLES, RECORDS = 100, 40
STEP_SIZES: dict[str, tuple[float, ...]] = {
    "sgld": (0.03, 0.1, 0.3, 1.0),
    "psgld": (0.003, 0.01, 0.03, 0.1),
    "svi": (1e-3, 3e-3, 1e-2, 3e-2),
    "svgd": (0.01, 0.03, 0.1, 0.3),
}
METHODS = ("stein", *STEP_SIZES)


@dataclass(frozen=True)
class Outcome:
    """Means and standard deviations after several numbers of epochs; the last ones are the answer."""

    epochs: np.ndarray
    means: np.ndarray
    sds: np.ndarray
    warned: bool = False

    def errors(self, reference: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """The largest errors of means and of standard deviations, at every record; infinite where not finite."""
        sd = np.asarray(reference["sd"])
        found = np.max(np.abs(self.means - reference["mean"]) / sd, axis=1), np.max(np.abs(self.sds / sd - 1), axis=1)
        return tuple(np.where(np.isfinite(error), error, np.inf) for error in found)


def langevin_step(method: str, size: float, posterior: Posterior, batch_size: int) -> float:
    """The step size of SGLD or pSGLD: 1/N for the curvature, and smaller where the noise of small batches asks for it.

    The noise of the gradient adds about ε N/b to the temperature of 1, so ε N is kept below 10 b/N. Columns of other
    scales change the curvature by the scale squared, and pSGLD's preconditioner takes back one of the two.
    """
    scale = posterior.largest_scale ** (2 if method == "sgld" else 1)
    return size / scale / posterior.rows * min(1.0, 10 * batch_size / posterior.rows)


def _moments(recorded: np.ndarray, averaged: bool) -> tuple[np.ndarray, np.ndarray]:
    """Of the particles at every record (records, n, d); of chains over the second half of the records until then."""
    means, sds = [], []
    for place in range(len(recorded)):
        first = (place + 1) // 2 if averaged else place
        draws = recorded[first : place + 1].reshape(-1, recorded.shape[2])
        means.append(draws.mean(axis=0))
        sds.append(draws.std(axis=0))
    return np.stack(means), np.stack(sds)


def stein(posterior: Posterior, batch_size: int, seed: int) -> Outcome:
    """`fit` without a sampler: its particles, and all its epochs, those of the checks included."""
    result = sk.fit(
        jr.key(seed), posterior.target, data=posterior.data, start=jnp.zeros(posterior.dim), num_particles=PARTICLES,
        batch_size=batch_size, progress=False, throw=False,
    )  # fmt: skip
    points = np.asarray(result.points, np.float64)
    means, sds = _moments(points[None], averaged=False)
    return Outcome(np.array([result.settings["cost"]["epochs"]]), means, sds, bool(result.warnings))


def by_fit(method: str, size: float, posterior: Posterior, batch_size: int, epochs: float, seed: int) -> Outcome:
    """SGLD, pSGLD or SVGD from N(0, I). The chains of the first two are averaged over time too, as they are used."""
    steps = max(int(epochs * posterior.rows / batch_size), 1)
    if method == "svgd":
        sampler: Any = sk.svgd(optimiser=size)
    else:
        sampler = (sk.sgld if method == "sgld" else sk.psgld)(langevin_step(method, size, posterior, batch_size))
    result = sk.fit(
        jr.key(seed), posterior.target, sampler, jr.normal(jr.key(7 + seed), (PARTICLES, posterior.dim)),
        posterior.data, num_steps=steps, batch_size=batch_size, record_every=max(steps // RECORDS, 1),
        record_particles=True, progress=False, throw=False,
    )  # fmt: skip
    means, sds = _moments(np.asarray(result.history.particles, np.float64), averaged=method != "svgd")
    return Outcome(_epochs(result.history.step, posterior, batch_size), means, sds, bool(result.warnings))


def svi(size: float, posterior: Posterior, batch_size: int, epochs: float, seed: int) -> Outcome:
    """NumPyro's SVI with Adam on a mean-field Gaussian."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    bound, key = posterior.target.bind(np.zeros(posterior.dim)), jr.key(seed)

    def model(batch: Any) -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), (posterior.dim,)))
        numpyro.factor("density", bound.log_density(x, batch))

    guide = AutoNormal(model, init_loc_fn=numpyro.infer.init_to_value(values={"x": jnp.zeros(posterior.dim)}))
    inference = SVI(model, guide, numpyro.optim.Adam(size), Trace_ELBO())
    data = jax.tree.map(jnp.asarray, posterior.data)
    steps = max(int(epochs * posterior.rows / batch_size), 1)
    chunk = max(steps // RECORDS, 1)

    @jax.jit
    def advance(state: Any, key: Any, data: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            return inference.update(state, bound.batch(data, batch_size, key))[0], None

        return jax.lax.scan(step, state, jr.split(key, chunk))[0]

    means, sds = [], []
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        state = inference.init(key, bound.batch(data, batch_size, key))
        for turn in range(steps // chunk):
            state = advance(state, jr.fold_in(key, turn), data)
            found = inference.get_params(state)
            means.append(np.asarray(found["x_auto_loc"], np.float64))
            sds.append(np.asarray(found["x_auto_scale"], np.float64))
    taken = (1 + np.arange(len(means))) * chunk
    return Outcome(_epochs(taken, posterior, batch_size), np.stack(means), np.stack(sds))


def run_method(
    method: str, size: float | None, posterior: Posterior, batch_size: int, epochs: float, seed: int
) -> Outcome:
    """One run; `size` is of no use to `stein`."""
    if method == "stein":
        return stein(posterior, batch_size, seed)
    assert size is not None
    if method == "svi":
        return svi(size, posterior, batch_size, epochs, seed)
    return by_fit(method, size, posterior, batch_size, epochs, seed)


def _epochs(steps: Any, posterior: Posterior, batch_size: int) -> Any:
    return steps * batch_size / posterior.rows
