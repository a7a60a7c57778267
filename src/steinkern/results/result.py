"""`Result`, which `fit` returns: particles, the course of the run, and methods for predictions and reports."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ..core.arrays import as_concrete_key, as_data
from ..core.errors import explain_errors
from ..core.notices import Notice, quantity
from ..core.particles import Layout, too_coarse
from ..core.programs import compiled
from ..core.types import Batch, KeyLike, Points, PyTree, SteinWarning, check_count, warn_caller
from ..samplers.sampler import AbstractSampler
from ..targets.target import AbstractTarget
from .arviz_groups import arviz_data
from .comparison import Comparison
from .outcome import ChainHistory as ChainHistory
from .outcome import Faults as Faults
from .outcome import History as History
from .outcome import Status as Status
from .placeholders import AbsentSampler
from .prediction import Prediction, predict
from .report import write_report
from .report.from_result import record_of
from .report.record import RECORD_PARTICLES, by_name
from .saving import description_of, save, state_for_another_process
from .summary import short_html, short_text, table_lines
from .verdict import Verdict, not_judged


@dataclass(frozen=True, repr=False)
class Result:
    """Particles that approximate the target, and the course of the run that computed them.

    Give it to `fit` in place of particles to continue the run.
    """

    particles: PyTree
    """The particles in constrained coordinates: the structure of the initial ones, with a leading particle axis."""
    points: Float[Array, "n d"] | Float[np.ndarray, "n d"]
    """The particles as one (n, d) array of unconstrained coordinates, in which the sampler works.

    `sample` returns points and particles as NumPy arrays in double precision."""
    status: Status
    message: Notice
    """The end of the run: a text with a `code`."""
    num_steps: int
    """The number of steps taken, including those of the fits that this one continued."""
    history: History
    faults: Faults
    target: AbstractTarget
    sampler: AbstractSampler
    loop: Any
    """The state from which the next step continues; `None` where particles were combined or resampled."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The options of `fit` as JSON: batch size, recording, tolerance, the shapes of the data, the key."""
    warnings: tuple[Notice, ...] = ()
    """The texts of the run's `SteinWarning`s, each with a `code`."""
    verdict: Verdict = field(default=not_judged(""), kw_only=True)
    """The check of the particles against the target at the end of `fit`."""
    comparison: Comparison | None = field(default=None, kw_only=True)
    """The particles beside chains held aside, for a `fit` without a sampler; `None` where there are none."""
    failed_checks: tuple[str, ...] = field(default=(), kw_only=True)
    """Errors inside the checks at the end of a run, which are not raised; for bug reports."""

    _chains: ClassVar[bool] = False
    _flow: ClassVar[str] = ""
    _no_flow: ClassVar[str] = RECORD_PARTICLES
    """The note on the page where the particles of earlier steps are not known."""

    @property
    def shared(self) -> PyTree:
        """The current values of the parameters that all particles share; `None` where there are none."""
        return self.target.shared

    def scores(self, data: Batch = None) -> Points:
        """∇log p at the particles, in unconstrained coordinates; `data` are the full data of a target that has any."""
        data = as_data(data)
        self.target.check_data(data, None)
        with explain_errors("`data` must be as `fit` had them", "Were they meant for another target?"):
            return _scores(self.target, self.points_in_jax(), data)

    def points_in_jax(self) -> Points:
        """The points as a JAX array; warns where JAX's precision is too coarse for their spread."""
        self._warn_of_rounding()
        return _as_array(self.points)

    def _warn_of_rounding(self) -> None:
        kept, now = np.dtype(self.points.dtype), np.dtype(jax.dtypes.canonicalize_dtype(self.points.dtype))
        if now.itemsize >= kept.itemsize or len(self.points) < 2:
            return
        coarse = np.flatnonzero(too_coarse(np.asarray(self.points), now))
        if len(coarse):
            names = Layout.of(jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.particles)).coordinate_names()
            which = repr(names[coarse[0]]) if len(names) == self.points.shape[1] else f"coordinate {coarse[0]}"
            others = f" and {len(coarse) - 1} more" if len(coarse) > 1 else ""
            warn_caller(SteinWarning(
                f"{now.name} is too coarse for these particles: {which}{others} varies by less than 100 spacings of "
                "its numbers, so that rounding shows. Enable x64, or shift and rescale the parameter.", self,
            ))  # fmt: skip

    def resample(self, key: KeyLike, num_particles: int, *, replace: bool = False) -> "Result":
        """A copy with `num_particles` of its particles, drawn at random.

        A fit that continues from it begins with a new sampler state.

        Args:
            key: PRNG key.
            num_particles: the number of draws.
            replace: draw with replacement, which allows more draws than particles. Copies of a particle stay together
                in a fit with a deterministic sampler.
        """
        check_count("num_particles", num_particles)
        n = len(self.points)
        if num_particles > n and not replace:
            raise ValueError(
                f"`num_particles` must be at most the {n} particles there are, got {num_particles}. Give "
                "`replace=True` to draw some of them more than once."
            )
        if not isinstance(replace, bool | np.bool_):
            raise ValueError(f"`replace` must be True or False, got {replace!r}.")
        rows = jr.choice(as_concrete_key(key), n, (num_particles,), replace=bool(replace))
        return self._with_rows(np.asarray(rows))

    def _with_rows(self, rows: np.ndarray) -> "Result":
        particles = jax.tree.map(lambda leaf: leaf[rows], self.particles)
        recorded = jax.tree.map(lambda leaf: leaf[:, rows], self.history.particles)
        history = dataclasses.replace(self.history, particles=recorded)
        verdict = not_judged("particles were drawn from those of a run")
        return dataclasses.replace(
            self, particles=particles, points=self.points[rows], history=history, loop=None, verdict=verdict,
            comparison=None,
        )  # fmt: skip

    def predict(
        self,
        function: Any,
        data: Batch,
        *,
        level: float = 0.9,
        batch_size: int | None = None,
        keep_values: bool = True,
    ) -> Prediction:
        """Posterior predictions for every row of `data`: moments, quantiles and, given labels, log predictive density.

        ```python
        prediction = result.predict(lambda parameters, row: row[0] @ parameters["weights"], (features,))
        prediction.mean, prediction.sd, prediction.interval       # over the particles, a row each
        prediction.log_density(steinkern.Gaussian(0.1), labels).mean()
        ```

        Args:
            function: `function(parameters, row)` for *one* row, as in `Posterior`. The parameters include those that
                all particles share.
            data: a pytree of arrays with a common leading axis, such as `(features,)`.
            level: the probability of the interval.
            batch_size: the number of rows evaluated at a time, where all would take too much memory.
            keep_values: `False` keeps mean and standard deviation only, for many rows: memory then grows with the
                rows, not with particles × rows. Rows are evaluated 1,024 at a time unless `batch_size` is given.
        """
        self._warn_of_rounding()
        particles = jax.tree.map(_as_array, self.particles)
        return predict(function, particles, self.shared, data, level, batch_size, keep_values)

    def to_arviz(
        self,
        data: Batch = None,
        *,
        key: KeyLike | None = None,
        observed: Mapping[str, Any] | None = None,
        predictive: Mapping[str, Any] | None = None,
        dims: Mapping[str, Sequence[str | None]] | None = None,
        coords: Mapping[str, Any] | None = None,
        log_likelihood: bool = True,
    ) -> Any:
        """The result as ArviZ data: `InferenceData` with ArviZ 0.x, an xarray `DataTree` from 1.0 on.

        The groups are `posterior` (the particles by name, and the deterministic sites of a model), `sample_stats`
        (`lp`, the log density in unconstrained coordinates, and as attributes what is known of the particles' quality)
        and, where they are known, `log_likelihood`, `observed_data` and `posterior_predictive`. The log-likelihood of
        every observation is known of a `Posterior` and of NumPyro and PyMC models; `arviz.loo` and `arviz.compare`
        need it. The axes have the names of the model's plates (NumPyro) or dims (PyMC).

        The particles form one chain. It is not a Markov chain, so R̂ and effective sample sizes have no meaning:
        `arviz.summary(data, kind="stats")` leaves them out.

        ```python
        tree = result.to_arviz(data, dims={"weights": ["column"]}, coords={"column": ["age", "income"]})
        arviz.summary(tree, kind="stats")      # weights[age], weights[income]
        ```

        Args:
            data: the data of the fit, if any.
            key: draws `posterior_predictive` where the target is a NumPyro or PyMC model.
            observed: named observations; a NumPyro or PyMC model supplies its own.
            predictive: named predictive draws with a leading particle axis, instead of draws by `key`.
            dims: for some variables, the name of every axis, chain and draw left out; those of the model by default.
                The log-likelihood of a `Posterior` is the variable `data`, or has the name of the one observation that
                has a number for every row.
            coords: for some axes, the labels along them.
            log_likelihood: compute that group, which takes memory for particles × observations.
        """
        return arviz_data(self, data, key, observed, predictive, dims, coords, log_likelihood)

    @property
    def sampler_name(self) -> str:
        """The name of the sampler's class."""
        return self.sampler.name if isinstance(self.sampler, AbsentSampler) else type(self.sampler).__name__

    def report(
        self,
        directory: str | os.PathLike[str],
        data: Batch = None,
        *,
        title: str | None = None,
        coordinates: Sequence[str] | None = None,
        key: KeyLike | None = None,
        observed: Mapping[str, Any] | None = None,
        predictive: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a self-contained page about the run, `index.html` in `directory`, and return its path.

        The page shows the run's settings, its end with the advice, the traces of the history and of the kernel Stein
        discrepancy, the particles' marginals and pairs with a slider over the iterations, a table of the sites, and
        predictive checks where draws are available. The slider needs `record_particles=True` in `fit`; for `sample` it
        shows the chains, unless there are very many.

        Args:
            directory: created where it does not exist.
            data: the data of the fit, for the discrepancy; without them the page says that it is missing.
            title: of the page; the target's name by default.
            coordinates: the coordinates to draw, such as `["scale", "weights[2]"]`; a site's name means all of its
                coordinates. The first 24 by default. The page lets the reader choose among them.
            key: draws predictive checks where the target is a NumPyro or PyMC model.
            observed: named observations; a NumPyro or PyMC model supplies its own.
            predictive: named predictive draws with a leading particle axis, instead of draws by `key`.
        """
        record = record_of(self, data, title, key, observed, predictive)
        return write_report(record, directory, coordinates=coordinates)

    def _sites(self) -> dict[str, Any]:
        """Named quantities at the particles; the particles themselves in the precision in which they are held."""
        return {**self.target.sites(self.particles), **by_name(self.particles)}

    def _log_densities(self, data: Batch) -> Any:
        """The log density at every particle, in unconstrained coordinates."""
        return _log_densities(self.target, self.points_in_jax(), data)

    def _description(self) -> Mapping[str, Any]:
        """The sampler, the target and the settings as JSON, for the page."""
        return {"sampler": description_of(self.sampler), "target": description_of(self.target), **self.settings}

    def _predictive(self, key: KeyLike | None, predictive: Mapping[str, Any] | None) -> dict[str, Any]:
        """Predictive draws by name: those of the target with `key`, and those in `predictive`."""
        drawn: dict[str, Any] = {}
        if key is not None:
            particles = jax.tree.map(_as_array, self.particles)
            drawn = dict(self.target.predictive(as_concrete_key(key), particles))
        if key is not None and not drawn:
            raise ValueError(
                "`key` draws from the predictive distribution of a NumPyro or PyMC model, and this target is none. "
                "Give draws as `predictive={name: array}`, such as the `values` of `result.predict(...)`."
            )
        if predictive is not None and not isinstance(predictive, Mapping):
            raise ValueError(f"`predictive` must be a dictionary {{name: draws}}, got {predictive!r}.")
        draws = {**drawn, **({} if predictive is None else predictive)}
        for name, value in draws.items():
            if np.shape(value)[:1] != (len(self.points),):
                raise ValueError(
                    f"`predictive` must hold arrays with a leading axis of {len(self.points)} particles, got shape "
                    f"{np.shape(value)} for {name!r}."
                )
        return draws

    def summary(self, max_rows: int | None = 20) -> str:
        """A table of mean, standard deviation and quantiles of every coordinate, and what is told of the run.

        After the table come the warnings, the end of the run and its verdict.
        The numbers are computed in double precision, whatever the precision of the particles.

        Args:
            max_rows: the number of coordinates to list; `None` for all.
        """
        if max_rows is not None:
            check_count("max_rows", max_rows)
        lines, left = table_lines(self.particles, max_rows)
        more = [f"… and {left} more: summary(max_rows=None) lists all"] if left else []
        warnings = [f"Warning: {text.split(':')[0]}" for text in self.warnings]
        return "\n".join([*lines, *more, *warnings, *self._ending()])

    def _ending(self) -> list[str]:
        """The last lines of the summary: the end of the run, and its verdict."""
        size = f"{quantity(len(self.points), 'particle')}, {quantity(self.num_steps, 'step')}"
        lines = [f"{size}, {self.status.value}: {self.message}"]
        checked = self.verdict.sentence()
        if self.verdict.passed and self.warnings:
            checked += " The warnings are of other checks."
        compared = [] if self.comparison is None else [f"{self.comparison.in_words()}."]
        return [*lines, *([checked] if checked else []), *compared]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result to one file, which `steinkern.load(path)` reads, and return the path of the file.

        The file holds the particles, the history, the message and warnings with their codes, the verdict, the quality
        (of `sample`), the settings and the versions of the libraries. It holds no functions: `load` takes the target
        again where it is needed. An existing file is replaced.

        To send results between processes there is no need for a file: they go through process pools where the target's
        functions can be imported by name, without the sampler if its step rule cannot.
        """
        return save(self, path)

    def __getstate__(self) -> dict[str, Any]:
        return state_for_another_process(self)

    def __repr__(self) -> str:
        return short_text(self)

    def _repr_html_(self) -> str:
        return short_html(self)


def _as_array(array: Any) -> Array:
    """An array of JAX, in its precision; a copy of one of NumPy."""
    return array if isinstance(array, jax.Array) else jax.device_put(np.array(array))


@compiled
def _scores(target: AbstractTarget, points: Points, data: Batch) -> Points:
    return target.scores(points, data)


@compiled
def _log_densities(target: AbstractTarget, points: Points, data: Batch) -> Float[Array, " n"]:
    return target.log_densities(points, data)


class DivergedError(RuntimeError):
    """A fit met numbers that are not finite. `result` holds the last finite particles."""

    def __init__(self, result: Result):
        super().__init__(result.message)
        self.result = result
