"""Reference means and standard deviations of every target, and how they were made.

Where there is a closed form it is taken: for the Gaussians, the funnel, the banana, the four modes and the Dirichlet.
Two dimensions are integrated on a grid. The rest is long runs of NumPyro's NUTS in double precision, eight chains with
a dense mass matrix where there are few coordinates, until R-hat is below 1.01 and there are enough effective draws of
every coordinate and of its square, or each chain has 24,000 draws: how, and what was reached, is in the file.
Coordinates are whitened by the Hessian at the mode, and centered hierarchies run non-centered and mapped back.

NumPyro models are run by two samplers, NumPyro's NUTS and BlackJAX's, each from uniform starts with a warm-up of its
own, in coordinates without the funnel where there is one. The reference is the moments of all draws, functions of the
parameters included. The file tells how far the samplers are apart, in standard deviations, and the worst R-hat and
effective numbers of the two.

The same file holds how many gradients a warm-up of 1000 iterations takes, from the naive start and with NumPyro's
defaults.

    python -m benchmarks references --json benchmarks/results/references.json --resume
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from scipy.special import digamma, polygamma

from ..bench import Answer, Benchmark, Row
from . import minibatch, shapes
from .mode import find_mode
from .nuts import Chains
from .target import Target
from .targets import TARGETS

CHAINS = 8
WARMUP = 600
DRAWS = 250  # a round and chain
ROUNDS = 96
ENOUGH = 10_000  # effective draws of every coordinate: the mean is known to 0.01 sd
ENOUGH_SQUARES = 4_000  # of every squared deviation
MODEL_ROUNDS = 24
MODEL_ENOUGH = 2_500  # of each of two samplers
MAX_DENSE = 60  # coordinates; a diagonal mass matrix for more
ONE_BY_ONE = ("pharmacokinetics",)  # chains together wait for the smallest steps of the solver
Map = Callable[[Any], Any]


# --- closed forms ---


def _gaussian(moments: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    mean, covariance = moments
    return mean, np.sqrt(np.diagonal(covariance))


def _funnel() -> tuple[np.ndarray, np.ndarray]:
    """E x² = E exp(v) = exp(9/2)."""
    return np.zeros(10), np.array([shapes.FUNNEL_SD] + 9 * [np.exp(shapes.FUNNEL_SD**2 / 4)])


def _banana() -> tuple[np.ndarray, np.ndarray]:
    """E x² = m² + s² and Var x² = 2s⁴ + 4m²s² for x ~ N(m, s²)."""
    m, s, bend = shapes.BANANA_MEAN, shapes.BANANA_SD, shapes.BANANA_BEND
    second = np.sqrt(bend**2 * (2 * s**4 + 4 * m**2 * s**2) + 1)
    return np.array([m, bend * (m**2 + s**2)]), np.array([s, second])


def _four_modes() -> tuple[np.ndarray, np.ndarray]:
    weights, centres, sds = shapes.MODE_WEIGHTS, shapes.MODES, shapes.MODE_SDS
    mean = weights @ centres
    return mean, np.sqrt(weights @ (centres**2 + sds[:, None] ** 2) - mean**2)


def _dirichlet() -> tuple[np.ndarray, np.ndarray]:
    """The stick's parts are Beta(a_k, a_k+1 + … + a_K), and NumPyro's coordinates their logits plus log(K - k)."""
    a = 0.1 + np.array([2.0, 2, 0, 1, 0, 0, 0, 0, 0, 0])
    rest = np.cumsum(a[::-1])[::-1][1:]
    of_logits = digamma(a[:-1]) - digamma(rest) + np.log(np.arange(9, 0, -1)), polygamma(1, a[:-1]) + polygamma(1, rest)
    seen = np.append(a[[0, 1, 3]], a.sum() - a[[0, 1, 3]].sum()) / a.sum()
    variances = np.concatenate([of_logits[1], seen * (1 - seen) / (a.sum() + 1)])
    return np.concatenate([of_logits[0], seen]), np.sqrt(variances)


CLOSED: dict[str, tuple[Callable[[], tuple[np.ndarray, np.ndarray]], str]] = {
    "gaussian-anisotropic": (lambda: _gaussian(shapes.ANISOTROPIC), "closed form: the Gaussian's own moments"),
    "gaussian-100": (lambda: _gaussian(shapes.WIDE), "closed form: the Gaussian's own moments"),
    "funnel": (_funnel, "closed form: moments of a log-normal variance"),
    "banana": (_banana, "closed form: moments of a squared Gaussian"),
    "four-modes": (_four_modes, "closed form: moments of a mixture of Gaussians"),
    "sparse-dirichlet": (_dirichlet, "closed form: independent beta variables, their logits shifted"),
}


# --- quadrature ---

ON_A_GRID = ("gamma",)


def on_a_grid(target: Target, width: float = 12.0, size: int = 1201) -> tuple[np.ndarray, np.ndarray]:
    """The trapezoidal rule in two dimensions, on a grid along the axes of the Hessian at the mode."""
    centre, root = _whitening(target.log_density, target.start)
    axis = np.linspace(-width, width, size)
    whitened = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    points = centre + whitened @ root.T
    logs = np.asarray(jax.jit(jax.vmap(target.log_density))(jnp.asarray(points)))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ points
    return mean, np.sqrt(weights @ (points - mean) ** 2)


# --- NUTS ---


def _schools(x: Any) -> tuple[Any, Any]:
    """From standardised effects to effects; the log-determinant of the map."""
    return jnp.concatenate([x[:2], x[0] + jnp.exp(x[1]) * x[2:]]), 8 * x[1]


def _growth(x: Any) -> tuple[Any, Any]:
    lines = x[:2][:, None] + jnp.exp(x[2:4])[:, None] * x[5:].reshape(2, 10)
    return jnp.concatenate([x[:5], lines.reshape(20)]), 10 * jnp.sum(x[2:4])


def _horseshoe(x: Any) -> tuple[Any, Any]:
    """Coefficients over their prior scale, from ones that are also over what the 50 rows tell."""
    log_lam, log_precision, log_tau, w = x[:32], x[32], x[33], x[34:]
    shrunk = -0.5 * jnp.log1p(50 * jnp.exp(2 * (log_tau + log_lam) + log_precision))
    return jnp.concatenate([x[:34], w * jnp.exp(shrunk)]), jnp.sum(shrunk)


def _cells(x: Any) -> tuple[Any, Any]:
    scales = jnp.repeat(x[78:][jnp.array([1, 2, 0])], np.array([5, 60, 12]), total_repeat_length=77)
    return jnp.concatenate([x[:77] * jnp.exp(scales), x[77:]]), jnp.sum(scales)


def _scale_of_36(x: Any) -> tuple[Any, Any]:
    return jnp.concatenate([x[36] + jnp.exp(x[37]) * x[:36], x[36:]]), 36 * x[37]


def _volatility(x: Any) -> tuple[Any, Any]:
    level, logit, log_step = x[147:]
    log_first = log_step - 0.5 * jnp.log1p(-(jax.nn.sigmoid(logit) ** 2))

    def follow(h: Any, z: Any) -> tuple[Any, Any]:
        h = level + jax.nn.sigmoid(logit) * (h - level) + jnp.exp(log_step) * z
        return h, h

    first = level + jnp.exp(log_first) * x[0]
    _, rest = jax.lax.scan(follow, first, x[1:147])
    return jnp.concatenate([first[None], rest, x[147:]]), log_first + 146 * log_step


REWRITTEN: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "schools-centred": _schools,
    "growth-centred": _growth,
    "horseshoe": _horseshoe,
    "cells": _cells,
    "scale-of-36": _scale_of_36,
    "volatility-147": _volatility,
}


def _in_easier_coordinates(target: Target) -> tuple[Map, Map]:
    """The log density in coordinates that a chain finds easy, and the map from them to the target's own."""
    rewrite = REWRITTEN.get(target.name, lambda x: (x, 0.0))

    def log_density(x: Any) -> Any:
        point, log_determinant = rewrite(x)
        return target.log_density(point) + log_determinant

    return log_density, lambda x: rewrite(x)[0]


def _draw_enough(
    rounds: Iterator[np.ndarray], most: int, enough: int, squares: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Draws (chains, draws, d) of as many rounds as it takes, and what they reach."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    parts: list[np.ndarray] = []
    for part in islice(rounds, most):
        parts.append(part)
        points = np.concatenate(parts, axis=1)
        deviations = (points - points.mean((0, 1))) ** 2
        ess, ess_squares = (float(effective_sample_size(each).min()) for each in (points, deviations))
        r_hat = float(max(split_gelman_rubin(points).max(), split_gelman_rubin(deviations).max()))
        if r_hat < 1.01 and ess >= enough and ess_squares >= squares:
            break
    return points, {"r_hat": round(r_hat, 5), "ess": round(ess), "ess_of_squares": round(ess_squares)}


def _whitening(log_density: Map, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode, and a root of the inverse Hessian of -log p there, made positive."""
    mode = find_mode(log_density, start)
    eigenvalues, basis = np.linalg.eigh(mode.precision)
    floor = 1e-12 * np.abs(eigenvalues).max()
    return mode.point, basis / np.sqrt(np.maximum(np.abs(eigenvalues), floor))


def _numpyro_rounds(log_density: Map, dim: int, together: bool) -> Iterator[Any]:
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(potential_fn=lambda x: -log_density(x), dense_mass=dim <= MAX_DENSE, target_accept_prob=0.9)
    mcmc = MCMC(
        kernel, num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS, progress_bar=False,
        chain_method="vectorized" if together else "sequential",
    )  # fmt: skip
    starts = jr.uniform(jr.key(1), (CHAINS, dim), minval=-2.0, maxval=2.0)
    mcmc.run(jr.key(2024), init_params=starts)
    while True:
        yield mcmc.get_samples(group_by_chain=True)
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(mcmc.last_state.rng_key)


def _blackjax_rounds(log_density: Map, dim: int, together: bool) -> Iterator[Any]:
    """All chains go on with the step size and mass of the one whose step size is the median; a round is dropped."""
    import blackjax

    adaptation = blackjax.window_adaptation(
        blackjax.nuts,
        log_density,
        is_mass_matrix_diagonal=dim > MAX_DENSE,
        target_acceptance_rate=0.9,
        initial_step_size=0.01,  # with a large one the first moves end far from everything
    )
    kernel = blackjax.nuts.build_kernel()

    batch_size = CHAINS if together else None

    def warm_up(chain: Any) -> Any:
        (state, options), _ = adaptation.run(*chain, num_steps=WARMUP)
        return state, options

    @jax.jit
    def advance(key: Any, states: Any, options: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            state, _ = kernel(key, state, log_density, **options)
            return state, state.position

        def chain(key_and_state: Any) -> Any:
            key, state = key_and_state
            return jax.lax.scan(step, state, jr.split(key, DRAWS))

        return jax.lax.map(chain, (jr.split(key, CHAINS), states), batch_size=batch_size)

    start_key, *keys = jr.split(jr.key(4048), 1 + 2 + MODEL_ROUNDS)
    starts = jr.uniform(start_key, (CHAINS, dim), minval=-0.5, maxval=0.5)
    chains = jr.split(keys[0], CHAINS), starts
    states, options = jax.jit(lambda chains: jax.lax.map(warm_up, chains, batch_size=batch_size))(chains)
    middle = np.argsort(options["step_size"])[CHAINS // 2]
    options = jax.tree.map(lambda leaf: leaf[middle], options)
    for number, key in enumerate(keys[1:]):
        states, draws = advance(key, states, options)
        if number > 0:
            yield draws


def by_nuts(target: Target) -> dict[str, Any]:
    """Long chains of NumPyro's NUTS; how many draws they took, R-hat and the effective numbers are in the answer."""
    easier, back = _in_easier_coordinates(target)
    centre, root = _whitening(easier, target.start)

    def from_whitened(z: Any) -> Any:
        return jnp.asarray(centre) + jnp.asarray(root) @ z

    to_points = jax.jit(jax.vmap(jax.vmap(lambda z: back(from_whitened(z)))))
    rounds = _numpyro_rounds(lambda z: easier(from_whitened(z)), target.dim, True)
    points, checks = _draw_enough((np.asarray(to_points(part)) for part in rounds), ROUNDS, ENOUGH, ENOUGH_SQUARES)
    how = f"NUTS: {CHAINS} chains of {points.shape[1]} draws after {WARMUP}, whitened at the mode"
    if target.name in REWRITTEN:
        how += ", non-centered and mapped back"
    return {"how": how, **_moments(points.mean((0, 1)), points.std((0, 1))), **checks}


def by_two_samplers(target: Target) -> dict[str, Any]:
    """The moments of all draws of two samplers, the smaller effective numbers, and how far the samplers are apart."""
    easier, back = _in_easier_coordinates(target)

    @jax.jit
    def look(draws: Any) -> Any:
        def values(x: Any) -> Any:
            return jnp.concatenate([back(x), target.functions(back(x))])

        return jax.lax.map(jax.vmap(values), draws)

    draws, checks = [], []
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # inside NumPyro and BlackJAX
        for rounds in (_numpyro_rounds, _blackjax_rounds):
            values = (np.asarray(look(part)) for part in rounds(easier, target.dim, target.name not in ONE_BY_ONE))
            of_sampler, reached = _draw_enough(values, MODEL_ROUNDS, MODEL_ENOUGH, MODEL_ENOUGH)
            draws.append(of_sampler.reshape(-1, of_sampler.shape[2]))
            checks.append(reached)
    together = np.concatenate(draws)
    sd = together.std(0)
    apart = {
        "means_apart": float(np.max(np.abs(draws[0].mean(0) - draws[1].mean(0)) / sd)),
        "sds_apart": float(np.max(np.abs(draws[0].std(0) - draws[1].std(0)) / sd)),
    }
    how = " and ".join(
        f"{name}'s NUTS: {len(each) // CHAINS} draws" for name, each in zip(("NumPyro", "BlackJAX"), draws, strict=True)
    )
    how += f" of each of {CHAINS} chains after {WARMUP}"
    if target.name in REWRITTEN:
        how += ", in easier coordinates and mapped back"
    worst = {"r_hat": max, "ess": min, "ess_of_squares": min}
    reached = {name: of(each[name] for each in checks) for name, of in worst.items()}
    return {"how": how, **_moments(together.mean(0), sd), **reached, **{k: round(v, 4) for k, v in apart.items()}}


def warmup_gradients(target: Target) -> dict[str, int]:
    """Gradients, one after the other, of 1000 iterations of warm-up from the naive start, with NumPyro's defaults."""
    _, steps = Chains(target.log_density, 1000).take(jr.key(1), target.start, 1000)
    return {"diagonal": int(steps.sum())}


# --- all of it ---


def _moments(mean: np.ndarray, sd: np.ndarray) -> dict[str, Any]:
    return {name: [float(f"{value:.6g}") for value in values] for name, values in (("mean", mean), ("sd", sd))}


def other_point(target: Target) -> np.ndarray:
    """A point beside the start, at which most parts of a log density show."""
    return np.linspace(-0.1, 0.1, target.dim)


def fingerprint(target: Target) -> list[float]:
    """What a reference is made from, to six digits: the log density at two points, and the norms of the functions."""
    points = jnp.asarray(np.stack([target.start, other_point(target)]))
    values = [*jax.jit(jax.vmap(target.log_density))(points)]
    if target.functions is not None:
        values += [*jax.jit(jax.vmap(lambda x: jnp.linalg.norm(target.functions(x))))(points)]
    return [float(f"{float(value):.6g}") for value in values]


def reference(target: Target) -> dict[str, Any]:
    if target.name in CLOSED:
        moments, how = CLOSED[target.name]
        return {"how": how, **_moments(*moments())}
    if target.name in ON_A_GRID:
        return {"how": "quadrature: 1201 x 1201 points along the axes at the mode", **_moments(*on_a_grid(target))}
    return by_nuts(target) if target.model is None else by_two_samplers(target)


def run(case: str, method: str, options: Namespace) -> Answer:
    """The reference of one target, which is stored as a note beside its checks."""
    target = TARGETS[case] if case in TARGETS else minibatch.PROBLEMS[case]().on_all_rows(case)
    made = {**reference(target), "made_from": fingerprint(target)}
    if case in TARGETS:
        made["warmup_gradients"] = warmup_gradients(target)
    checks = {name: made[name] for name in ("r_hat", "ess", "ess_of_squares") if name in made}
    rows = [Row(case, method, name, float(value)) for name, value in {"dimensions": target.dim, **checks}.items()]
    return Answer(rows, [made])


BENCHMARKS = {
    "references": Benchmark([(name, "reference") for name in (*TARGETS, *minibatch.PROBLEMS)], run, precision="float64")
}
