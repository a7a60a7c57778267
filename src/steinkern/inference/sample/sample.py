"""`sample`: runs the stages of the package and returns a `Result`."""

from dataclasses import replace
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ...core.arrays import as_concrete, as_concrete_key
from ...core.errors import explain_errors
from ...core.messages import Notice, quantity
from ...core.progress import compiling, progress_bar
from ...core.types import Batch, KeyLike, LogDensityFunction, PyTree
from ...interop._model import as_target_or_model
from ...results.outcome import Cost, Diagnostics, History, Status
from ...results.result import SAMPLE_METHOD, DivergedError, Result
from ...samplers.hamiltonian import Hamiltonian
from ...targets.target import AbstractTarget
from ..arguments import as_count
from ..judge import issue, judge
from ..rounding import check_rounding
from .chains import MAX_ERROR, MAX_ROUNDS, chains_at, compile_round_ahead, run_chains
from .evaluation import Evaluator
from .particles import chain_record, constrain_points, measure_draws, place_particles
from .properness import NOT_FINITE
from .randomness import even_noise, generators
from .start import CHAINS, Start, bind, candidate_starts, expected_shapes, find_start

_MAX_PARTICLES = 1_000_000  # the chains for more particles do not fit into memory
_PARTICLES_A_CHAIN = 10  # there are more than 100 chains for more than 1,000 particles


def sample(
    key: KeyLike,
    target: AbstractTarget | LogDensityFunction,
    start: PyTree = None,
    num_particles: int | np.integer = 100,
    data: Batch = None,
    *,
    max_gradients: int | np.integer | None = None,
    progress: bool | None = None,
    throw: bool = True,
) -> Result:
    """Particles of a posterior without settings to tune, with diagnostics of the chains and the cost.

    The start may be far from the posterior and the coordinates badly scaled. First the Gaussian nearest to the target
    is fitted. Then a hundred Hamiltonian chains run from its draws until their means and standard deviations have
    converged. The particles are those draws of the chains that together represent all of them best. The target is
    computed in JAX's default precision, float64 where `jax_enable_x64` is on, and the result holds NumPy arrays of that
    precision. A warning tells where float32 is too coarse.

    ```python
    result = sk.sample(jax.random.key(0), log_density, start=jnp.zeros(3))
    print(result.summary())
    result.draws, result.particles, result.diagnostics.r_hat, result.warnings
    ```

    Args:
        key: `jax.random.key(seed)`; a legacy `jax.random.PRNGKey(seed)` gives the same random numbers.
        target: as for `fit`: a log density, a `LogDensity`, a `Posterior`, or a target that
            `steinkern.interop.numpyro.from_model` (or PyMC's) returns; or a NumPyro model that needs no arguments.
            Plates that it subsamples run in full.
        start: the pytree of one particle, in constrained coordinates, where the log density is finite. A NumPyro or
            PyMC model needs none: draws of its prior and points near 0 are tried.
        num_particles: the number of particles, up to a million.
        data: as for `fit`. All rows are used in every step.
        max_gradients: the budget of the chains, by default 10,000 a chain: a million for up to 1,000 particles, for
            which there are a hundred chains. Where it is used up before the chains have converged, the result is that
            of the draws so far, and its message says so.
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
    if num_particles > _MAX_PARTICLES:
        raise ValueError(
            f"`num_particles` must be at most {_MAX_PARTICLES:,}, got {num_particles}. Take fewer, or draw from the "
            "result with `resample(key, num_particles, replace=True)`."
        )
    max_gradients = None if max_gradients is None else as_count("max_gradients", max_gradients)
    key = as_concrete_key(key)
    random = generators(key, 4)
    unbound = as_target_or_model(target).on_all_rows()
    starts = candidate_starts(key, unbound, start)
    first = next(starts)
    data = as_concrete("data", data)
    unbound.check_data(data, None)
    settings = {
        "method": SAMPLE_METHOD,
        "max_gradients": max_gradients,
        "precision": jnp.result_type(float).name,
        "data shapes": [f"{leaf.dtype.name}{list(leaf.shape)}" for leaf in jax.tree_util.tree_leaves(data)],
        "key": [str(jr.key_impl(key)), np.asarray(jr.key_data(key)).tolist()],
    }
    with progress_bar(MAX_ROUNDS + 2, wanted=progress) as bar:
        with compiling(bar), explain_errors(*expected_shapes(first, data)):
            bound, particle, data = bind(unbound, first, data, start is not None)
            evaluator = Evaluator(bound, particle, even_noise(random[0], CHAINS, bound.space.layout.size), data)
            compile_round_ahead(bound, _num_chains(num_particles), data)
            nearest_start = find_start(random[0], evaluator, chain([first], starts), start is not None)
        result = _run(random[1:], evaluator, nearest_start, num_particles, max_gradients, settings, bar)
    issue(result.warnings, result)
    if throw and result.status is Status.DIVERGED:
        raise DivergedError(result)
    return result


def _num_chains(num_particles: int) -> int:
    return max(CHAINS, -(-num_particles // _PARTICLES_A_CHAIN))


def _run(
    random: list[np.random.Generator], evaluator: Evaluator, start: Start, num_particles: int,
    max_gradients: int | None, settings: dict[str, Any], bar: Any,
) -> Result:  # fmt: skip
    """Run the stages after the start: chains, particles, diagnostics."""
    target, data = evaluator.target, evaluator.data
    chain_random, particle_random, check_random = random

    def without_posterior(problem: Notice, points: np.ndarray, cost: Cost) -> Result:
        """Points that are not finite are replaced by the start."""
        points = points[:num_particles]
        points = np.where(np.isfinite(points).all(axis=1, keepdims=True), points, start.nearest.start)
        with np.errstate(over="ignore"):
            points = points.astype(jnp.result_type(float))
        diagnostics = Diagnostics(cost=cost, not_checked=("the particles (there is no posterior)",))
        empty = History(np.zeros(0, int), np.zeros(0), np.zeros(0), np.zeros(0), None)
        sampler = Hamiltonian(start.nearest.whitening.metric(), 1.0)
        return judge(Result(
            constrain_points(target, points), points, Status.DIVERGED, problem, 0, empty, diagnostics, target, sampler,
            None, settings,
        ))  # fmt: skip

    if start.problem is not None:
        return without_posterior(start.problem, start.cloud.points, evaluator.cost)
    bar.set_description_str("chains")
    state = chains_at(start.cloud, _num_chains(num_particles))
    chains = run_chains(chain_random, target, state, start.nearest.precision, data, bar, max_gradients=max_gradients)
    cost = evaluator.cost + chains.cost
    if chains.problem is not None:
        return without_posterior(chains.problem, chains.draws.points[-1], cost)
    placement = place_particles(particle_random, target, chains, num_particles)
    points, particles = placement.points, placement.particles
    if not all(np.isfinite(leaf).all() for leaf in (points, *jax.tree.leaves(particles))):
        return without_posterior(NOT_FINITE, points, cost)
    diagnostics = replace(
        measure_draws(check_random, chains, placement), cost=cost,
        missed_component=start.second_component.warning(chains.draws.points) if start.second_component else "",
    )  # fmt: skip
    status, message = Status.CONVERGED, Notice("converged", "means and spreads have settled.")
    if chains.stopped:
        steps = quantity(chains.num_transitions, "step")
        text = f"Ctrl-C ended the run after {steps}; the result is that of the draws so far."
        status, message = Status.STOPPED, Notice("ended-early", text)
    elif diagnostics.chain_errors.max() > MAX_ERROR:
        text = (
            f"the chains ended after {chains.num_transitions} steps and {chains.cost.gradients:,} gradients, before "
            f"standard errors of means and spreads were below {MAX_ERROR} standard deviations."
        )
        status, message = Status.FINISHED, Notice("budget" if chains.exhausted else "all-steps", text)
    name_of = target.space.layout.coordinate_name
    return judge(Result(
        particles, points, status, message, chains.num_transitions, placement.history, diagnostics, target,
        chains.sampler, None, settings, check_rounding(points, particles, name_of, placement.log_densities),
        recorded=chain_record(chains),
    ))  # fmt: skip
