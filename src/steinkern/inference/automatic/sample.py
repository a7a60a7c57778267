"""`sample`: runs the stages of the package and returns a `Sampled`."""

import dataclasses
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import jax
import jax.random as jr
import numpy as np

from ...core.arrays import as_concrete_key, as_numpy, check_not_empty, with_columns
from ...core.errors import explain_errors
from ...core.keywords import helpful_keywords
from ...core.notices import Notice, Phrase, RefusalError
from ...core.progress import compiling, progress_bar
from ...core.types import Batch, Key, KeyLike, LogDensityFunction, PyTree, SteinWarning, warn_caller
from ...results.result import ChainHistory, DivergedError, Faults, Result, Status
from ...samplers.hamiltonian import Hamiltonian
from ...targets.target import AbstractTarget, as_target
from ..arguments import as_count
from .chains import MOST_ROUNDS, Chains, run_chains
from .closure_graph import names_in
from .particles import Placement, constrain_points, is_recorded, place_particles
from .precision import bind, double_precision, in_shapes
from .properness import NOT_FINITE, is_running_away, no_mass_kept
from .quality import Cost, Quality, check
from .randomness import generators
from .start import Start, find_start

_METHOD = "sample: the nearest Gaussian, Hamiltonian chains from it, support points of their draws"
_MOST_PARTICLES = 1_000_000  # the chains for more particles do not fit into memory


@dataclass(frozen=True, repr=False)
class Sampled(Result):
    """The result of `sample`: a `Result` with measures of its quality and of its cost."""

    history: ChainHistory  # type: ignore[assignment]  # of chains, with other columns than that of `fit`
    """The course of the chains."""
    quality: Quality | None = None
    """`None` where no posterior was found."""
    cost: Cost = Cost(0, 0, 0, 0)
    log_densities: np.ndarray | None = None
    """The log density at the particles in unconstrained coordinates, in the precision of the run."""
    _chains: ClassVar[bool] = True
    _flow: ClassVar[str] = "Before the last step these are the chains; the particles are support points of their draws."
    _no_flow: ClassVar[str] = "The chains are too many to be kept; the particles are support points of their draws."

    def _with_rows(self, rows: np.ndarray) -> "Sampled":
        """Without the quality, which was measured for all particles together."""
        chosen = super()._with_rows(rows)
        assert isinstance(chosen, Sampled)
        values = None if self.log_densities is None else self.log_densities[rows]
        return dataclasses.replace(chosen, quality=None, log_densities=values)

    def _log_densities(self, data: Batch) -> Any:
        return super()._log_densities(data) if self.log_densities is None else self.log_densities

    def _description(self) -> Mapping[str, Any]:
        found = {} if self.quality is None else {"quality": self.quality.in_words(), "cost": self.cost.in_words()}
        return {**super()._description(), "method": _METHOD, **found}

    def _ending(self) -> list[str]:
        known = [] if self.quality is None else [f"{self.quality.in_words()}; {self.cost.in_words()}"]
        return [*super()._ending(), *known]


@helpful_keywords
def sample(
    key: KeyLike,
    target: AbstractTarget | LogDensityFunction,
    start: PyTree = None,
    num_particles: int | np.integer = 100,
    data: Batch = None,
    *,
    progress: bool | None = None,
    throw: bool = True,
) -> Sampled:
    """Particles of a posterior without settings to tune, with measures of their quality and cost.

    The start may be far from the posterior and the coordinates badly scaled. First the Gaussian nearest to the target
    is fitted. Then a hundred Hamiltonian chains run from its draws until their means and standard deviations have
    converged. The particles are support points of the chains' draws with these means and covariances. Everything is
    computed in double precision where the log density allows it, whatever `jax_enable_x64` is, and returned as NumPy
    arrays in that precision.

    ```python
    result = sk.sample(jax.random.key(0), log_density, start=jnp.zeros(3))
    print(result.summary())
    result.quality.r_hat, result.cost.gradients, result.warnings
    ```

    Args:
        key: `jax.random.key(seed)`; a legacy `jax.random.PRNGKey(seed)` gives the same random numbers.
        target: as for `fit`: a log density, a `LogDensity`, a `Posterior`, or a target that
            `steinkern.interop.numpyro.from_model` (or PyMC's) returns; or a NumPyro model that takes no arguments.
        start: the pytree of one particle, in constrained coordinates, where the log density is finite. A NumPyro or
            PyMC model needs none: its prior is drawn from.
        num_particles: the number of particles, up to a million.
        data: as for `fit`. All rows are used in every step.
        progress: show a progress bar; by default on a terminal and in a notebook.
        throw: raise `DivergedError` (which carries the result) where no finite mass is found; `False` returns a result
            with that status.

    A `SteinWarning`, which is also in `result.warnings`, tells of chains in separate modes, funnels, heavy tails and
    other reasons to distrust the result. Modes that no chain has visited are not detected. Ctrl-C ends the chains after
    the current round of 50 transitions, and a result of the draws so far is returned.

    Raises:
        ValueError: the arguments do not fit together, or the density is not finite at the start.
        DivergedError: the density is flat or grows in some direction, so that there is no posterior.
    """
    num_particles = as_count("num_particles", num_particles)
    if num_particles > _MOST_PARTICLES:
        raise ValueError(
            f"`num_particles` must be at most {_MOST_PARTICLES:,}, got {num_particles}. Take fewer, or draw from the "
            "result with `resample(key, num_particles, replace=True)`."
        )
    key = as_concrete_key(key)
    given = as_target_or_model(target)
    if given.sampled_rows(None, None):
        draws = "`target` draws minibatches, and `sample` uses all data in every step: "
        raise RefusalError(Notice("minibatches", draws, Phrase.WHOLE_DATA, "."))
    starts = candidate_starts(key, given, start)
    first = next(starts)
    # As NumPy arrays, because JAX in single precision would round them.
    data = jax.tree.map(partial(as_numpy, "data"), with_columns(data))
    given.check_data(data, None)
    bar = progress_bar(MOST_ROUNDS + 2, wanted=progress)
    with bar, double_precision(given, first, data) as (wide, inner):
        with explain_errors(*in_shapes(first, data)):
            bound, particle, batch = bind(inner, first, data, wide)
            if start is not None:
                bound.bound_space.check(jax.tree.map(lambda leaf: np.asarray(leaf)[None], particle), "start")
        particles = (bind(inner, other, None, wide)[1] for other in chain([first], starts))
        run = _run(key, bound, particles, batch, num_particles, bar)
    settings = {
        "precision": "float64" if wide else "float32",
        "data shapes": [f"{leaf.dtype.name}{list(leaf.shape)}" for leaf in jax.tree_util.tree_leaves(data)],
        "key": [str(jr.key_impl(key)), np.asarray(jr.key_data(key)).tolist()],
    }
    result = _result(run, given, settings)
    for text in result.warnings:
        warn_caller(SteinWarning(text, result))
    if throw and result.status is Status.DIVERGED:
        raise DivergedError(result)
    return result


@dataclass(frozen=True)
class _Run:
    """The results of the stages of a run; `None` for those after a stage that found no posterior."""

    start: Start
    chains: Chains | None = None
    placement: Placement | None = None
    quality: Quality | None = None
    warnings: tuple[Notice, ...] = ()
    problem: Notice | None = None
    """Why there is no posterior; `None` where there is one."""
    particles: PyTree = None
    """The last finite particles of a run without a posterior, in constrained coordinates."""
    points: np.ndarray | None = None
    """The same particles, in unconstrained coordinates."""


def candidate_starts(key: Key, target: AbstractTarget, start: PyTree) -> Iterator[PyTree]:
    """The caller's start; without one, an endless series of draws from the prior, in the caller's precision."""
    if start is not None:
        check_not_empty("start", start)
        yield jax.tree.map(_as_numbers, start)
        return
    if not target.has_prior:
        raise ValueError("`start` is missing: give one particle's parameters, such as `jnp.zeros(3)`.")
    double = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    draws = target.prior_draws(key)
    while True:
        with jax.enable_x64(double):
            drawn = next(draws)
        yield drawn


def _run(key: Key, target: AbstractTarget, starts: Iterable[PyTree], data: Batch, num_particles: int, bar: Any) -> _Run:
    """Run the four stages: start, chains, particles, checks."""
    for_start, for_chains, for_particles, for_checks = generators(key, 4)
    bar.set_description_str("nearest Gaussian")
    with compiling(bar):
        start = find_start(for_start, target, starts, data, num_particles)
    if start.problem is not None:
        return _without_posterior(target, start.problem, start.chains.points, num_particles, start)
    bar.set_description_str("chains")
    chains = run_chains(for_chains, target, start, data, is_recorded(num_particles, len(start.vector)), bar)
    if is_running_away(chains.spreads):
        problem = no_mass_kept(chains.spreads, chains.draws.log_densities, start.names)
        return _without_posterior(target, problem, chains.draws.points[-1], num_particles, start, chains)
    placement = place_particles(for_particles, target, data, chains, num_particles)
    if not placement.finite:
        return _without_posterior(target, NOT_FINITE, placement.points, num_particles, start, chains)
    quality, warnings = check(for_checks, start, chains, placement)
    return _Run(start, chains, placement, quality, warnings)


def _without_posterior(
    target: AbstractTarget, problem: Notice, points: Any, num_particles: int, start: Start, chains: Chains | None = None
) -> _Run:
    """A run without a posterior. Points that are not finite are replaced by the start, or by a point of the chains."""
    points = np.asarray(points)[:num_particles]
    whole = np.isfinite(points).all(axis=1, keepdims=True)
    points = np.where(whole, points, start.vector if chains is None else chains.draws.points[-1, 0])
    particles = constrain_points(target, points)
    return _Run(start, chains, problem=problem, particles=particles, points=points)


def _result(run: _Run, given: AbstractTarget, settings: dict[str, Any]) -> Sampled:
    """The result of a run, with the target bound in the caller's precision."""
    start, chains, placement = run.start, run.chains, run.placement
    if placement is None:
        assert run.points is not None
        assert run.problem is not None
        particles, points, values, history = run.particles, run.points, None, _NO_HISTORY
        status, message = Status.DIVERGED, run.problem
    else:
        particles, points, values = placement.particles, placement.points, placement.log_densities
        history = placement.history
        assert chains is not None
        status = Status.STOPPED if chains.stopped else Status.FINISHED if run.warnings else Status.CONVERGED
        message = _MESSAGES[status]
    steps = start.nearest.rounds if chains is None else len(chains.lines.leaps)
    sampler = (
        Hamiltonian(start.nearest.whitening.metric(), 1.0) if placement is None or chains is None else chains.sampler
    )
    spent = start.spent + sum(stage.spent for stage in (chains, placement) if stage is not None)
    with np.errstate(over="ignore"):  # particles that ran away may not fit into float32
        bound = given.bind(jax.tree.map(lambda leaf: leaf[0], particles))
    return Sampled(
        particles, points, status, message, steps, history, Faults(), bound, sampler, None, settings, run.warnings,
        run.quality, Cost(*map(int, spent)), values,
    )  # fmt: skip


_NO_HISTORY = ChainHistory(np.zeros(0, int), np.zeros(0), np.zeros(0), np.zeros(0), None)
_MESSAGES = {
    Status.STOPPED: Notice("ended-early", "Ctrl-C ended the run; the result is that of the draws so far."),
    Status.FINISHED: Notice("not-settled", "the run ended, but its checks did not pass: see the warnings."),
    Status.CONVERGED: Notice("converged", "means and spreads have settled."),
}


def as_target_or_model(target: Any) -> AbstractTarget:
    """A target as for `fit`, or the posterior of a NumPyro model that takes no arguments."""
    package = str(type(target).__module__).partition(".")[0]
    model = package == "pymc" or (not isinstance(target, AbstractTarget) and _is_numpyro_model(target))
    if not model:
        return as_target(target)
    library = "pymc" if package == "pymc" else "numpyro"
    if library == "numpyro" and _takes_nothing(target):
        from ...interop.numpyro import from_model

        return from_model(target)
    raise ValueError(
        f"`target` is a model, not a log density: give `steinkern.interop.{library}.from_model(model"
        f"{'' if library == 'pymc' else ', ...'})`, with the model's arguments if it has any."
    )


def _is_numpyro_model(function: Any) -> bool:
    """Whether a function calls `numpyro.sample`, by the names in its code."""
    numpyro = sys.modules.get("numpyro")
    if numpyro is None or not callable(function):
        return False
    function = inspect.unwrap(getattr(function, "func", function))
    code, scope = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None:
        return str(type(function).__module__).partition(".")[0] == "numpyro"
    names = names_in(code)
    cells = dict(zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=True))
    named = [scope[name] for name in names if name in scope]
    named += [cell.cell_contents for cell in cells.values() if _is_filled(cell)]
    calls = any(thing is numpyro.sample for thing in named)
    return calls or (any(thing is numpyro for thing in named) and "sample" in names)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (it raises where the cell is empty)
    except ValueError:
        return False
    return True


def _takes_nothing(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def _as_numbers(leaf: Any) -> np.ndarray:
    numbers = as_numpy("start", leaf)
    if numbers.dtype.kind == "c":
        raise ValueError(f"`start` must hold real numbers, one particle's parameters, got {leaf!r}.")
    return numbers
