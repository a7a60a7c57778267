"""What a fit gives back."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ..core.arrays import as_concrete_key, as_data
from ..core.description import described
from ..core.errors import explained
from ..core.files import environment
from ..core.notices import Notice
from ..core.particles import Layout, too_coarse
from ..core.programs import compiled
from ..core.types import Batch, KeyLike, Points, PyTree, SteinWarning, check_count, warn_caller
from ..interop.arviz import from_groups
from ..samplers.sampler import AbstractSampler
from ..targets.target import AbstractTarget
from .outcome import Faults as Faults
from .outcome import History as History
from .outcome import Status as Status
from .prediction import Prediction, predict
from .report import Frames, Record, Trace, write_report
from .report.facts import target_name
from .report.record import RECORD_PARTICLES, by_name, chosen_lines, discrepancy, shared_in_words
from .summary import short_html, short_text, table_lines
from .verdict import Verdict, not_judged


@dataclass(frozen=True, repr=False)
class Result:
    """Particles that approximate the target, and how they came about.

    Give it to `fit` in place of particles to go on from where it ended.
    """

    particles: PyTree
    """The particles: the structure of the initial ones, with a leading particle axis, in their own coordinates."""
    points: Float[Array, "n d"] | Float[np.ndarray, "n d"]
    """The same as one (n, d) array of unconstrained coordinates, in which the sampler works.

    Those of `sample` are NumPy arrays in double precision, as its particles are."""
    status: Status
    message: Notice
    """How the run ended: a text with a `code`."""
    num_steps: int
    """The number of steps taken, those of the fits that this one continued included."""
    history: History
    faults: Faults
    target: AbstractTarget
    sampler: AbstractSampler
    loop: Any
    """Everything the next step needs; `None` where particles were combined or resampled."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The options of `fit` as JSON: batch size, recording, tolerance, the shapes of the data, the key."""
    warnings: tuple[Notice, ...] = ()
    """What `SteinWarning` said of the run: texts, each with a `code`."""
    verdict: Verdict = field(default=not_judged(""), kw_only=True)
    """What the end of `fit` says of the particles as draws of the target."""
    failed_checks: tuple[str, ...] = field(default=(), kw_only=True)
    """Errors of the checks at the end of a run themselves, which are not raised; for reports of bugs."""

    _chains: ClassVar[bool] = False
    _flow: ClassVar[str] = ""
    _no_flow: ClassVar[str] = RECORD_PARTICLES
    """What the page says where the particles of earlier steps are not known."""

    @property
    def shared(self) -> PyTree:
        """The parameters that all particles have in common, as they are now; `None` where there are none."""
        return self.target.shared

    def scores(self, data: Batch = None) -> Points:
        """∇log p at the particles, in unconstrained coordinates; give the (full) data where the target has data."""
        data = as_data(data)
        self.target.check_data(data, None)
        with explained("`data` must be as `fit` had them", "Were they meant for another target?"):
            return self.target.scores(self.points_in_jax(), data)

    def points_in_jax(self) -> Points:
        """The points as a JAX array, in JAX's precision, with a warning where that is too coarse for their spread."""
        self._warn_of_rounding()
        return jnp.asarray(self.points)

    def _warn_of_rounding(self) -> None:
        kept, now = np.dtype(self.points.dtype), np.dtype(jax.dtypes.canonicalize_dtype(self.points.dtype))
        if now.itemsize >= kept.itemsize or len(self.points) < 2:
            return
        coarse = np.flatnonzero(too_coarse(np.asarray(self.points), now))
        if len(coarse):
            names = Layout.of(jax.tree.map(lambda leaf: leaf[0], self.particles)).coordinate_names()
            which = repr(names[coarse[0]]) if len(names) == self.points.shape[1] else f"coordinate {coarse[0]}"
            others = f" and {len(coarse) - 1} more" if len(coarse) > 1 else ""
            warn_caller(SteinWarning(
                f"{now.name} is too coarse for these particles: {which}{others} varies by less than 100 spacings of "
                "its numbers, so that rounding shows. Enable x64, or shift and rescale the parameter.", self,
            ))  # fmt: skip

    def resample(self, key: KeyLike, num_particles: int, *, replace: bool = False) -> "Result":
        """The same result with `num_particles` of its particles, drawn at random.

        A fit that goes on from it begins with a fresh sampler's state.

        Args:
            key: PRNG key.
            num_particles: how many to draw.
            replace: allow a particle to be drawn more than once, and more particles than there are. Copies of a
                particle move together: a deterministic sampler that goes on from them never parts them.
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
            self, particles=particles, points=self.points[rows], history=history, loop=None, verdict=verdict
        )

    def predict(self, function: Any, data: Batch, *, level: float = 0.9, batch_size: int | None = None) -> Prediction:
        """What the particles say of every row of `data`: mean, interval and, with labels, log predictive density.

        ```python
        prediction = result.predict(lambda parameters, row: row[0] @ parameters["weights"], (features,))
        prediction.mean, prediction.interval       # over the particles, a row each
        prediction.log_density(steinkern.Gaussian(0.1), labels).mean()
        ```

        Args:
            function: `function(parameters, row)` for *one* row, as in `Posterior`. The parameters that all particles
                share are in their place.
            data: a pytree of arrays with a common leading axis, such as `(features,)`.
            level: the probability that the interval holds.
            batch_size: evaluate so many rows at once, where all would take too much memory.
        """
        self._warn_of_rounding()
        return predict(function, jax.tree.map(jnp.asarray, self.particles), self.shared, data, level, batch_size)

    def to_arviz(
        self,
        data: Batch = None,
        *,
        key: KeyLike | None = None,
        observed: Mapping[str, Any] | None = None,
        predictive: Mapping[str, Any] | None = None,
    ) -> Any:
        """The result as ArviZ data: `InferenceData` with ArviZ 0.x, an xarray `DataTree` from 1.0 on.

        The groups are `posterior` (the particles by name, and the deterministic sites of a model), `sample_stats`
        (`lp`, the log density in unconstrained coordinates), and, where they are known, `observed_data` and
        `posterior_predictive`. The particles are one chain. They are not a Markov chain, so R̂ and effective sample
        sizes mean nothing here: `arviz.summary(data, kind="stats")` leaves them out.

        Args:
            data: the data that `fit` had, where it had any.
            key: draws `posterior_predictive` where the target is a NumPyro or PyMC model.
            observed: named observations; those of a NumPyro or PyMC model are known.
            predictive: named predictive draws with a leading particle axis, in place of drawing them by `key`.
        """
        data = as_data(data)
        self.target.check_data(data, None)
        return from_groups(
            posterior=self._sites(),
            sample_stats={"lp": self._log_densities(data)},
            observed_data=self.target.observed() if observed is None else observed,
            posterior_predictive=self._predictive(key, predictive),
            attributes={
                "inference_library": "steinkern",
                "sampler": type(self.sampler).__name__,
                "status": self.status.value,
                "message": self.message,
                "num_steps": self.num_steps,
                "check": self.verdict.sentence(),
            },
        )

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
        """Write a page about the run, `index.html` in `directory`, and return its path; it needs no network.

        It shows what was run, how it ended with the advice, the traces of the history and of the kernel Stein
        discrepancy, the particles' marginals and pairs with a slider over the iterations, a table of the sites, and
        predictive checks where they are given. The flow of the particles is there where `fit` had
        `record_particles=True`; that of the chains of `sample` is, unless there are very many.

        Args:
            directory: made where it does not exist.
            data: the data that `fit` had, for the discrepancy; without them the page says that it is missing.
            title: of the page; the target's name by default.
            coordinates: whose particles to draw, such as `["scale", "weights[2]"]`; a site's name stands for all of
                its coordinates. The first 24 by default. Those drawn at first can be changed on the page.
            key: draws predictive checks where the target is a NumPyro or PyMC model.
            observed: named observations; those of a NumPyro or PyMC model are known.
            predictive: named predictive draws with a leading particle axis, in place of drawing them by `key`.
        """
        data = as_data(data)
        if data is not None:
            self.target.check_data(data, None)
        draws = self._predictive(key, predictive)
        seen = dict(self.target.observed() if observed is None else observed) if draws else {}
        for name in set(draws) & set(seen):
            if np.shape(draws[name])[1:] != np.shape(seen[name]):
                raise ValueError(
                    f"`predictive` must hold a draw of {name!r} in the shape of its observation, "
                    f"{np.shape(seen[name])}, for every particle, got {np.shape(draws[name])}."
                )
        history = self.history
        settings = self._described()
        kept = chosen_lines(len(history.step))
        recorded = None if history.particles is None else jax.tree.map(lambda leaf: leaf[kept], history.particles)
        record = Record(
            title=target_name(settings["target"]) if title is None else title,
            status=self.status.value,
            message=self.message,
            num_steps=self.num_steps,
            num_particles=len(self.points),
            settings=settings,
            versions=environment(),
            sites={name: np.asarray(values) for name, values in self._sites().items()},
            drawn=by_name(self.particles),
            frames=None if recorded is None else Frames(history.step[kept], by_name(recorded)),
            traces={
                "velocity norm": Trace(history.step, history.velocity_norm),
                "KSD": self._discrepancy(recorded, history.step[kept], data),
                "Stein ratio": Trace(history.step, history.stein_ratio),
                "step size": Trace(history.step, history.step_size),
            },
            advice=self.warnings,
            check=self.verdict.sentence(),
            shared=shared_in_words(self.shared),
            observed=seen,
            predictive=draws,
            flow_note=self._no_flow if recorded is None else self._flow,
            chains=self._chains,
        )
        return write_report(record, directory, coordinates=coordinates)

    def _sites(self) -> dict[str, Any]:
        """Named quantities at the particles, these in the precision in which they are held."""
        return {**self.target.sites(self.particles), **by_name(self.particles)}

    def _log_densities(self, data: Batch) -> Any:
        """The log density at every particle, in unconstrained coordinates."""
        return _log_densities(self.target, self.points_in_jax(), data)

    def _described(self) -> Mapping[str, Any]:
        """What was run, as JSON: for the page."""
        return {"sampler": described(self.sampler), "target": described(self.target), **self.settings}

    def _discrepancy(self, recorded: PyTree | None, step: np.ndarray, data: Batch) -> Trace:
        """The kernel Stein discrepancy at the recorded iterations, or a word on why there is none."""
        nothing = np.zeros(0)
        if not self.sampler.differentiates:
            return Trace(nothing, nothing, "It needs the gradient of the target, which this sampler does without.")
        if self.settings.get("data shapes") and data is None:
            return Trace(nothing, nothing, "It needs the data: give them as `result.report(directory, data)`.")
        if recorded is None or self.shared is not None:
            why = "What the particles share was another at earlier steps." if recorded is not None else self._no_flow
            return discrepancy(self.target, self.points_in_jax()[None], np.array([self.num_steps]), data, why)
        self._warn_of_rounding()
        return discrepancy(self.target, _unconstrained(self.target, recorded), step, data, "")

    def _predictive(self, key: KeyLike | None, predictive: Mapping[str, Any] | None) -> dict[str, Any]:
        """Draws of what might have been observed, by name: the target's own, and those that are given."""
        particles = jax.tree.map(jnp.asarray, self.particles)
        drawn = {} if key is None else self.target.predictive(as_concrete_key(key), particles)
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
        """A table of mean, standard deviation and quantiles of every coordinate, how the run ended, and its verdict.

        The numbers are computed in double precision, whatever the particles are held in.

        Args:
            max_rows: how many coordinates to list; `None` for all.
        """
        if max_rows is not None:
            check_count("max_rows", max_rows)
        lines, left = table_lines(self.particles, max_rows)
        more = [f"… and {left} more: summary(max_rows=None) lists all"] if left else []
        return "\n".join([*lines, *more, *self._ending()])

    def _ending(self) -> list[str]:
        """The last lines of the summary: how the run ended, and its verdict."""
        lines = [f"{len(self.points)} particles, {self.num_steps} steps, {self.status.value}: {self.message}"]
        checked = self.verdict.sentence()
        return [*lines, checked] if checked else lines

    def __repr__(self) -> str:
        return short_text(self)

    def _repr_html_(self) -> str:
        return short_html(self)


@compiled
def _log_densities(target: AbstractTarget, points: Points, data: Batch) -> Float[Array, " n"]:
    return target.log_densities(points, data)


@compiled
def _unconstrained(target: AbstractTarget, recorded: PyTree) -> Float[Array, "k n d"]:
    return jax.vmap(jax.vmap(target.bound_space.unconstrain))(recorded)


class DivergedError(RuntimeError):
    """A fit met numbers that are not finite. `result` holds the last particles that were."""

    def __init__(self, result: Result):
        super().__init__(result.message)
        self.result = result
