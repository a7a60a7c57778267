"""Posterior predictive checks: do data drawn from the fitted model look like those that were observed?

Gelman, Meng and Stern, Posterior predictive assessment of model fitness via realized discrepancies, Statistica Sinica
6, 1996.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.arrays import as_numpy
from ..core.keywords import helpful_keywords
from ..core.types import check_callable
from .plot.predictive import statistic_histograms

if TYPE_CHECKING:
    import matplotlib.figure

STATISTICS: Mapping[str, Callable[[np.ndarray], Any]] = {"mean": np.mean, "sd": np.std, "min": np.min, "max": np.max}
"""The test statistics that have names, of all numbers of a data set together."""
_EXTREME = 0.025  # a p-value nearer to 0 or 1 is reported


@dataclass(frozen=True, eq=False)
class PredictiveCheck:
    """Test statistics of observed and of replicated data; from `predictive_check`."""

    observed: Mapping[str, float]
    """Each statistic at the observed data."""
    replicated: Mapping[str, np.ndarray]
    """Each statistic at every replicated data set, (S,)."""

    @property
    def p_values(self) -> dict[str, float]:
        """P(T(replicated) > T(observed)) + ½ P(T(replicated) = T(observed)) for each statistic T.

        Near ½ the observed value is typical of the model; near 0 it is larger than the model makes it, near 1 smaller.
        These are not uniform under the model: they keep to the middle, because the parameters were fitted to the same
        data. So 0.01 means more here than in a test, and ½ does not mean that the model is right.
        """
        return {
            name: float(np.mean(values > self.observed[name]) + 0.5 * np.mean(values == self.observed[name]))
            for name, values in self.replicated.items()
        }

    @property
    def extreme(self) -> tuple[str, ...]:
        """The statistics whose p-value is below 0.025 or above 0.975."""
        return tuple(name for name, p in self.p_values.items() if min(p, 1 - p) < _EXTREME)

    def sentence(self) -> str:
        """The finding in one line."""
        p_values = self.p_values
        number = len(next(iter(self.replicated.values())))
        if not self.extreme:
            listed = ", ".join(f"{name} {p:.2f}" for name, p in p_values.items())
            return f"The model reproduces these statistics: p-values {listed} ({number} data sets)."
        sides = {name: "larger" if p_values[name] < 0.5 else "smaller" for name in self.extreme}
        listed = ", ".join(
            f"{name} is {side} than replicated ones (p = {p_values[name]:.3g})" for name, side in sides.items()
        )
        return f"The model does NOT reproduce these statistics: the observed {listed} ({number} data sets)."

    def summary(self) -> str:
        """A table: each statistic as observed, its quantiles over replicated data and its p-value; then the finding."""
        width = max(len("statistic"), *(len(name) for name in self.observed))
        lines = [f"{'statistic':<{width}} " + " ".join(f"{head:>10}" for head in ("observed", "5%", "50%", "95%", "p"))]
        for name, value in self.observed.items():
            quantiles = np.quantile(self.replicated[name], [0.05, 0.5, 0.95])
            numbers = " ".join(f"{number:>10.4g}" for number in (value, *quantiles))
            lines.append(f"{name:<{width}} {numbers} {self.p_values[name]:>10.3f}")
        return "\n".join([*lines, self.sentence()])

    def plot(self) -> "matplotlib.figure.Figure":
        """A histogram of each statistic over the replicated data sets, with a line at the observed value."""
        return statistic_histograms(self.observed, self.replicated, self.p_values, marked=self.extreme)

    def __repr__(self) -> str:
        return f"PredictiveCheck: {self.sentence()}"


@helpful_keywords
def predictive_check(
    observed: Any,
    replicated: Any,
    statistics: Sequence[str | Callable[[np.ndarray], Any]] | Mapping[str, Any] = ("mean", "sd", "min", "max"),
) -> PredictiveCheck:
    """Compare observed data with data drawn from the fitted model, by test statistics.

    For each particle draw a data set of the shape of the observed one, from the likelihood at that particle. A model
    that fits makes data sets whose statistics surround those of the observed data. Choose statistics that the model
    does not fit directly: a Gaussian with a free mean always has the observed mean, and only its minimum and maximum,
    or the correlation of neighbours, can tell that it is wrong.

    ```python
    def replicate(key, scale):
        return scale * jax.random.normal(key, observed.shape)

    keys = jax.random.split(jax.random.key(0), len(result.particles))
    check = sk.predictive_check(observed, jax.vmap(replicate)(keys, result.particles))
    print(check.summary())
    check.plot().savefig("check.png")
    ```

    Args:
        observed: the data, an array of any shape.
        replicated: one data set of the same shape for each posterior draw, stacked along a leading axis.
        statistics: of "mean", "sd", "min" and "max", and functions of one data set, a NumPy array, that give a number;
            or a dictionary of them by name.
    """
    seen, drawn = _as_real("observed", observed), _as_real("replicated", replicated)
    if drawn.shape[1:] != seen.shape or drawn.ndim != seen.ndim + 1 or not len(drawn) or not seen.size:
        raise ValueError(
            f"`replicated` must hold data sets of the shape of `observed`, {seen.shape}, along a leading axis, got "
            f"shape {drawn.shape}."
        )
    functions = _by_name(statistics)
    return PredictiveCheck(
        {name: _number(name, function(seen)) for name, function in functions.items()},
        {name: np.array([_number(name, function(one)) for one in drawn]) for name, function in functions.items()},
    )


def _as_real(name: str, value: Any) -> np.ndarray:
    array = as_numpy(name, value)
    if array.dtype.kind == "c":
        raise ValueError(f"`{name}` must be real numbers, got {array.dtype}.")
    numbers = array.astype(np.float64)
    bad = int(np.sum(np.isnan(numbers)))
    if bad:
        raise ValueError(
            f"`{name}` must not hold NaN, got {bad} of {numbers.size}: leave missing entries out of both data sets."
        )
    return numbers


def _by_name(statistics: Any) -> dict[str, Callable[[np.ndarray], Any]]:
    """The statistics as functions, by their names."""
    if isinstance(statistics, Mapping):
        pairs = list(statistics.items())
    elif isinstance(statistics, str | Callable):
        raise ValueError(
            f"`statistics` must be a sequence or a dictionary, got {statistics!r}. Write [{statistics!r}]."
        )
    else:
        pairs = [(one if isinstance(one, str) else getattr(one, "__name__", repr(one)), one) for one in statistics]
    found: dict[str, Callable[[np.ndarray], Any]] = {}
    for name, one in pairs:
        if name in found:
            raise ValueError(f"`statistics` must have different names, got {name!r} twice. Give a dictionary by name.")
        if isinstance(one, str):
            if one not in STATISTICS:
                raise ValueError(
                    f"`statistics` knows {', '.join(STATISTICS)} and functions of a data set, got {one!r}."
                )
            one = STATISTICS[one]
        check_callable("statistics", one, "names, or functions of a data set that give a number")
        found[str(name)] = one
    if not found:
        raise ValueError("`statistics` must hold at least one, got none.")
    return found


def _number(name: str, value: Any) -> float:
    if np.ndim(value) != 0 or np.iscomplexobj(value) or np.isnan(float(value)):
        raise ValueError(f"`statistics` must give one number for a data set, got {value!r} of {name!r}.")
    return float(value)
