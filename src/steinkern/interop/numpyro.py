"""NumPyro models as targets, with NumPyro's log density and maps between coordinates."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from ..core.extras import install_command
from ..core.particles import Layout
from ..core.programs import compiled_quickly
from ..core.reprs import one_line
from ..core.types import Batch, Key, Points, PyTree, Scalar, Vector, check_callable
from ..targets.checks import check_closed_over
from ._model import AbstractModelSpace, AbstractModelTarget, standard_promotion

try:
    import numpyro  # noqa: F401 (whether it is installed)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"`steinkern.interop.numpyro` needs NumPyro, which is not installed: {install_command('numpyro')}"
    ) from error

from numpyro import handlers
from numpyro.infer.util import constrain_fn, potential_energy

from ._numpyro_call import (
    ModelCall,
    Plates,
    Unobserved,
    as_argument,
    axis_names,
    bijection_of,
    check_sites,
    draw_sites,
    is_observation,
    trace_shapes,
)


def from_model(model: Any, *args: Any, **kwargs: Any) -> "NumPyroTarget":
    """The posterior of a NumPyro model that is called with these arguments.

    ```python
    target = steinkern.interop.numpyro.from_model(model, x, y)
    result = steinkern.fit(key, target, steinkern.svgd(), target.prior(prior_key, 100), num_steps=500)
    result.particles["scale"]                  # latent sites, in constrained coordinates
    target.sites(result.particles)["effect"]   # deterministic sites too
    ```

    Particles move in the unconstrained coordinates of NumPyro's samplers, log-Jacobians included; bounds may depend on
    other sites. For `plate(name, size, subsample_size=b)` in the model, each step of `fit` draws b new indices, with
    replacement and the same for all particles; NumPyro scales the plate's log-likelihood by size/b. What needs all data
    runs the plates in full: `sample`, `fit` without a sampler, `result.scores()`.

    Array arguments are arguments of the compiled step, so another target with data of the same shapes needs no
    compilation. A model that needs their values while it is traced (`len(np.unique(group))`) gets them as constants and
    is compiled for each data set.

    Args:
        model: a function with NumPyro's primitives, which may be wrapped by NumPyro's handlers.
        *args: arguments of the model.
        **kwargs: keyword arguments of the model.

    Raises:
        ValueError: the model has no latent sites, discrete ones, latent sites in a subsampled plate, or parameters
            (`numpyro.param`), which have no posterior.
    """
    check_callable("model", model, "a NumPyro model, a function of the arguments that follow it")
    check_closed_over(model)
    call = ModelCall(model, *jax.tree.map(as_argument, (args, kwargs)))
    try:
        hash(tuple(leaf for leaf in jax.tree.leaves(call) if not eqx.is_array(leaf)))
        free, sites, plates = trace_shapes(call)
    except TypeError:  # arguments that cannot be hashed, or whose values the model needs
        call = ModelCall(partial(model, *args, **kwargs), (), {})
        free, sites, plates = trace_shapes(call)
    check_sites(sites, plates)
    dtype = jnp.result_type(float)
    layout = Layout.of({name: jax.ShapeDtypeStruct(leaf.shape, dtype) for name, leaf in free.items()})
    shapes = tuple(tuple(jnp.shape(sites[name]["value"])) for name in layout.names)
    return NumPyroTarget(NumPyroSpace(layout, shapes, call), tuple((name, *sizes) for name, sizes in plates.items()))


class NumPyroSpace(AbstractModelSpace):
    """The unconstrained coordinates of NumPyro's samplers."""

    layout: Layout
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    call: ModelCall

    def constrain(self, vector: Vector) -> PyTree:
        free = self.layout.unravel(vector)
        with standard_promotion():
            values = constrain_fn(self.call.seeded(), self.call.args, self.call.kwargs, free)
        return {name: values[name].astype(vector.dtype) for name in free}

    def unconstrain(self, particle: PyTree) -> Vector:
        trace = self.call.at(particle)
        with standard_promotion():
            free = {
                name: bijection_of(trace[name]).inv(value).astype(self.layout.dtype) for name, value in particle.items()
            }
        return self.layout.ravel(free)

    def log_jacobian(self, vector: Vector) -> Scalar:
        free = self.layout.unravel(vector)
        trace = self.call.at(self.constrain(vector))
        total = jnp.zeros((), vector.dtype)
        with standard_promotion():
            for name, value in free.items():
                log_det = bijection_of(trace[name]).log_abs_det_jacobian(value, trace[name]["value"])
                total = total + jnp.sum(log_det).astype(vector.dtype)
        return total

    def inside(self, particles: PyTree) -> dict[str, Any]:
        return _inside(self.call, particles)


class NumPyroTarget(AbstractModelTarget):
    """The posterior of a NumPyro model, from `from_model`."""

    space: NumPyroSpace
    plates: tuple[tuple[str, int, int], ...] = eqx.field(static=True)
    """Name, size and subsample size of every plate that the model subsamples."""

    def __repr__(self) -> str:
        """The model's call; the sites and their shapes follow from it."""
        call = self.space.call
        named = (f"{name}={one_line(value)}" for name, value in call.kwargs.items())
        return f"NumPyroTarget({one_line(call.model)}({', '.join([*map(one_line, call.args), *named])}))"

    def log_joint(self, vector: Vector, batch: Batch) -> Scalar:
        call, free = self.space.call, self.space.layout.unravel(vector)
        with standard_promotion():
            return -potential_energy(call.seeded(batch=batch), call.args, call.kwargs, free).astype(vector.dtype)

    def batch(self, data: Batch, batch_size: int | None, key: Key | None = None) -> Batch:
        if not self.plates:
            return None
        keys = [None] * len(self.plates) if key is None else list(jr.split(key, len(self.plates)))
        return {
            name: jnp.arange(rows) if plate_key is None else jr.randint(plate_key, (rows,), 0, size)
            for (name, size, rows), plate_key in zip(self.plates, keys, strict=True)
        }

    def sampled_rows(self, data: Batch, batch_size: int | None) -> dict[str, tuple[int, int]]:
        return {name: (size, rows) for name, size, rows in self.plates}

    def batch_of(self, data: Batch, rows: dict[str, Array]) -> Batch:
        return rows

    def on_all_rows(self) -> "NumPyroTarget":
        return NumPyroTarget(self.space, ())

    def draw_prior(self, key: Key, num_particles: int) -> dict[str, Array]:
        """Independent draws of the latent sites from the model's prior.

        Sites with an improper prior are drawn uniformly from (−2, 2) in unconstrained coordinates, as NumPyro
        initialises its chains.
        """
        return _prior(self, key, num_particles)

    def sites(self, particles: PyTree) -> dict[str, Array]:
        """The latent and the deterministic sites at a batch of particles, plates in full."""
        return _sites(self, particles)

    def observed(self) -> dict[str, Array]:
        return _observed(self.space.call)

    def dims(self) -> dict[str, tuple[str | None, ...]]:
        """The names of the sites' axes: those of their plates, and of `infer={"event_dims": [...]}`."""
        return axis_names(trace_shapes(self.space.call)[1])

    def log_likelihoods(self, points: Points) -> dict[str, Array]:
        """The log-likelihood of every observation, plates in full, without the scale of a subsampled plate."""

        def one(vector: Vector) -> dict[str, Array]:
            trace = self.space.call.at(self.space.constrain(vector))
            sites = {name: site for name, site in trace.items() if is_observation(site)}
            with standard_promotion():
                return {name: jnp.asarray(site["fn"].log_prob(site["value"])) for name, site in sites.items()}

        return jax.lax.map(one, points)

    def predictive(self, key: Key, particles: PyTree) -> dict[str, Array]:
        """One draw of every observed site for each particle, plates in full."""
        return _predictive(self, key, particles)


@compiled_quickly
def _prior(target: NumPyroTarget, key: Key, num_particles: int) -> dict[str, Array]:
    layout = target.space.layout

    def draw(key: Key) -> dict[str, Array]:
        trace = draw_sites(target.space.call, key)
        return {name: trace[name]["value"].astype(layout.dtype) for name in layout.names}

    return jax.vmap(draw)(jr.split(key, num_particles))


@compiled_quickly
def _sites(target: NumPyroTarget, particles: PyTree) -> dict[str, Array]:
    def one(particle: PyTree) -> dict[str, Array]:
        trace = target.space.call.at(particle)
        derived = {name: site["value"] for name, site in trace.items() if site["type"] == "deterministic"}
        return {**particle, **jax.tree.map(jnp.asarray, derived)}

    return jax.vmap(one)(particles)


@compiled_quickly
def _observed(call: ModelCall) -> dict[str, Array]:
    sites = draw_sites(call, 0)
    return {name: jnp.asarray(site["value"]) for name, site in sites.items() if is_observation(site)}


@compiled_quickly
def _predictive(target: NumPyroTarget, key: Key, particles: PyTree) -> dict[str, Array]:
    call = target.space.call

    def one(key: Key, particle: PyTree) -> dict[str, Array]:
        model = Unobserved(Plates(call.model, None))
        trace = call.trace(handlers.substitute(handlers.seed(model, key), data=particle))
        return {name: trace[name]["value"] for name in model.names}

    return jax.vmap(one)(jr.split(key, len(jax.tree.leaves(particles)[0])), particles)


@compiled_quickly
def _inside(call: ModelCall, particles: PyTree) -> dict[str, Array]:
    """Whether all values of each site lie in its support."""

    def one(particle: PyTree) -> dict[str, Array]:
        trace = call.at(particle)
        with standard_promotion():
            return {name: jnp.all(trace[name]["fn"].support(value)) for name, value in particle.items()}

    return {name: jnp.all(inside) for name, inside in jax.vmap(one)(particles).items()}
