"""The paper's two-dimensional study: which settings, how they are chosen, and the runs themselves.

Every method starts from the same 50 particles, 1.5·N(0, I), at a seed. One setting a method and target, chosen by
`tune` at the reported iteration on seeds that are not reported, is used for the whole curve. All methods search the
same step rules and bandwidths; those that use curvature search the same curvatures; the mixture also the averaging
share of its metrics and the temperature of its weights.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float

from ..core.files import read_json
from ..core.types import Key, Points, check_choice, check_positive
from ..kernels.scalar import RBF
from ..samplers.langevin import psgld, sgld
from ..samplers.sampler import AbstractSampler
from ..samplers.stein import matrix_svgd, svgd, svn
from ..targets.curvature import AbstractCurvature, GaussNewton, Hessian
from ..targets.target import LogDensity
from .results import TITLES as TITLES
from .results import write_json
from .toy_targets import TARGETS, LogMMD, ToyTarget

Method: TypeAlias = Literal["vanilla", "svn", "average", "mixture", "sgld", "psgld"]
METHODS: tuple[Method, ...] = ("vanilla", "svn", "average", "mixture", "sgld", "psgld")
NUM_PARTICLES = 50
NUM_DRAWS = 4000
TUNING_SEEDS = tuple(range(1000, 1064))
REPORTED_SEEDS = tuple(range(20))


@dataclass(frozen=True)
class Setting:
    """The choices for one method on one target."""

    rule: str = "plain"
    """Step rule: "adagrad" (the paper's), "rmsprop" (decay 0.9, the released code's elsewhere) or "plain"."""
    step_size: Any = 0.1
    bandwidth: str | None = None
    """"median": the median trick, in the metric of the kernel. "dimension": h = d there, Eq. (13)."""
    curvature: str | None = None
    """"absolute": the exact Hessian with |eigenvalues|. "gauss_newton": JᵀJ, where the target is a sum of squares."""
    own_share: Any = 1.0
    """α in Q_l ← α Q_l + (1 − α) mean Q, of the mixture."""
    temperature: Any = 1.0
    """Of the mixture's weights; 1 is Eq. (17)."""


def checked(setting: Setting) -> Setting:
    """The setting itself, if every choice in it is known and every number positive."""
    check_choice("rule", setting.rule, tuple(_OPTIMISERS))
    check_choice("bandwidth", setting.bandwidth, ("median", "dimension", None))
    check_choice("curvature", setting.curvature, ("absolute", "gauss_newton", None))
    for name in ("step_size", "own_share", "temperature"):
        check_positive(name, getattr(setting, name))
    return setting


class Search(NamedTuple):
    """What one method searches: every combination."""

    rules: tuple[str, ...]
    step_sizes: dict[str, tuple[float, ...]]
    bandwidths: tuple[str | None, ...]
    curvatures: tuple[str | None, ...]
    own_shares: tuple[float, ...]
    temperatures: tuple[float, ...]


def _log_grid(low: float, high: float, number: int) -> tuple[float, ...]:
    return tuple(float(f"{value:.3g}") for value in np.geomspace(low, high, number))


_STEP_SIZES = {
    "adagrad": _log_grid(0.1, 6.0, 15),
    "rmsprop": _log_grid(0.01, 0.6, 15),
    "plain": _log_grid(0.03, 150.0, 24),
}


def search(method: Method, target: ToyTarget) -> Search:
    """The grid for a method on a target."""
    check_choice("method", method, METHODS)
    if method in ("sgld", "psgld"):
        return Search(("plain",), {"plain": _log_grid(1e-5, 1.0, 24)}, (None,), (None,), (1.0,), (1.0,))
    curvatures: tuple[str | None, ...] = ("absolute",) if target.residual is None else ("absolute", "gauss_newton")
    return Search(
        tuple(_STEP_SIZES),
        _STEP_SIZES,
        ("median", "dimension"),
        (None,) if method == "vanilla" else curvatures,
        (0.5, 0.8, 0.9, 1.0) if method == "mixture" else (1.0,),
        (1.0, 2.0, 4.0) if method == "mixture" else (1.0,),
    )


Numbers: TypeAlias = tuple[float, float, float]
"""Step size, own share and temperature: what is vmapped over."""


def cells(method: Method, target: ToyTarget) -> Iterator[tuple[Setting, list[Numbers]]]:
    """The search, as choices by name and for each the numbers that run together."""
    grid = search(method, target)
    for rule, bandwidth, curvature in product(grid.rules, grid.bandwidths, grid.curvatures):
        named = Setting(rule, 0.0, bandwidth, curvature)
        yield named, list(product(grid.step_sizes[rule], grid.own_shares, grid.temperatures))


def build(method: Method, setting: Setting, target: ToyTarget) -> AbstractSampler:
    """The sampler of a setting. The numbers may be traced, so that many of them run at once."""
    if method == "sgld":
        return sgld(setting.step_size)
    if method == "psgld":
        return psgld(setting.step_size)
    kernel = RBF() if setting.bandwidth == "median" else RBF(2.0)
    optimiser = _OPTIMISERS[setting.rule](setting.step_size)
    if method == "vanilla":
        return svgd(kernel, optimiser)
    curvature = _curvature(setting, target)
    if method == "svn":
        return svn(curvature, kernel, optimiser)
    if method == "average":
        return matrix_svgd("average", curvature, kernel, optimiser)
    return matrix_svgd(
        "mixture", curvature, kernel, optimiser, own_share=setting.own_share, temperature=setting.temperature
    )


_OPTIMISERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "adagrad": partial(optax.adagrad, initial_accumulator_value=0.0),
    "rmsprop": partial(optax.rmsprop, decay=0.9),
    "plain": optax.sgd,
}


def _curvature(setting: Setting, target: ToyTarget) -> AbstractCurvature:
    if setting.curvature == "gauss_newton":
        if target.residual is None:
            raise ValueError(f"`curvature` cannot be 'gauss_newton' on {target.name}, which is no sum of squares.")
        return GaussNewton(target.residual)
    return Hessian(floor=1e-3)


def first_particles(seed: Any) -> Float[Array, "n 2"]:
    """1.5·N(0, I), the same for every method at a seed."""
    return 1.5 * jr.normal(jr.fold_in(jr.key(0), seed), (NUM_PARTICLES, 2))


def exact_draws(target: ToyTarget) -> Float[Array, "m 2"]:
    """The draws that the particles are compared with: one set for a target."""
    return target.draws(jr.key(20190612), NUM_DRAWS)


def trajectory(
    key: Key, method: Method, setting: Setting, target: ToyTarget, points: Points, num_steps: int
) -> Float[Array, "t n 2"]:
    """The particles after 0, 1, …, `num_steps` steps."""
    sampler = build(method, setting, target)
    bound = LogDensity(target.log_density).bind(points[0])

    def step(state: Any, step_key: Key) -> tuple[Any, Points]:
        state, _ = sampler.step(step_key, state, bound)
        return state, state.points

    _, later = jax.lax.scan(step, sampler.init(bound, points), jr.split(key, num_steps))
    return jnp.concatenate([points[None], later])


def trajectories(
    method: Method, setting: Setting, target: ToyTarget, seeds: tuple[int, ...], num_steps: int
) -> Float[np.ndarray, "s t n 2"]:
    """The trajectory of every seed, all under one `vmap`."""

    def one(seed: Array) -> Array:
        key = jr.fold_in(jr.key(1), seed)
        return trajectory(key, method, setting, target, first_particles(seed), num_steps)

    return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(seeds)))


class Trial(NamedTuple):
    """What the search found for one setting: the mean over tuning seeds of log MMD² at the reported iteration."""

    setting: Setting
    mean: float
    stderr: float


def evaluate(method: Method, named: Setting, numbers: list[Numbers], target: ToyTarget, measure: LogMMD) -> list[Trial]:
    """Run all numbers of one cell on all tuning seeds, stopping at the reported iteration."""

    def one(number: Array, seed: Array) -> Array:
        setting = _with_numbers(named, number)
        key = jr.fold_in(jr.key(2), seed)
        path = trajectory(key, method, setting, target, first_particles(seed), target.reported_iteration)
        return measure(path[-1])

    both = jax.vmap(jax.vmap(one, (None, 0)), (0, None))
    compiled = jax.jit(lambda some: both(some, jnp.asarray(TUNING_SEEDS)))
    chunk = 10 if method == "mixture" else len(numbers)  # the mixture holds l × n × n numbers a run
    trials = []
    for start in range(0, len(numbers), chunk):
        some = numbers[start : start + chunk]
        filled = some + [some[-1]] * (chunk - len(some))  # one shape, one compilation
        values = np.asarray(compiled(jnp.asarray(filled)))[: len(some)]
        for number, value in zip(some, values, strict=True):
            error = float(value.std(ddof=1) / np.sqrt(value.size))
            trials.append(Trial(_with_numbers(named, number), float(value.mean()), error))
    return trials


def tune(target_name: str, log: Path, progress: Callable[[str], None] = print) -> dict[str, Setting]:
    """Search every method's settings on one target; the winners by method.

    Every cell of the search is written to `log` when it is done, and a cell already there is not run again, so that an
    interrupted search goes on where it stopped.
    """
    target = TARGETS[target_name]
    measure = LogMMD.to(exact_draws(target))
    done = _read_log(log)
    for method in METHODS:
        for named, numbers in cells(method, target):
            name = f"{target_name}/{method}/{named.rule}/{named.bandwidth}/{named.curvature}"
            if name not in done:
                trials = evaluate(method, named, numbers, target, measure)
                done[name] = [
                    [*number, _rounded(trial.mean), _rounded(trial.stderr)]
                    for number, trial in zip(numbers, trials, strict=True)
                ]
                write_json(log, done)
            finite = [mean for *_, mean, _ in done[name] if mean is not None]
            progress(f"{name}: {min(finite, default=float('nan')):.3f}")
    return {method: winner(done, target_name, method)[0] for method in METHODS}


def _read_log(log: Path) -> dict[str, list[Any]]:
    if not log.exists():
        return {}
    try:
        done = read_json(log)
    except ValueError as error:
        raise ValueError(f"{log} is not the log of a search: {error}. Move it away to start anew.") from error
    if not isinstance(done, dict):
        raise ValueError(f"{log} is not the log of a search. Move it away to start anew.")
    return done


def winner(done: Mapping[str, list[Any]], target_name: str, method: str) -> tuple[Setting, float]:
    """The best setting of a method in the log of a search, and its mean log MMD² on the tuning seeds."""
    best: tuple[Setting, float] | None = None
    for name, entries in done.items():
        where, who, rule, bandwidth, curvature = name.split("/")
        if (where, who) != (target_name, method):
            continue
        named = Setting(rule, 0.0, _named(bandwidth), _named(curvature))
        for *number, mean, _ in entries:
            if mean is not None and (best is None or mean < best[1]):
                best = _with_numbers(named, number), mean
    if best is None:
        raise ValueError(f"the search holds no finite result for {method} on {target_name}: run `--tune` first.")
    return best


def recorded_settings() -> dict[str, dict[str, Setting]]:
    """The winners of the search that comes with the package, by target and method."""
    text = resources.files(__package__).joinpath("toy_settings.json").read_text()
    return {
        target: {method: Setting(**values) for method, values in methods.items()}
        for target, methods in json.loads(text)["winners"].items()
    }


def settings_content(winners: Mapping[str, Mapping[str, Setting]]) -> dict[str, Any]:
    """What `toy_settings.json` holds."""
    chosen = {
        name: {method: asdict(setting) for method, setting in methods.items()} for name, methods in winners.items()
    }
    return {"tuning_seeds": list(TUNING_SEEDS), "winners": chosen}


def _with_numbers(named: Setting, number: Any) -> Setting:
    return replace(named, step_size=number[0], own_share=number[1], temperature=number[2])


def _rounded(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None


def _named(text: str) -> str | None:
    return None if text == "None" else text
