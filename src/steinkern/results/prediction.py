"""Posterior predictions: mean and interval over the particles, and the log predictive density of labels."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Shaped

from ..core.arrays import as_data, as_labels
from ..core.errors import explained, shapes
from ..core.particles import merge
from ..core.programs import compiled
from ..core.types import Batch, PyTree, check_callable, check_count, is_concrete, is_real_number
from ..targets.likelihood import AbstractLikelihood
from ..targets.target import batch_length


@dataclass(frozen=True)
class Prediction:
    """The values of a function of the parameters and a row of data, at every particle and row."""

    values: Shaped[Array, "n rows ..."]
    """The function's values, with axes (particle, row, …)."""
    level: float
    """The probability of the interval."""

    @property
    def mean(self) -> Inexact[Array, "rows ..."]:
        """The mean over the particles."""
        return jnp.mean(self.values if jnp.iscomplexobj(self.values) else _as_floats(self.values), axis=0)

    @property
    def interval(self) -> tuple[Float[Array, "rows ..."], Float[Array, "rows ..."]]:
        """The ends of the central interval: quantiles (1 − level)/2 and (1 + level)/2 over the particles.

        The interval covers the uncertainty of the function only, without the likelihood's noise.
        """
        values = _as_floats(self.values)
        ends = np.asarray([(1 - self.level) / 2, (1 + self.level) / 2], values.dtype)
        return _quantiles(values, jax.device_put(ends))

    def log_density(self, likelihood: Any, labels: Any) -> Float[Array, " rows"]:
        """The log predictive density of each label, log (1/n) Σ_i p(label | values_i).

        Args:
            likelihood: a likelihood such as `Bernoulli()`, whose outputs are the values.
            labels: one label for each row.
        """
        if not isinstance(likelihood, AbstractLikelihood):
            raise ValueError(f"`likelihood` must be a likelihood such as `steinkern.Bernoulli()`, got {likelihood!r}.")
        labels = as_labels(labels)
        n, rows = self.values.shape[:2]
        given = batch_length(labels, "labels")
        if given != rows:
            raise ValueError(f"`labels` must hold one label for each of the {rows} rows, got {given}.")
        outputs = _as_floats(self.values).reshape(n, rows, -1)
        likelihood.check(labels, outputs.shape[2])
        expected = f"`labels` must be one a row, as `likelihood` takes them for {outputs.shape[2]} outputs"
        with explained(f"{expected}, got {shapes(labels)}", "Were they meant for another likelihood?"):
            return _log_density(likelihood, outputs, labels)


def _as_floats(values: Array) -> Array:
    """Convert booleans and integers to floating point; complex values are refused."""
    if jnp.iscomplexobj(values):
        raise ValueError(f"`function` must give real numbers for quantiles and densities, got {values.dtype}.")
    return values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(jnp.result_type(float))


@compiled
def _quantiles(values: Float[Array, "n rows ..."], ends: Float[Array, "2"]) -> tuple[Array, Array]:
    lower, upper = jnp.quantile(values, ends, axis=0)
    return lower, upper


@compiled
def _log_density(likelihood: AbstractLikelihood, outputs: Float[Array, "n rows k"], labels: Any) -> Array:
    one_particle = jax.vmap(likelihood.log_prob)
    log_probabilities = jax.vmap(one_particle, (0, None))(outputs, labels)
    n = jnp.asarray(outputs.shape[0], outputs.dtype)
    return jax.nn.logsumexp(log_probabilities, axis=0) - jnp.log(n)


def predict(
    function: Any,
    particles: PyTree,
    shared: PyTree,
    data: Batch,
    level: float = 0.9,
    batch_size: int | None = None,
) -> Prediction:
    """`function(parameters, row)` at every particle and row; see `Result.predict`."""
    check_callable("function", function, "a function of the parameters and one row of `data`")
    if not (is_concrete(level) and is_real_number(level) and 0 < level < 1):
        raise ValueError(f"`level` must lie between 0 and 1, got {level!r}.")
    if batch_size is not None:
        check_count("batch_size", batch_size)
    data = as_data(data)
    rows = batch_length(data)
    expected = f"`function` must take the parameters, {shapes(particles)}, and one row of `data`, {shapes(data)}"
    with explained(expected, "Was it written for other names, shapes or columns?"):
        values = _values(function, particles, shared, data, min(batch_size or rows, rows))
    return Prediction(values, level)


@compiled
def _values(function: Any, particles: PyTree, shared: PyTree, data: Batch, batch_size: int) -> Array:
    def at_row(row: PyTree) -> Array:
        return jax.vmap(lambda particle: jnp.asarray(function(merge(particle, shared), row)))(particles)

    if batch_size == batch_length(data):
        values = jax.vmap(at_row)(data)
    else:
        values = jax.lax.map(at_row, data, batch_size=batch_size)
    return jnp.moveaxis(values, 0, 1)
