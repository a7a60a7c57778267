"""`sample`: runs the stages of the package and returns a `Result`."""

import inspect
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ...core.arrays import as_concrete, as_concrete_key, as_particle
from ...core.errors import explain_errors
from ...core.messages import Notice, quantity
from ...core.progress import compiling, progress_bar
from ...core.types import Batch, Key, KeyLike, LogDensityFunction, PyTree
from ...interop._model import model_of
from ...results.outcome import Cost, Diagnostics, History, Status
from ...results.result import SAMPLE_METHOD, DivergedError, Result
from ...samplers.hamiltonian import Hamiltonian
from ...targets.target import AbstractTarget, BoundTarget, as_target
from ..arguments import as_count
from ..judge import issue, judge
from ..rounding import check_rounding
from .chains import MOST_ROUNDS, Chains, compile_round_ahead, run_chains
from .evaluation import compile_evaluation_ahead
from .measure import measure
from .particles import constrain_points, is_recorded, place_particles
from .properness import NOT_FINITE, is_running_away, no_mass_kept
from .randomness import generators
from .start import CHAINS, bind, find_start, in_shapes, num_chains

_MOST_PARTICLES = 1_000_000  # the chains for more particles do not fit into memory


def sample(
    key: KeyLike,
    target: AbstractTarget | LogDensityFunction,
    start: PyTree = None,
    num_particles: int | np.integer = 100,
    data: Batch = None,
    *,
    progress: bool | None = None,
    throw: bool = True,
) -> Result:
    """Particles of a posterior without settings to tune, with diagnostics of the chains and the cost.

    The start may be far from the posterior and the coordinates badly scaled. First the Gaussian nearest to the target
    is fitted. Then a hundred Hamiltonian chains run from its draws until their means and standard deviations have
    converged. The particles are support points of the chains' draws with these means and covariances. The target is
    computed in JAX's default precision, float64 where `jax_enable_x64` is on, and the result holds NumPy arrays of that
    precision. A warning tells where float32 is too coarse.

    ```python
    result = sk.sample(jax.random.key(0), log_density, start=jnp.zeros(3))
    print(result.summary())
    result.diagnostics.r_hat, result.diagnostics.cost.gradients, result.warnings
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
        raise ValueError(
            "`target` draws minibatches, and `sample` uses all data in every step: leave `subsample_size` out of the "
            "model's plates, or use `fit`."
        )
    starts = candidate_starts(key, given, start)
    first = next(starts)
    data = as_concrete("data", data)
    given.check_data(data, None)
    with progress_bar(MOST_ROUNDS + 2, wanted=progress) as bar:
        with explain_errors(*in_shapes(first, data)):
            bound, particle, batch = bind(given, first, data)
            if start is not None:
                bound.space.check(jax.tree.map(lambda leaf: np.asarray(leaf)[None], particle), "start")
            compile_evaluation_ahead(bound, particle, CHAINS, batch)
            compile_round_ahead(bound, num_chains(num_particles), jax.tree.leaves(particle)[0].dtype, batch)
        particles = (bind(given, other, None)[1] for other in chain([first], starts))
        settings = {
            "method": SAMPLE_METHOD,
            "precision": jnp.result_type(float).name,
            "data shapes": [f"{leaf.dtype.name}{list(leaf.shape)}" for leaf in jax.tree_util.tree_leaves(data)],
            "key": [str(jr.key_impl(key)), np.asarray(jr.key_data(key)).tolist()],
        }
        result = _run(key, given, bound, particles, batch, num_particles, settings, bar)
    issue(result.warnings, result)
    if throw and result.status is Status.DIVERGED:
        raise DivergedError(result)
    return result


def candidate_starts(key: Key, target: AbstractTarget, start: PyTree) -> Iterator[PyTree]:
    """The caller's start; without one, draws from the target's prior."""
    if start is not None:
        yield as_particle("start", start)
        return
    model = model_of(target)
    if model is None:
        raise ValueError(
            "`start` is missing: give one particle's parameters, such as `jnp.zeros(3)`. A NumPyro model that takes "
            "arguments needs `steinkern.interop.numpyro.from_model(model, ...)`."
        )
    yield from model.prior_draws(key)


def _run(
    key: Key, given: AbstractTarget, target: BoundTarget, starts: Iterable[PyTree], data: Batch, num_particles: int,
    settings: dict[str, Any], bar: Any,
) -> Result:  # fmt: skip
    """Run the four stages: start, chains, particles, diagnostics; `given` is the caller's target."""
    for_start, for_chains, for_particles, for_checks = generators(key, 4)

    def without_posterior(problem: Notice, points: Any, chains: Chains | None = None) -> Result:
        """Points that are not finite are replaced by the start, or by a point of the chains."""
        points = np.asarray(points)[:num_particles]
        whole = np.isfinite(points).all(axis=1, keepdims=True)
        points = np.where(whole, points, start.vector if chains is None else chains.draws.points[-1, 0])
        spent = start.spent if chains is None else start.spent + chains.spent
        diagnostics = Diagnostics(cost=Cost(*map(int, spent)), not_checked=("the particles (there is no posterior)",))
        sampler = Hamiltonian(start.nearest.whitening.metric(), 1.0)
        empty = History(np.zeros(0, int), np.zeros(0), np.zeros(0), np.zeros(0), None)
        ending = Status.DIVERGED, problem
        return result(constrain_points(target, points), points, ending, empty, diagnostics, sampler)

    def result(
        particles: PyTree, points: np.ndarray, ending: tuple[Status, Notice], history: History,
        diagnostics: Diagnostics, sampler: Any, num_steps: int = 0, warnings: tuple[Notice, ...] = (),
    ) -> Result:  # fmt: skip
        with np.errstate(over="ignore"):  # particles that ran away may not fit into float32
            bound = given.bind(jax.tree.map(lambda leaf: leaf[0], particles))
        return judge(Result(
            particles, points, *ending, num_steps, history, diagnostics, bound, sampler, None, settings, warnings,
        ))  # fmt: skip

    bar.set_description_str("nearest Gaussian")
    with compiling(bar):
        start = find_start(for_start, target, starts, data, num_particles)
    if start.problem is not None:
        return without_posterior(start.problem, start.chains.points)
    bar.set_description_str("chains")
    chains = run_chains(for_chains, target, start, data, is_recorded(num_particles, len(start.vector)), bar)
    if is_running_away(chains.spreads):
        problem = no_mass_kept(chains.spreads, chains.draws.log_densities, start.names)
        return without_posterior(problem, chains.draws.points[-1], chains)
    placement = place_particles(for_particles, target, data, chains, num_particles)
    if not placement.finite:
        return without_posterior(NOT_FINITE, placement.points, chains)
    diagnostics = measure(for_checks, start, chains, placement)
    num_steps = len(chains.lines.leaps)
    ending = Status.CONVERGED, Notice("converged", "means and spreads have settled.")
    if chains.stopped:
        text = f"Ctrl-C ended the run after {quantity(num_steps, 'step')}; the result is that of the draws so far."
        ending = Status.STOPPED, Notice("ended-early", text)
    rounding = check_rounding(placement.points, placement.particles, start.names.__getitem__, placement.log_densities)
    return result(
        placement.particles, placement.points, ending, placement.history, diagnostics, chains.sampler, num_steps,
        rounding,
    )  # fmt: skip


def as_target_or_model(target: Any) -> AbstractTarget:
    """A target as for `fit`, or the posterior of a NumPyro model that takes no arguments."""
    if str(type(target).__module__).partition(".")[0] == "pymc":
        raise ValueError("`target` is a model, not a log density: give `steinkern.interop.pymc.from_model(model)`.")
    if "numpyro" in sys.modules and not isinstance(target, AbstractTarget) and _takes_nothing(target):
        from ...interop.numpyro import from_model

        return from_model(target)
    return as_target(target)


def _takes_nothing(function: Any) -> bool:
    """Whether a function has no parameters without a default; `*args` counts as one, but not in NumPyro's handlers."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    if str(type(function).__module__).partition(".")[0] == "numpyro":
        return True
    return all(one.default is not one.empty or one.kind is one.VAR_KEYWORD for one in parameters)
