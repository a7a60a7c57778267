"""`Result`, which `fit` returns: particles, the course of the run, and methods for predictions and reports."""

import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ..core.arrays import as_concrete_key, as_data
from ..core.errors import explain_errors
from ..core.identity import environment
from ..core.messages import Notice
from ..core.particles import Layout
from ..core.programs import compiled
from ..core.types import Batch, KeyLike, Points, PyTree, check_count
from ..interop._model import model_of
from ..interop.arviz import arviz_data
from ..targets.constrained import constrained
from ..targets.target import BoundTarget
from .outcome import ChainRecord, Diagnostics, History, Status
from .prediction import Prediction, predict
from .report.write import write_report
from .saving import save
from .summary import by_name, short_html, short_text, size_of, table_lines

SAMPLE_METHOD = "sample: the nearest Gaussian, Hamiltonian chains from it, draws that represent all of theirs"
_scores = compiled(BoundTarget.scores)


@dataclass(frozen=True, repr=False)
class Result:
    """Particles that approximate the target, and the course of the run that computed them.

    Give it to `fit` in place of particles to continue the run.
    """

    particles: PyTree
    """The particles in constrained coordinates: the structure of the initial ones, with a leading particle axis."""
    points: Float[Array, "n d"] | Float[np.ndarray, "n d"]
    """The particles as one (n, d) array of unconstrained coordinates, in which the sampler works.

    `sample` returns points and particles as NumPy arrays."""
    status: Status
    message: Notice
    """The end of the run: a text with a `code`."""
    num_steps: int
    """The number of steps taken, including those of the fits that this one continued."""
    history: History
    diagnostics: Diagnostics
    """Every number by which the result was judged."""
    target: Any
    """The target of the run; `None` where the result was read from a file without it."""
    sampler: Any
    """The sampler of the run; `None` where the result was read from a file."""
    loop: Any
    """The state from which the next step continues; `None` where particles were combined, resampled or read."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The options of `fit` as JSON: batch size, recording, tolerance, the shapes of the data, the key."""
    warnings: tuple[Notice, ...] = ()
    """The run's `SteinWarning`s: texts, each with a `code`."""

    shared: PyTree = field(default=None, kw_only=True)
    """The values of the parameters that all particles share; `None` where there are none."""
    recorded: ChainRecord | None = field(default=None, kw_only=True)
    """The chains of `sample` in unconstrained coordinates, of which `draws` is the constrained view; else `None`."""

    @property
    def _chains(self) -> bool:
        """Whether this is a result of `sample`."""
        return self.settings.get("method") == SAMPLE_METHOD

    @property
    def known_target(self) -> BoundTarget:
        """The target; `ValueError` where the result was read from a file without it."""
        if self.target is None:
            raise ValueError(
                "this result has no target: it was read from a file, which holds no functions. Without it there are "
                "`summary`, `predict`, `report`, `resample` and a `fit` from its particles, and `draws` where no "
                "parameter is constrained: they are recorded in unconstrained coordinates, and the target has the map. "
                "Give `steinkern.load(path, target=...)` the log density or the model of the run: "
                f"{self.settings.get('target', 'it was combined from several')}."
            )
        target: BoundTarget = self.target
        return target

    @property
    def draws(self) -> PyTree:
        """The draws of the chains of `sample`: the structure of the particles, with leading axes (chain, draw).

        Take quantiles, probabilities and tails from the draws: there are up to 10,000 of them, where quantiles of 100
        particles err by 0.1 to 0.3 standard deviations. The particles are a small choice of them for what is costly at
        every point, such as predictions. `to_arviz` exports the draws, so that `arviz.summary` states R-hat, effective
        sample sizes and Monte Carlo errors.

        ```python
        slopes = result.draws["slope"]             # (chain, draw, …), constrained, after warm-up
        np.quantile(slopes, [0.05, 0.95], axis=(0, 1))
        (result.draws["a"] > result.draws["b"]).mean()
        ```

        They are computed from `result.recorded` at every access: keep them in a variable. Of long chains 100 evenly
        spaced transitions are kept, fewer in thousands of dimensions.

        Raises:
            ValueError: there are no chains: the result is of `fit`, `combine`, or a `sample` without a posterior. Or
                some parameters are constrained, and the result was read from a file without the target, which has the
                map from the recorded coordinates.
        """
        if self.recorded is None:
            raise ValueError(
                "this result has no draws: only that of a `sample` which found a posterior has chains. Take "
                "`result.particles`, or call `sample`."
            )
        recorded = jax.device_put(self.recorded.points)
        if self.target is None:
            particles, points = jax.device_put((self.particles, self.points))
            layout = Layout.of(jax.tree.map(lambda leaf: leaf[0], particles))
            if np.array_equal(jax.vmap(layout.ravel)(particles), points):  # no constraints
                return jax.tree.map(np.asarray, jax.vmap(jax.vmap(layout.unravel))(recorded))
        return jax.tree.map(np.asarray, constrained(self.known_target, recorded, 2))

    def scores(self, data: Batch = None) -> Points:
        """∇log p at the particles, in unconstrained coordinates; `data` are the full data of a target that has any."""
        data = as_data(data)
        self.known_target.check_data(data, None)
        with explain_errors("`data` must be as `fit` had them", "Were they meant for another target?"):
            return _scores(self.target, jax.device_put(self.points), data)

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
        rows = np.asarray(jr.choice(as_concrete_key(key), n, (num_particles,), replace=replace))
        particles = jax.tree.map(lambda leaf: leaf[rows], self.particles)
        recorded = jax.tree.map(lambda leaf: leaf[:, rows], self.history.particles)
        history = dataclasses.replace(self.history, particles=recorded)
        diagnostics = Diagnostics(not_checked=("the particles, which were drawn from those of a run",))
        return dataclasses.replace(
            self, particles=particles, points=self.points[rows], history=history, loop=None, diagnostics=diagnostics
        )

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
        particles = jax.device_put(self.particles)
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

        The groups are `posterior` (the parameters by name, and the deterministic sites of a model), `sample_stats`
        (`lp`, the log density in unconstrained coordinates, the chains' `acceptance_rate`, and as attributes the
        diagnostics) and, where they are known, `log_likelihood`, `observed_data` and `posterior_predictive`. The
        log-likelihood of every observation is known of a `Posterior` and of NumPyro and PyMC models; `arviz.loo` and
        `arviz.compare` need it. The axes have the names of the model's plates (NumPyro) or dims (PyMC).

        Of `sample` these are the chains' draws, with R-hat and effective sample sizes. Of `fit` they are the particles
        as one chain. That is not a Markov chain, so R-hat and effective sample sizes have no meaning:
        `arviz.summary(data, kind="stats")` leaves them out.

        ```python
        tree = result.to_arviz(data, dims={"weights": ["column"]}, coords={"column": ["age", "income"]})
        arviz.summary(tree)      # weights[age], weights[income]
        ```

        Args:
            data: the data of the fit, if any.
            key: draws `posterior_predictive` where the target is a NumPyro or PyMC model.
            observed: named observations; a NumPyro or PyMC model supplies its own.
            predictive: named predictive draws with a leading particle axis, instead of draws by `key`. They form one
                chain.
            dims: for some variables, the name of every axis, chain and draw left out; those of the model by default.
                The log-likelihood of a `Posterior` is the variable `data`, or has the name of the one observation that
                has a number for every row.
            coords: for some axes, the labels along them.
            log_likelihood: compute that group, which takes memory for draws × observations, as the predictive draws by
                `key` do. Of more than 50 million such numbers, fewer draws are exported.
        """
        return arviz_data(self, data, key, observed, predictive, dims, coords, log_likelihood)

    def report(
        self,
        directory: str | os.PathLike[str],
        data: Batch = None,
        *,
        title: str | None = None,
        coordinates: Sequence[str] | None = None,
    ) -> Path:
        """Write a self-contained page about the run, `index.html` in `directory`, and return its path.

        The page shows the run's settings, its end with the advice, the traces of the history and of the kernel Stein
        discrepancy, the particles' marginals and pairs with a slider over the iterations, and a table of the sites. The
        slider needs `record_particles=True` in `fit`; for `sample` it shows the chains, unless there are very many.

        Args:
            directory: created where it does not exist.
            data: the data of the fit, for the discrepancy; without them the page says that it is missing.
            title: of the page; the target's name by default.
            coordinates: the coordinates to draw, such as `["scale", "weights[2]"]`; a site's name means all of its
                coordinates. The first 24 by default. The page lets the reader choose among them.
        """
        return write_report(self, directory, data, title, coordinates)

    def _sites(self, particles: PyTree = None) -> dict[str, Any]:
        """The particles by name, in the precision in which they are held, and then a model's deterministic sites."""
        particles = self.particles if particles is None else particles
        model = None if self.target is None else model_of(self.target.target)
        sites = by_name(particles)
        for name, values in ({} if model is None else model.sites(particles)).items():
            if name not in sites:
                sites.update(by_name({name: values}))
        return sites

    def described_settings(self) -> dict[str, Any]:
        """The settings with the versions, and the target and the sampler as texts."""
        described: dict[str, Any] = {"versions": environment()}
        if self.target is not None:
            described |= {"name": _name_of(self.target), "target": repr(self.target.target)}
        if self.sampler is not None:
            described["sampler"] = repr(self.sampler)
        return {**described, **self.settings}

    def summary(self, max_rows: int | None = 20) -> str:
        """A table of mean, standard deviation and quantiles of every coordinate, and a report of the run.

        The deterministic sites of a model follow its latent ones, unless the result was read without its target. After
        the table come the warnings, the end of the run, its diagnostics and what was not checked. The numbers are
        computed in double precision, whatever the precision of the particles.

        Args:
            max_rows: the number of coordinates to list; `None` for all.
        """
        if max_rows is not None:
            check_count("max_rows", max_rows)
        lines, left_out = table_lines(self._sites(), max_rows)
        more = [f"… and {left_out} more: summary(max_rows=None) lists all"] if left_out else []
        warnings = [f"Warning: {notice.text.split(':')[0]}" for notice in self.warnings]
        return "\n".join([*lines, *more, *warnings, *self._ending()])

    def _ending(self) -> list[str]:
        """The last lines of the summary: the end of the run, and its diagnostics."""
        return [f"{size_of(self)}, {self.status.value}: {self.message}", *self.diagnostics.sentences()]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result to one file, which `steinkern.load(path)` reads, and return the path of the file.

        The file holds the particles, the draws of `sample`, the history, the message and warnings with their codes, the
        diagnostics, the settings and the versions of the libraries. It holds no functions: `load` takes the target
        again where it is needed. An existing file is replaced.

        To send results between processes there is no need for a file: they go through process pools where the target's
        functions can be imported by name, without the sampler if its step rule cannot.
        """
        return save(self, path)

    def __repr__(self) -> str:
        return short_text(self)

    def _repr_html_(self) -> str:
        return short_html(self)


def _name_of(target: BoundTarget) -> str:
    """The name of the user's function or model; the class of the target where it has none."""
    call = getattr(target.space, "call", None)
    named = ((target.target, "function"), (target.target, "log_likelihood"), (call, "model"))
    function: Any = next((getattr(owner, name) for owner, name in named if hasattr(owner, name)), None)
    name = getattr(inspect.unwrap(getattr(function, "func", function)), "__name__", "<lambda>")
    return type(target.target).__name__ if name == "<lambda>" else str(name)


class DivergedError(RuntimeError):
    """A fit met numbers that are not finite. `result` holds the last finite particles."""

    def __init__(self, result: Result):
        super().__init__(str(result.message))
        self.result = result
