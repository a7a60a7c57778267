"""Targets: log densities of parameter pytrees, as functions of an unconstrained vector.

Every method takes the data as an argument, so that new data of the same shape need no recompilation.
"""

import abc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ..core.particles import merge
from ..core.reprs import OneLine
from ..core.types import (
    Batch,
    Key,
    KeyLike,
    Points,
    PyTree,
    Scalar,
    Vector,
    as_number,
    cast_like,
    check_arguments,
    check_callable,
    check_positive,
    is_concrete,
    is_real_number,
)
from .checks import batch_length, check_closed_over, scalar_result
from .supports import AbstractSpace, Space

Target = TypeVar("Target", bound="AbstractTarget")


class AbstractTarget(OneLine):
    """log p(x) = power × [ log base(x) + (N/b) Σ_batch log-likelihood(x, example) ], up to a constant.

    `base` is the prior times the Jacobian of the constraints. `power` is the tempering exponent, 1 unless a schedule
    sets it; it tempers the density of the unconstrained x, Jacobian included. The factor N/b that makes minibatches
    unbiased is applied here and nowhere else.
    """

    space: eqx.AbstractVar[AbstractSpace | None]
    power: eqx.AbstractVar[Any]
    support: eqx.AbstractVar[PyTree]
    shared: eqx.AbstractVar[PyTree]

    @property
    @abc.abstractmethod
    def exchangeable(self) -> bool:
        """Whether the log-likelihood is a sum over examples, so that single examples have gradients."""

    @abc.abstractmethod
    def log_base(self, vector: Vector) -> Scalar:
        """Log prior plus log-Jacobian of the constraints."""

    @abc.abstractmethod
    def log_example(self, vector: Vector, example: PyTree) -> Scalar:
        """The log-likelihood of one example."""

    @abc.abstractmethod
    def over_examples(self, function: Callable[[PyTree], Array], batch: Batch) -> Float[Array, "b ..."]:
        """`function(example)` for every example of the batch, stacked."""

    @abc.abstractmethod
    def num_data_in(self, batch: Batch) -> Any:
        """N, the number of examples in the full data of which `batch` is a sample."""

    @abc.abstractmethod
    def check_data(self, data: Batch, batch_size: int | None) -> None:
        """Raise `ValueError` if the data do not fit this target."""

    def batch(self, data: Batch, batch_size: int | None, key: Key | None = None) -> Batch:
        """The data of one step: all of them, or `batch_size` examples drawn with replacement on the data's device.

        Without a key, the first `batch_size` examples.
        """
        if batch_size is None or data is None:
            return data
        # The default integer dtype depends on x64, and another dtype gives other examples.
        rows = jnp.arange(batch_size) if key is None else jr.randint(key, (batch_size,), 0, batch_length(data), "int32")
        return jax.tree.map(lambda leaf: leaf[rows], data)

    def sampled_rows(self, data: Batch, batch_size: int | None) -> dict[str, tuple[int, int]]:
        """By name of what is subsampled: the number of rows and of rows in a batch; empty without minibatches."""
        return {} if batch_size is None or data is None else {"data": (batch_length(data), batch_size)}

    def batch_of(self, data: Batch, rows: dict[str, Array]) -> Batch:
        """The batch of the rows with these indices, by the names of `sampled_rows`."""
        return jax.tree.map(lambda leaf: leaf[rows["data"]], data)

    def sites(self, particles: PyTree) -> dict[str, Any]:
        """Named quantities of a batch of particles: the leaves of the parameters by their paths.

        Targets of other libraries' models add their deterministic sites.
        """
        paths, _ = jax.tree_util.tree_flatten_with_path(particles)
        named = {jax.tree_util.keystr(path, simple=True, separator=".") or "x": leaf for path, leaf in paths}
        return {name: leaf if isinstance(leaf, np.ndarray) else jnp.asarray(leaf) for name, leaf in named.items()}

    @property
    def has_prior(self) -> bool:
        """Whether `prior` and `prior_draws` can sample the prior, as for other libraries' models."""
        return False

    def prior(self, key: KeyLike, num_particles: int) -> PyTree:
        """Initial particles from the prior; `ValueError` unless `has_prior`."""
        raise ValueError("`target` has no prior to draw from: give first particles, or a start.")

    def prior_draws(self, key: Key) -> Iterator[PyTree]:
        """An iterator of single particles from the prior; `ValueError` unless `has_prior`."""
        raise ValueError("`target` has no prior to draw from: give first particles, or a start.")

    def observed(self) -> dict[str, Array]:
        """The named observations of another library's model; empty for other targets."""
        return {}

    def predictive(self, key: Key, particles: PyTree) -> dict[str, Array]:
        """One posterior predictive draw of every named observation for each particle; empty without a way to draw."""
        return {}

    def dims(self) -> dict[str, tuple[str | None, ...]]:
        """The names of the axes of the sites and observations, `None` for an axis without a name; see `to_arviz`."""
        return {}

    def coords(self) -> dict[str, Any]:
        """The labels along the named axes of `dims`; empty without labels."""
        return {}

    def log_likelihoods(self, points: Points, data: Batch = None) -> dict[str, Array]:
        """The log-likelihood of every observation at every particle, by the name of the observations.

        The arrays have axes (particle, …observation). Empty if the target has no separate likelihood.

        Args:
            points: the particles in unconstrained coordinates.
            data: the full data.
        """
        return {}

    def bind(self: Target, particle: PyTree) -> Target:
        """A copy bound to the space of `particle`, one particle's pytree."""
        return eqx.tree_at(
            lambda target: target.space, self, Space.of(particle, self.support), is_leaf=lambda node: node is None
        )

    def tempered(self: Target, power: Any) -> Target:
        """The target p^power, where p is the density in unconstrained coordinates.

        p includes the Jacobian of the constraints, so this is not a power of the density of constrained parameters.
        """
        return eqx.tree_at(lambda target: target.power, self, as_number(power))

    def sharing(self: Target, shared: PyTree) -> Target:
        """A copy with other values of the parameters that all particles share."""
        return eqx.tree_at(lambda target: target.shared, self, shared, is_leaf=lambda node: node is None)

    @property
    def bound_space(self) -> AbstractSpace:
        """The space that the target is bound to; `ValueError` for an unbound target."""
        if self.space is None:
            raise ValueError("this target is not bound to a parameter space: call `target.bind(particle)` first.")
        return self.space

    def constrain(self, vector: Vector) -> PyTree:
        """The parameters at an unconstrained vector, the shared ones included."""
        return merge(self.bound_space.constrain(vector), self.shared)

    def log_jacobian(self, vector: Vector) -> Scalar:
        """Log |det| of the map from the unconstrained vector to the parameters."""
        return jnp.zeros((), vector.dtype) if self.space is None else self.space.log_jacobian(vector)

    def log_examples(self, vector: Vector, batch: Batch = None) -> Float[Array, " b"]:
        """The log-likelihood of every example of the batch."""
        return self.over_examples(lambda example: self.log_example(vector, example), batch)

    def map_example(self, function: Callable[..., Array], vector: Vector, example: PyTree) -> Float[Array, " k"]:
        """`function(parameters, example)` as a flat vector; `function(parameters)` without data."""
        arguments = (self.constrain(vector),) if example is None else (self.constrain(vector), example)
        return jnp.reshape(function(*arguments), (-1,))

    def data_scale(self, batch: Batch, dtype: Any) -> Scalar:
        """N / b."""
        return cast_like(self.num_data_in(batch), jnp.zeros((), dtype)) / batch_length(batch)

    def log_density(self, vector: Vector, batch: Batch = None) -> Scalar:
        """The (minibatch estimate of the) log density."""
        likelihood = jnp.sum(self.log_examples(vector, batch)) * self.data_scale(batch, vector.dtype)
        return cast_like(self.power, vector) * (self.log_base(vector) + likelihood)

    def score(self, vector: Vector, batch: Batch = None) -> Vector:
        """∇log p, and NaN where log p is not finite.

        Automatic differentiation may give a finite gradient there, as for `jnp.where(inside, log_p, jnp.nan)`;
        particles would then leave the support without an error.
        """
        value, gradient = jax.value_and_grad(self.log_density)(vector, batch)
        return jnp.where(jnp.isfinite(value), gradient, jnp.nan)

    @jax.named_scope("score")
    def scores(self, points: Points, batch: Batch = None) -> Points:
        """∇log p at every particle, in one batched call."""
        return jax.vmap(self.score, (0, None))(points, batch)

    def log_densities(self, points: Points, batch: Batch = None) -> Float[Array, " n"]:
        """The log density at every particle."""
        return jax.vmap(self.log_density, (0, None))(points, batch)

    def mean_log_example(self, vector: Vector, batch: Batch = None) -> Scalar:
        """(1/b) Σ log-likelihood; its gradient is the preconditioner of pSGLD."""
        return jnp.mean(self.log_examples(vector, batch))


class LogDensity(AbstractTarget):
    """Any log density on a pytree: `function(parameters)`, or `function(parameters, data)` where `fit` gets data.

    Args:
        function: returns a scalar, log p up to a constant.
        support: the support of the parameters (see `Space.of`), for example `{"scale": steinkern.positive}`.
        shared: parameters that all particles share, from `steinkern.split`. `function` gets the whole parameters.
    """

    function: Any
    support: PyTree = eqx.field(default=None, kw_only=True)
    space: AbstractSpace | None = eqx.field(default=None, kw_only=True, repr=False)
    power: Any = eqx.field(default=1.0, converter=as_number, kw_only=True)
    shared: PyTree = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_callable("function", self.function, "a log density, a function of the parameters")

    @property
    def exchangeable(self) -> bool:
        return False

    def log_base(self, vector: Vector) -> Scalar:
        return self.log_jacobian(vector)

    def log_example(self, vector: Vector, example: PyTree) -> Scalar:
        arguments = (self.constrain(vector),) if example is None else (self.constrain(vector), example)
        return scalar_result(self.function(*arguments), vector, "log density")

    def over_examples(self, function: Callable[[PyTree], Array], batch: Batch) -> Float[Array, "b ..."]:
        return function(batch)[None]  # all data are one example

    def num_data_in(self, batch: Batch) -> Any:
        return 1.0

    def data_scale(self, batch: Batch, dtype: Any) -> Scalar:
        return jnp.ones((), dtype)

    def check_data(self, data: Batch, batch_size: int | None) -> None:
        if batch_size is not None:
            raise ValueError(
                f"`batch_size` is {batch_size}, but a plain log density cannot tell prior from likelihood, so its "
                "minibatches cannot be scaled. Give a `Posterior(log_prior, log_likelihood, num_data)`."
            )
        if data is None:
            check_arguments(
                "target", self.function, 1, "A log density of (parameters, data) needs `fit(..., data=...)`."
            )
        else:
            hint = "Leave `data` out, or write the log density as a function of (parameters, data)."
            check_arguments("target", self.function, 2, hint)


class Posterior(AbstractTarget):
    """Prior × likelihood of N exchangeable examples, with unbiased minibatches.

    Args:
        log_prior: `log_prior(parameters)`, a scalar.
        log_likelihood: `log_likelihood(parameters, example)`, a scalar for *one* example (one row of the data).
        num_data: N, the number of examples in the full data.
        support: the support of the parameters (see `Space.of`).
        shared: parameters that all particles share, from `steinkern.split`. `log_prior` and `log_likelihood` get the
            whole parameters.
    """

    log_prior: Any
    log_likelihood: Any
    num_data: Any = eqx.field(converter=as_number)
    support: PyTree = eqx.field(default=None, kw_only=True)
    space: AbstractSpace | None = eqx.field(default=None, kw_only=True, repr=False)
    power: Any = eqx.field(default=1.0, converter=as_number, kw_only=True)
    shared: PyTree = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_callable("log_prior", self.log_prior, "a function of the parameters")
        check_callable("log_likelihood", self.log_likelihood, "a function of the parameters and one example")
        if is_concrete(self.num_data):
            if not is_real_number(self.num_data) or self.num_data != np.round(self.num_data):
                raise ValueError(f"`num_data` must be a whole number of examples, got {self.num_data!r}.")
            check_positive("num_data", self.num_data)

    @property
    def exchangeable(self) -> bool:
        return True

    def log_base(self, vector: Vector) -> Scalar:
        prior = scalar_result(self.log_prior(self.constrain(vector)), vector, "log_prior")
        return prior + self.log_jacobian(vector)

    def log_example(self, vector: Vector, example: PyTree) -> Scalar:
        return scalar_result(self.log_likelihood(self.constrain(vector), example), vector, "log_likelihood")

    def over_examples(self, function: Callable[[PyTree], Array], batch: Batch) -> Float[Array, "b ..."]:
        return jax.vmap(function)(batch)

    def num_data_in(self, batch: Batch) -> Any:
        return self.num_data

    def log_likelihoods(self, points: Points, data: Batch = None) -> dict[str, Array]:
        """The log-likelihood of every row at every particle, named `data`."""
        # One particle at a time bounds the memory of a network's activations.
        return {"data": jax.lax.map(lambda vector: self.log_examples(vector, data), points)}

    def check_data(self, data: Batch, batch_size: int | None) -> None:
        if data is None:
            raise ValueError("`data` is missing: a `Posterior` needs `fit(..., data=...)`.")
        rows = batch_length(data)
        if rows != int(self.num_data):
            raise ValueError(f"`data` has {rows} rows, but the Posterior's `num_data` is {int(self.num_data)}.")
        if batch_size is not None and not 1 <= batch_size <= rows:
            raise ValueError(f"`batch_size` must lie between 1 and the {rows} rows of `data`, got {batch_size}.")


def as_target(target: Any) -> AbstractTarget:
    """Convert a function to a `LogDensity`, and check the NumPy arrays that the target's functions close over."""
    if not (isinstance(target, AbstractTarget) or callable(target)):
        raise ValueError(f"`target` must be a log density function or a target, got {type(target).__name__}.")
    converted = target if isinstance(target, AbstractTarget) else LogDensity(target)
    check_closed_over(converted)
    return converted
