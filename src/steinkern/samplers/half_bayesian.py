"""Half-Bayesian fits: some parameters are particles, the others are point estimates that all particles share."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ..core.types import Batch, Key, Points, PyTree
from ..targets.target import BoundTarget
from .sampler import AbstractSampler, Info, Traits, target_at
from .stein import as_optimizer


class HalfBayesianState(NamedTuple):
    """The inner sampler's state, the shared parameters, and the state of their optimizer."""

    inner: Any
    shared: PyTree
    optimizer: Any

    @property
    def points(self) -> Any:
        """The particles, (n, d)."""
        return self.inner.points


class HalfBayesian(AbstractSampler):
    """Moves the particles by any sampler, and the shared parameters along the gradient of the mean log density.

    With shared parameters v and particles x_1 … x_n a step is

        x_i ← a step of the inner sampler on x ↦ log p(x, v),
        v   ← v + ε (1/n) Σ_i ∇_v log p(x_i, v),

    both from the same x and v. Wang et al. (2019) train the recurrent networks of their sentence classification in this
    way: the output weights are particles, and all layers below are shared.

    Args:
        sampler: the sampler of the particles.
        optimizer: an optax optimizer of the shared parameters, or a number for Adagrad with that learning rate. Its
            gradients are of the log density at full-data scale: for rules that do not rescale, such as plain SGD,
            divide the learning rate by the number of data. Floating-point arrays among the shared leaves are trained,
            without constraints; functions, integers and Python numbers stay fixed.
    """

    sampler: AbstractSampler
    optimizer: optax.GradientTransformation

    def init(self, target: BoundTarget, points: Points, batch: Batch = None) -> HalfBayesianState:
        if target.shared is None:
            raise ValueError(
                "`half_bayesian` needs a target with shared parameters: separate them with `steinkern.split` and "
                "pass `shared=` to the target."
            )
        shared = _trainable(target.shared)
        return HalfBayesianState(self.sampler.init(target, points, batch), shared, self.optimizer.init(shared))

    def step(
        self, key: Key, state: HalfBayesianState, target: BoundTarget, batch: Batch = None
    ) -> tuple[HalfBayesianState, Info]:
        inner, info = self.sampler.step(key, state.inner, target_at(state, target), batch)

        def mean_log_density(shared: PyTree) -> Any:
            return jnp.mean(target_at(state._replace(shared=shared), target).log_densities(state.points, batch))

        gradient = jax.grad(mean_log_density)(state.shared)
        with jax.numpy_dtype_promotion("standard"):  # some step rules mix integers and floats
            updates, optimizer = self.optimizer.update(
                jax.tree.map(jnp.negative, gradient), state.optimizer, state.shared
            )
            shared = optax.apply_updates(state.shared, updates)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(shared)]))
        # A NaN norm marks a step to shared parameters that are not finite, which recovery rejects.
        norm = jnp.where(finite, info.velocity_norm, jnp.nan)
        # Particles at rest do not end a run, in which the shared parameters may still move.
        return HalfBayesianState(inner, shared, optimizer), info._replace(velocity_norm=norm, at_rest=None)

    def damped(self, factor: float) -> "HalfBayesian | None":
        sampler = self.sampler.damped(factor)
        return None if sampler is None else HalfBayesian(sampler, self.optimizer)

    @property
    def traits(self) -> Traits:
        # The shared parameters may still move after the particles have converged.
        return self.sampler.traits._replace(deterministic=False)


def _trainable(shared: PyTree) -> PyTree:
    """The floating-point arrays among the shared leaves, which are trained; the other leaves become `None`."""
    arrays = eqx.filter(shared, eqx.is_inexact_array)
    if not jax.tree.leaves(arrays):
        raise ValueError("`shared` must hold at least one floating-point array to train, got none.")
    return arrays


def half_bayesian(sampler: Any, optimizer: Any = None) -> HalfBayesian:
    """A sampler that also trains the parameters that the particles share; see `HalfBayesian` for the arguments.

    The optimizer is Adagrad with a learning rate of 0.3 by default.

    With any other sampler a target's shared parameters stay fixed, as for a Bayesian last layer on a trained network.
    """
    if not isinstance(sampler, AbstractSampler) or isinstance(sampler, HalfBayesian):
        raise ValueError(f"`sampler` must be a sampler such as `steinkern.svgd()`, got {sampler!r}.")
    return HalfBayesian(sampler, as_optimizer(optimizer))
