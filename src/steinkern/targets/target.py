"""Targets: log densities of parameter pytrees, and the same bound to a space, as functions of an unconstrained vector.

Every method takes the data as an argument, so that new data of the same shape need no recompilation.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ..core._xla import is_faster_in_series
from ..core.particles import merge
from ..core.reprs import OneLine
from ..core.types import (
    Batch,
    Key,
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


class AbstractTarget(OneLine):
    """A log density of parameters and data. `bind` makes it one of an unconstrained vector x, a `BoundTarget`:

        log p(x) = power × [ log base(x) + (N/b) Σ_batch log-likelihood(x, example) ], up to a constant.

    `base` is the prior times the Jacobian of the constraints. A target defines these terms; its `BoundTarget` passes
    itself as `bound` and gives the parameters as `bound.constrain(vector)`.
    """

    support: eqx.AbstractVar[PyTree]
    shared: eqx.AbstractVar[PyTree]
    """The first values of the parameters that all particles share."""

    @property
    def num_examples(self) -> Any:
        """N where the log-likelihood is a sum over N examples; `None` where all data are one example."""
        return None

    @abc.abstractmethod
    def log_base(self, bound: "BoundTarget", vector: Vector) -> Scalar:
        """Log prior plus log-Jacobian of the constraints."""

    @abc.abstractmethod
    def log_example(self, bound: "BoundTarget", vector: Vector, example: PyTree) -> Scalar:
        """The log-likelihood of one example."""

    @abc.abstractmethod
    def check_data(self, data: Batch, batch_size: int | None) -> None:
        """Raise `ValueError` if the data do not fit this target."""

    def log_density(self, bound: "BoundTarget", vector: Vector, batch: Batch) -> Scalar:
        """The (minibatch estimate of the) log density at power 1."""
        likelihood = jnp.sum(bound.log_examples(vector, batch)) * bound.data_scale(batch, vector.dtype)
        return self.log_base(bound, vector) + likelihood

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
        """The number of rows, and of rows in a batch, by the name of what is subsampled; empty without minibatches."""
        return {} if batch_size is None or data is None else {"data": (batch_length(data), batch_size)}

    def batch_of(self, data: Batch, rows: dict[str, Array]) -> Batch:
        """The batch of the rows with these indices, by the names of `sampled_rows`."""
        return jax.tree.map(lambda leaf: leaf[rows["data"]], data)

    def on_all_rows(self) -> "AbstractTarget":
        """The target without minibatches of its own, such as those of a NumPyro model."""
        return self

    def bind(self, particle: PyTree) -> "BoundTarget":
        """The log density of vectors in the unconstrained space of `particle`, one particle's pytree."""
        return BoundTarget(self, Space.of(particle, self.support), self.shared)


class BoundTarget(OneLine):
    """The log density of an unconstrained vector, from a target and the space of its particles.

    Args:
        target: defines the density and its data.
        space: the unconstrained space of the particles.
        shared: the current values of the parameters that all particles share.
        power: the tempering exponent of the density of the unconstrained x, Jacobian included.
    """

    target: AbstractTarget
    space: AbstractSpace = eqx.field(repr=False)
    shared: PyTree = eqx.field(default=None, repr=False)
    power: Any = eqx.field(default=1.0, converter=as_number)

    def tempered(self, power: Any) -> "BoundTarget":
        """The target p^power, where p is the density in unconstrained coordinates.

        p includes the Jacobian of the constraints, so this is not a power of the density of constrained parameters.
        """
        return dataclasses.replace(self, power=power)

    def sharing(self, shared: PyTree) -> "BoundTarget":
        """A copy with other values of the parameters that all particles share."""
        return dataclasses.replace(self, shared=shared)

    @property
    def exchangeable(self) -> bool:
        """Whether the log-likelihood is a sum over examples, so that single examples have gradients."""
        return self.target.num_examples is not None

    @property
    def num_data(self) -> Any:
        """N, the number of examples in the full data; 1 where all data are one example."""
        return self.target.num_examples if self.exchangeable else 1.0

    def check_data(self, data: Batch, batch_size: int | None) -> None:
        """See `AbstractTarget.check_data`."""
        self.target.check_data(data, batch_size)

    def batch(self, data: Batch, batch_size: int | None, key: Key | None = None) -> Batch:
        """See `AbstractTarget.batch`."""
        return self.target.batch(data, batch_size, key)

    def sampled_rows(self, data: Batch, batch_size: int | None) -> dict[str, tuple[int, int]]:
        """See `AbstractTarget.sampled_rows`."""
        return self.target.sampled_rows(data, batch_size)

    def batch_of(self, data: Batch, rows: dict[str, Array]) -> Batch:
        """See `AbstractTarget.batch_of`."""
        return self.target.batch_of(data, rows)

    def over_examples(self, function: Callable[[PyTree], Array], batch: Batch) -> Float[Array, "b ..."]:
        """`function(example)` for every example of the batch, stacked."""
        return jax.vmap(function)(batch) if self.exchangeable else function(batch)[None]

    def data_scale(self, batch: Batch, dtype: Any) -> Scalar:
        """N / b, which makes minibatches unbiased; 1 where all data are one example."""
        if not self.exchangeable:
            return jnp.ones((), dtype)
        return cast_like(self.num_data, jnp.zeros((), dtype)) / batch_length(batch)

    def constrain(self, vector: Vector) -> PyTree:
        """The parameters at an unconstrained vector, the shared ones included."""
        return merge(self.space.constrain(vector), self.shared)

    def apply(self, function: Callable[..., Any], vector: Vector, example: PyTree) -> Any:
        """`function(parameters, example)`, or `function(parameters)` without data."""
        parameters = self.constrain(vector)
        return function(parameters) if example is None else function(parameters, example)

    def log_base(self, vector: Vector) -> Scalar:
        """Log prior plus log-Jacobian of the constraints."""
        return self.target.log_base(self, vector)

    def log_example(self, vector: Vector, example: PyTree) -> Scalar:
        """The log-likelihood of one example."""
        return self.target.log_example(self, vector, example)

    def log_examples(self, vector: Vector, batch: Batch = None) -> Float[Array, " b"]:
        """The log-likelihood of every example of the batch."""
        return self.over_examples(lambda example: self.log_example(vector, example), batch)

    def log_density(self, vector: Vector, batch: Batch = None) -> Scalar:
        """The (minibatch estimate of the) log density."""
        return cast_like(self.power, vector) * self.target.log_density(self, vector, batch)

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

    def in_series(self, points: Points, batch: Batch = None) -> bool:
        """Whether points are evaluated one after the other; see `is_faster_in_series`."""
        return is_faster_in_series(self.log_density, points, batch)

    def over_points(self, function: Callable[[Vector], Any], points: Points, batch: Batch = None) -> Any:
        """`function(point)` for every point, stacked: in one batched call, or one after the other."""
        return jax.lax.map(function, points) if self.in_series(points, batch) else jax.vmap(function)(points)

    def values_and_scores(self, points: Points, batch: Batch = None) -> tuple[Float[Array, " n"], Points]:
        """The log density at every point and its gradient."""
        return self.over_points(lambda point: jax.value_and_grad(self.log_density)(point, batch), points, batch)

    def log_densities(self, points: Points, batch: Batch = None) -> Float[Array, " n"]:
        """The log density at every particle."""
        return jax.vmap(self.log_density, (0, None))(points, batch)


class LogDensity(AbstractTarget):
    """Any log density on a pytree: `function(parameters)`, or `function(parameters, data)` where `fit` gets data.

    Args:
        function: returns a scalar, log p up to a constant.
        support: the support of the parameters (see `Space.of`), for example `{"scale": steinkern.positive}`.
        shared: parameters that all particles share, from `steinkern.split`. `function` gets the whole parameters.
    """

    function: Any
    support: PyTree = eqx.field(default=None, kw_only=True)
    shared: PyTree = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_callable("function", self.function, "a log density, a function of the parameters")

    def log_base(self, bound: BoundTarget, vector: Vector) -> Scalar:
        return bound.space.log_jacobian(vector)

    def log_example(self, bound: BoundTarget, vector: Vector, example: PyTree) -> Scalar:
        return scalar_result(bound.apply(self.function, vector, example), vector, "log density")

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
    shared: PyTree = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_callable("log_prior", self.log_prior, "a function of the parameters")
        check_callable("log_likelihood", self.log_likelihood, "a function of the parameters and one example")
        if is_concrete(self.num_data):
            if not is_real_number(self.num_data) or self.num_data != np.round(self.num_data):
                raise ValueError(f"`num_data` must be a whole number of examples, got {self.num_data!r}.")
            check_positive("num_data", self.num_data)

    @property
    def num_examples(self) -> Any:
        return self.num_data

    def log_base(self, bound: BoundTarget, vector: Vector) -> Scalar:
        prior = scalar_result(self.log_prior(bound.constrain(vector)), vector, "log_prior")
        return prior + bound.space.log_jacobian(vector)

    def log_example(self, bound: BoundTarget, vector: Vector, example: PyTree) -> Scalar:
        return scalar_result(self.log_likelihood(bound.constrain(vector), example), vector, "log_likelihood")

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
        raise ValueError(
            f"`target` must be a log density function or a target before `bind`, got {type(target).__name__}."
        )
    converted = target if isinstance(target, AbstractTarget) else LogDensity(target)
    check_closed_over(converted)
    return converted
