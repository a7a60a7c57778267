"""Posterior predictions: moments and quantiles over the particles, class probabilities, log predictive densities."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Shaped

from ..core.arrays import as_data, as_labels, as_numpy
from ..core.errors import explain_errors, shapes
from ..core.particles import merge
from ..core.programs import compiled
from ..core.reprs import ShortRepr
from ..core.types import Batch, PyTree, check_callable, check_count, check_share
from ..targets.checks import batch_length
from ..targets.likelihood import AbstractLikelihood
from .class_probabilities import ClassProbabilities

_ROWS_AT_A_TIME = 1024  # where only moments are kept


@dataclass(frozen=True, repr=False)
class Prediction(ShortRepr):
    """The values of a function of the parameters and a row of data, at every particle and row."""

    values: Shaped[Array, "n rows ..."] | None
    """The function's values, with axes (particle, row, …); `None` where `predict` had `keep_values=False`."""
    level: float
    """The probability of the interval."""
    moments: tuple[Inexact[Array, "rows ..."], Float[Array, "rows ..."]] | None = None
    """Mean and standard deviation, where the values are not kept."""

    @property
    def mean(self) -> Inexact[Array, "rows ..."]:
        """The mean over the particles."""
        return jnp.mean(_as_numbers(self._kept_values("mean")), axis=0) if self.moments is None else self.moments[0]

    @property
    def sd(self) -> Float[Array, "rows ..."]:
        """The standard deviation over the particles: of the function only, without the likelihood's noise."""
        return jnp.std(_as_numbers(self._kept_values("sd")), axis=0) if self.moments is None else self.moments[1]

    @property
    def interval(self) -> tuple[Float[Array, "rows ..."], Float[Array, "rows ..."]]:
        """The ends of the central interval: quantiles (1 − level)/2 and (1 + level)/2 over the particles.

        The interval covers the uncertainty of the function only, without the likelihood's noise.
        """
        return self.credible_interval(self.level)

    def credible_interval(self, level: float = 0.9) -> tuple[Float[Array, "rows ..."], Float[Array, "rows ..."]]:
        """The lower and upper ends of the central interval of this probability, as `interval` has them for its own."""
        check_share("level", level)
        lower, upper = self.quantiles([(1 - level) / 2, (1 + level) / 2])
        return lower, upper

    def quantiles(self, probabilities: Any) -> Float[Array, "..."]:
        """Quantiles over the particles, of the function only.

        ```python
        lower, median, upper = prediction.quantiles([0.05, 0.5, 0.95])
        ```

        Args:
            probabilities: one number in [0, 1], or a list of them, which becomes the first axis.
        """
        numbers = as_numpy("probabilities", probabilities)
        if numbers.ndim > 1 or not np.all((numbers >= 0) & (numbers <= 1)):
            raise ValueError(f"`probabilities` must be numbers between 0 and 1, got {probabilities!r}.")
        values = _as_floats(self._kept_values("quantiles"))
        return jnp.quantile(values, jax.device_put(numbers.astype(values.dtype)), axis=0)

    def probabilities(self, likelihood: Any) -> ClassProbabilities:
        """The probabilities of the classes at every particle and row, where the values are logits.

        ```python
        classes = result.predict(logits, (features,)).probabilities(steinkern.Categorical())
        classes.mean, classes.entropy, classes.mutual_information      # a row each
        ```

        Args:
            likelihood: `Categorical()`, whose logits are the function's values, or `Bernoulli()`, where every value is
                the logit of a label 1 and the classes are 0 and 1.
        """
        outputs = self._outputs(likelihood, "probabilities")
        return ClassProbabilities(jax.vmap(jax.vmap(likelihood.class_probabilities))(outputs))

    def log_density(self, likelihood: Any, labels: Any) -> Float[Array, " rows"]:
        """The log predictive density of each label, log (1/n) Σ_i p(label | values_i).

        Args:
            likelihood: a likelihood such as `Bernoulli()`, whose outputs are the values.
            labels: one label for each row.
        """
        outputs = self._outputs(likelihood, "log_density")
        _, rows, width = outputs.shape
        labels = as_labels(labels)
        number = batch_length(labels, "labels")
        if number != rows:
            raise ValueError(f"`labels` must hold one label for each of the {rows} rows, got {number}.")
        likelihood.check(labels, width)
        expected = f"`labels` must be one a row, as `likelihood` takes them for {width} outputs"
        with explain_errors(f"{expected}, got {shapes(labels)}", "Were they meant for another likelihood?"):
            return _log_density(likelihood, outputs, labels)

    def _outputs(self, likelihood: Any, wanted: str) -> Float[Array, "n rows k"]:
        """The values as the outputs of a likelihood."""
        if not isinstance(likelihood, AbstractLikelihood):
            raise ValueError(f"`likelihood` must be a likelihood such as `steinkern.Bernoulli()`, got {likelihood!r}.")
        values = _as_floats(self._kept_values(wanted))
        return values.reshape(*values.shape[:2], -1)

    def _kept_values(self, wanted: str) -> Shaped[Array, "n rows ..."]:
        if self.values is None:
            raise ValueError(
                f"`{wanted}` needs the value at every particle and row, and this prediction has mean and sd only. Call "
                "`predict` without `keep_values=False`."
            )
        return self.values


def _as_numbers(values: Array) -> Array:
    """Convert booleans and integers to floating point."""
    return values if jnp.iscomplexobj(values) else _as_floats(values)


def _as_floats(values: Array) -> Array:
    """Convert booleans and integers to floating point; complex values are refused."""
    if jnp.iscomplexobj(values):
        raise ValueError(f"`function` must give real numbers for quantiles and densities, got {values.dtype}.")
    return values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(jnp.result_type(float))


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
    keep_values: bool = True,
) -> Prediction:
    """`function(parameters, row)` at every particle and row; see `Result.predict`."""
    check_callable("function", function, "a function of the parameters and one row of `data`")
    check_share("level", level)
    data = as_data(data)
    rows = batch_length(data)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    batch_size = batch_size or (rows if keep_values else _ROWS_AT_A_TIME)
    expected = f"`function` must take the parameters, {shapes(particles)}, and one row of `data`, {shapes(data)}"
    with explain_errors(expected, "Was it written for other names, shapes or columns?"):
        computed = _over_rows(function, particles, shared, data, min(batch_size, rows), keep_values)
    return Prediction(computed, level) if keep_values else Prediction(None, level, computed)


@compiled
def _over_rows(
    function: Any, particles: PyTree, shared: PyTree, data: Batch, batch_size: int, keep_values: bool
) -> Any:
    """The values, or the mean and standard deviation of every row; `batch_size` rows are evaluated at a time."""

    def at_row(row: PyTree) -> Any:
        values = jax.vmap(lambda particle: _as_value(function(merge(particle, shared), row)))(particles)
        if keep_values:
            return values
        numbers = _as_numbers(values)
        return jnp.mean(numbers, axis=0), jnp.std(numbers, axis=0)

    computed = jax.lax.map(at_row, data, batch_size=batch_size)
    return jnp.moveaxis(computed, 0, 1) if keep_values else computed


def _as_value(value: Any) -> Array:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`function` must give a number or an array for each row, got a value of type {type(value).__name__}. "
            "Stack several numbers with `jnp.stack`, or call `predict` for each."
        ) from error
