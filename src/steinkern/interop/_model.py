"""The base of targets made from another library's model: named sites, with the library's log density."""

import abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float

from ..core.arrays import as_concrete_key
from ..core.programs import compiled
from ..core.types import Batch, Key, KeyLike, PyTree, Scalar, Vector, check_count
from ..targets.supports import AbstractSpace
from ..targets.target import AbstractTarget

_ATTEMPTS = 100  # draws of an initial particle


@contextmanager
def relaxed() -> Iterator[None]:
    """JAX's standard promotion of dtypes and ranks, on which the other libraries rely, whatever the caller has set."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class AbstractModelSpace(AbstractSpace):
    """The unconstrained coordinates of a model's latent sites."""

    shapes: eqx.AbstractVar[tuple[tuple[int, ...], ...]]
    """The shape of every site in constrained coordinates, in the order of `layout.names`."""


class AbstractModelTarget(AbstractTarget):
    """The posterior of another library's model, in the model's unconstrained coordinates.

    A particle is a dictionary of the model's latent sites in constrained coordinates. The model holds its data, so
    `fit` gets none.
    """

    space: eqx.AbstractVar[AbstractModelSpace]

    @abc.abstractmethod
    def log_joint(self, vector: Vector, batch: Batch) -> Scalar:
        """The log density of latent and observed sites at an unconstrained vector, log-Jacobian included."""

    @abc.abstractmethod
    def draw_prior(self, key: Key, num_particles: int) -> dict[str, Array]:
        """Independent draws of the latent sites from the model's prior."""

    @property
    def has_prior(self) -> bool:
        return True

    def prior(self, key: KeyLike, num_particles: int) -> dict[str, Array]:
        """Initial particles for `fit`: independent draws of the latent sites from the model's prior.

        A draw is repeated where the posterior density or its gradient is not finite, for example so far in a tail that
        a probability rounds to 0.
        """
        check_count("num_particles", num_particles)
        key = as_concrete_key(key)
        particles = self.draw_prior(jr.fold_in(key, 0), num_particles)
        for attempt in range(1, _ATTEMPTS + 1):
            usable = _usable(self, particles)
            if bool(jnp.all(usable)):
                return particles
            if attempt == _ATTEMPTS:
                break
            others = self.draw_prior(jr.fold_in(key, attempt), num_particles)
            particles = jax.tree.map(  # calls the function at once, so `usable` is that of this iteration
                lambda old, new: jnp.where(usable.reshape(-1, *[1] * (old.ndim - 1)), old, new),  # noqa: B023 (see above)
                particles,
                others,
            )
        raise ValueError(
            f"`model` has no start: after {_ATTEMPTS} draws from its prior the log density or its gradient is not "
            f"finite at {int(jnp.sum(~usable))} of {num_particles} particles. See that the data lie "
            "in the support of their distributions, or give first particles of your own to `fit`."
        )

    @property
    def exchangeable(self) -> bool:
        return False

    def log_base(self, vector: Vector) -> Scalar:
        return jnp.zeros((), vector.dtype)  # `log_joint` already holds the prior and the Jacobian

    def log_example(self, vector: Vector, example: PyTree) -> Scalar:
        return self.log_joint(vector, example)

    def over_examples(self, function: Callable[[PyTree], Array], batch: Batch) -> Float[Array, "b ..."]:
        return function(batch)[None]

    def num_data_in(self, batch: Batch) -> Any:
        return 1.0

    def data_scale(self, batch: Batch, dtype: Any) -> Scalar:
        return jnp.ones((), dtype)

    def check_data(self, data: Batch, batch_size: int | None) -> None:
        if data is not None:
            raise ValueError("`data` must be left out: the model was given its data by `from_model`.")
        if batch_size is not None:
            raise ValueError(
                f"`batch_size` is {batch_size}, but a model chooses its own minibatches: in NumPyro write "
                "`plate(name, size, subsample_size=...)`."
            )

    def bind(self, particle: PyTree) -> "AbstractModelTarget":
        """Check that `particle` holds the model's latent sites, and return the target itself."""
        names = set(self.space.layout.names)
        if not isinstance(particle, dict) or set(particle) != names:
            given = sorted(map(str, particle)) if isinstance(particle, dict) else type(particle).__name__
            raise ValueError(
                f"a particle must be a dictionary of the model's latent sites {sorted(names)}, got {given}. "
                "`target.prior(key, num_particles)` draws some."
            )
        shapes = dict(zip(self.space.layout.names, self.space.shapes, strict=True))
        wrong = {name: np.shape(particle[name]) for name in sorted(names) if np.shape(particle[name]) != shapes[name]}
        if wrong:
            expected = {name: shapes[name] for name in wrong}
            raise ValueError(f"`particles` must have sites of shapes {expected}, got {wrong} a particle.")
        return self


@compiled
def _usable(target: AbstractModelTarget, particles: PyTree) -> Bool[Array, " n"]:
    """A mask of the particles whose log density and gradient on the first batch are finite."""
    batch = target.batch(None, None)

    def one(particle: PyTree) -> Array:
        vector = target.space.unconstrain(particle)
        value, score = jax.value_and_grad(target.log_density)(vector, batch)
        return jnp.isfinite(value) & jnp.all(jnp.isfinite(score)) & jnp.all(jnp.isfinite(vector))

    return jax.vmap(one)(particles)
