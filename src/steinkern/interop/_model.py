"""The base of targets made from another library's model: named sites, with the library's log density."""

import abc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool

from ..core.arrays import as_concrete_key
from ..core.programs import compiled_quickly
from ..core.types import Batch, Key, KeyLike, Points, PyTree, Scalar, Vector, check_count
from ..targets.supports import AbstractSpace
from ..targets.target import AbstractTarget, BoundTarget, as_target

_ATTEMPTS = 100
"""The most draws of an initial particle."""


@contextmanager
def standard_promotion() -> Iterator[None]:
    """JAX's standard promotion of dtypes and ranks, on which the other libraries rely, whatever the caller has set."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class AbstractModelSpace(AbstractSpace):
    """The unconstrained coordinates of a model's latent sites."""

    shapes: eqx.AbstractVar[tuple[tuple[int, ...], ...]]
    """The shape of every site in constrained coordinates, in the order of `layout.names`."""

    @abc.abstractmethod
    def inside(self, particles: PyTree) -> dict[str, Any]:
        """For every site, whether all its values lie in its support."""

    def survives_round_trip(self, particles: PyTree) -> dict[str, Any]:
        """For every site, whether unconstrained coordinates give back its values, up to half of the digits or 1e-6."""
        again = jax.vmap(lambda particle: self.constrain(self.unconstrain(particle)))(particles)
        tolerance = max(float(jnp.finfo(self.layout.dtype).eps) ** 0.5, 1e-6)  # values may have been rounded to float32
        return {name: jnp.allclose(again[name], particles[name], tolerance, tolerance) for name in self.layout.names}

    def check(self, particles: PyTree, argument: str = "particles") -> None:
        outside = [name for name, inside in self.inside(particles).items() if not inside]
        if outside:  # by more than rounding?
            returned = self.survives_round_trip(particles)
            outside = [name for name in outside if not returned[name]]
        if outside:
            raise ValueError(
                f"`{argument}` must lie inside their support; {', '.join(outside)} has values outside what the model "
                "allows. Give them in constrained coordinates."
            )


class AbstractModelTarget(AbstractTarget):
    """The posterior of another library's model, in the model's unconstrained coordinates.

    A particle is a dictionary of the model's latent sites in constrained coordinates. The model holds its data, so
    `fit` gets none.
    """

    space: eqx.AbstractVar[AbstractModelSpace]
    support: PyTree = eqx.field(default=None, kw_only=True)
    shared: PyTree = eqx.field(default=None, kw_only=True)

    @abc.abstractmethod
    def log_joint(self, vector: Vector, batch: Batch) -> Scalar:
        """The log density of latent and observed sites at an unconstrained vector, log-Jacobian included."""

    @abc.abstractmethod
    def sites(self, particles: PyTree) -> dict[str, Array]:
        """The latent and the deterministic sites at a batch of particles."""

    @abc.abstractmethod
    def observed(self) -> dict[str, Array]:
        """The observations by name."""

    @abc.abstractmethod
    def predictive(self, key: Key, particles: PyTree) -> dict[str, Array]:
        """One posterior predictive draw of every observation for each particle."""

    @abc.abstractmethod
    def dims(self) -> dict[str, tuple[str | None, ...]]:
        """The names of the axes of the sites and observations, `None` for an axis without a name; see `to_arviz`."""

    @abc.abstractmethod
    def log_likelihoods(self, points: Points) -> dict[str, Array]:
        """The log-likelihood of every observation at every particle, by the name of the observations.

        The arrays have axes (particle, …observation).
        """

    def coords(self) -> dict[str, Any]:
        """The labels along the named axes of `dims`."""
        return {}

    @abc.abstractmethod
    def draw_prior(self, key: Key, num_particles: int) -> dict[str, Array]:
        """Independent draws of the latent sites from the model's prior."""

    def prior(self, key: KeyLike, num_particles: int) -> dict[str, Array]:
        """Initial particles for `fit`: independent draws of the latent sites from the model's prior.

        A draw is repeated where the posterior density or its gradient is not finite, for example so far in a tail that
        a probability rounds to 0.
        """
        check_count("num_particles", num_particles)
        key = as_concrete_key(key)
        particles, usable = None, np.zeros(num_particles, bool)

        def choose(old: Array, new: Array) -> np.ndarray:
            return np.where(usable.reshape(-1, *[1] * (old.ndim - 1)), old, new)

        for attempt in range(_ATTEMPTS):
            draws = self.draw_prior(jr.fold_in(key, attempt), num_particles)
            particles = draws if particles is None else jax.device_put(jax.tree.map(choose, particles, draws))
            usable |= np.asarray(usable_at(self, draws))
            if usable.all():
                return particles
        raise ValueError(_describe_no_start(int(np.sum(~usable)), num_particles))

    def prior_draws(self, key: Key) -> Iterator[dict[str, np.ndarray]]:
        """Single draws from the prior for a caller who checks them, as many as `prior` tries."""
        for attempt in range(_ATTEMPTS):
            draws = self.draw_prior(jr.fold_in(key, attempt), 1)
            yield {name: np.asarray(np.asarray(value)[0]) for name, value in draws.items()}
        raise ValueError(_describe_no_start(1, 1))

    def log_base(self, bound: BoundTarget, vector: Vector) -> Scalar:
        return jnp.zeros((), vector.dtype)  # `log_joint` already holds the prior and the Jacobian

    def log_example(self, bound: BoundTarget, vector: Vector, example: PyTree) -> Scalar:
        return self.log_joint(vector, example)

    def check_data(self, data: Batch, batch_size: int | None) -> None:
        if data is not None:
            raise ValueError("`data` must be left out: the model got its data by `from_model`.")
        if batch_size is not None:
            raise ValueError(
                f"`batch_size` is {batch_size}, but a model chooses its own minibatches: in NumPyro write "
                "`plate(name, size, subsample_size=...)`, and give `fit` a sampler."
            )

    def bind(self, particle: PyTree) -> BoundTarget:
        """Check that `particle` holds the model's latent sites, and bind to the model's space."""
        names = sorted(self.space.layout.names)
        got = sorted(map(str, particle)) if isinstance(particle, dict) else type(particle).__name__
        if got != names:
            raise ValueError(
                f"a particle must be a dictionary of the model's latent sites {names}, got {got}. "
                "`target.prior(key, num_particles)` draws some."
            )
        shapes = dict(zip(self.space.layout.names, self.space.shapes, strict=True))
        wrong = {name: np.shape(particle[name]) for name in names if np.shape(particle[name]) != shapes[name]}
        if wrong:
            expected = {name: shapes[name] for name in wrong}
            raise ValueError(f"`particles` must have, per particle, sites of shapes {expected}, got {wrong}.")
        return BoundTarget(self, self.space)


def model_of(target: AbstractTarget) -> AbstractModelTarget | None:
    """The target as another library's model; `None` for any other target."""
    return target if isinstance(target, AbstractModelTarget) else None


def as_target_or_model(target: Any) -> AbstractTarget:
    """A target as for `fit`, or the posterior of a NumPyro model that needs no arguments."""
    if str(type(target).__module__).partition(".")[0] == "pymc":
        raise ValueError("`target` is a model, not a log density: give `steinkern.interop.pymc.from_model(model)`.")
    if "numpyro" in sys.modules and not isinstance(target, AbstractTarget):
        from ._numpyro_call import is_model
        from .numpyro import from_model

        target = from_model(target) if is_model(target) else target
    return as_target(target)


def _describe_no_start(bad: int, num_particles: int) -> str:
    return (
        f"`model` has no start: after {_ATTEMPTS} draws from its prior the log density or its gradient is not finite "
        f"at {bad} of {num_particles} particles. Check that the data lie in the support of their distributions, or "
        "give initial particles to `fit`."
    )


@compiled_quickly
def usable_at(target: AbstractModelTarget, particles: PyTree) -> Bool[Array, " n"]:
    """Whether the log density and its gradient are finite at each particle, on the first batch."""
    bound = BoundTarget(target, target.space)
    batch = target.batch(None, None)

    def one(particle: PyTree) -> Array:
        vector = bound.space.unconstrain(particle)
        value, score = jax.value_and_grad(bound.log_density)(vector, batch)
        return jnp.isfinite(value) & jnp.all(jnp.isfinite(score)) & jnp.all(jnp.isfinite(vector))

    return jax.vmap(one)(particles)
