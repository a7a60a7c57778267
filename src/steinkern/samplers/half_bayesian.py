"""Half-Bayesian fits: some parameters are particles, the others are point estimates that all particles share."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ..core.keywords import helpful_keywords
from ..core.types import Batch, Key, Points, PyTree
from ..kernels.matrix import AbstractMatrixKernel
from ..targets.target import AbstractTarget
from .sampler import AbstractSampler, Info
from .stein import as_optimiser


class HalfBayesianState(NamedTuple):
    """The inner sampler's state, the shared parameters, and the state of their optimiser."""

    inner: Any
    shared: PyTree
    optimiser: Any

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
        optimiser: an optax optimiser of the shared parameters, or a number for Adagrad with that learning rate. Its
            gradients are of the log density at full-data scale: for rules that do not rescale, such as plain SGD,
            divide the learning rate by the number of data. Floating-point arrays among the shared leaves are trained,
            without constraints; functions, integers and Python numbers stay fixed.
    """

    sampler: AbstractSampler
    optimiser: optax.GradientTransformation

    def init(self, target: AbstractTarget, points: Points, batch: Batch = None) -> HalfBayesianState:
        if target.shared is None:
            raise ValueError(
                "`half_bayesian` needs a target with shared parameters: take them apart with `steinkern.split` and "
                "give `shared=` to the target."
            )
        shared = _trainable(target.shared)
        return HalfBayesianState(self.sampler.init(target, points, batch), shared, self.optimiser.init(shared))

    def step(
        self, key: Key, state: HalfBayesianState, target: AbstractTarget, batch: Batch = None
    ) -> tuple[HalfBayesianState, Info]:
        inner, info = self.sampler.step(key, state.inner, self.target_at(state, target), batch)

        def mean_log_density(shared: PyTree) -> Any:
            now = self.target_at(state._replace(shared=shared), target)
            return jnp.mean(now.log_densities(state.points, batch))

        gradient = jax.grad(mean_log_density)(state.shared)
        with jax.numpy_dtype_promotion("standard"):  # some step rules mix integers and floats
            updates, optimiser = self.optimiser.update(
                jax.tree.map(jnp.negative, gradient), state.optimiser, state.shared
            )
            shared = optax.apply_updates(state.shared, updates)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(shared)]))
        # A NaN norm marks a step to shared parameters that are not finite, so that recovery rejects it.
        norm = jnp.where(finite, info.velocity_norm, jnp.nan)
        return HalfBayesianState(inner, shared, optimiser), info._replace(velocity_norm=norm)

    def target_at(self, state: HalfBayesianState, target: AbstractTarget) -> AbstractTarget:
        return target.sharing(eqx.combine(state.shared, target.shared))

    def check(self, points: Points) -> None:
        self.sampler.check(points)

    @property
    def may_decouple(self) -> bool:
        return self.sampler.may_decouple

    def coupling(
        self, state: HalfBayesianState, target: AbstractTarget, batch: Batch = None
    ) -> AbstractMatrixKernel | None:
        return self.sampler.coupling(state.inner, self.target_at(state, target), batch)

    def damped(self, factor: float) -> "HalfBayesian | None":
        sampler = self.sampler.damped(factor)
        return None if sampler is None else HalfBayesian(sampler, self.optimiser)

    @property
    def interacting(self) -> bool:
        return self.sampler.interacting

    @property
    def samples_target(self) -> bool:
        return self.sampler.samples_target

    @property
    def deterministic(self) -> bool:
        return False  # the shared parameters may still move after the particles have converged


def _trainable(shared: PyTree) -> PyTree:
    """The floating-point arrays among the shared leaves, which are trained; the other leaves become `None`."""
    arrays = eqx.filter(shared, eqx.is_inexact_array)
    if not jax.tree.leaves(arrays):
        raise ValueError("`shared` must hold at least one floating-point array to train, got none.")
    return arrays


@helpful_keywords
def half_bayesian(sampler: Any, optimiser: Any = None) -> HalfBayesian:
    """A sampler that also trains the parameters that the particles share; see `HalfBayesian` for the arguments.

    The optimiser is Adagrad with a learning rate of 0.3 by default.

    With any other sampler a target's shared parameters stay fixed, as for a Bayesian last layer on a trained network.
    """
    if not isinstance(sampler, AbstractSampler) or isinstance(sampler, HalfBayesian):
        raise ValueError(f"`sampler` must be a sampler such as `steinkern.svgd()`, got {sampler!r}.")
    return HalfBayesian(sampler, as_optimiser(optimiser))
