"""Reference means and standard deviations of every target, and how they were made.

Where there is a closed form it is taken: for the Gaussians, the funnel, the banana and the four modes. Two dimensions
are integrated on a grid. The rest is long runs of NumPyro's NUTS in double precision: four chains with a dense mass
matrix, in coordinates whitened by the Hessian at the mode, until R-hat is below 1.01 and the effective number of draws
of every coordinate and of its square suffices, or each chain has 24,000 draws: what was reached is in the file.
Centered hierarchies are run non-centered and mapped back. The same file holds how many gradients a warm-up of 1000
iterations takes, from the naive start and with NumPyro's defaults.

    python -m benchmarks references --json benchmarks/results/references.json --resume
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ..bench import Answer, Benchmark, Row
from . import minibatch, shapes
from .mode import find_mode
from .target import Target
from .targets import TARGETS

CHAINS = 4
WARMUP = 1500
DRAWS = 4000  # a round and chain
ROUNDS = 6
ENOUGH = 10_000  # effective draws of every coordinate: the mean is known to 0.01 sd
ENOUGH_SQUARES = 4_000  # of every squared deviation
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


CLOSED: dict[str, tuple[Callable[[], tuple[np.ndarray, np.ndarray]], str]] = {
    "gaussian-anisotropic": (lambda: _gaussian(shapes.ANISOTROPIC), "closed form: the Gaussian's own moments"),
    "gaussian-100": (lambda: _gaussian(shapes.WIDE), "closed form: the Gaussian's own moments"),
    "funnel": (_funnel, "closed form: moments of a log-normal variance"),
    "banana": (_banana, "closed form: moments of a squared Gaussian"),
    "four-modes": (_four_modes, "closed form: moments of a mixture of Gaussians"),
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


REWRITTEN: dict[str, Callable[[Any], tuple[Any, Any]]] = {"schools-centred": _schools, "growth-centred": _growth}


def _whitening(log_density: Map, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode, and a root of the inverse Hessian of -log p there, made positive."""
    mode = find_mode(log_density, start)
    eigenvalues, basis = np.linalg.eigh(mode.precision)
    floor = 1e-12 * np.abs(eigenvalues).max()
    return mode.point, basis / np.sqrt(np.maximum(np.abs(eigenvalues), floor))


def by_nuts(target: Target) -> dict[str, Any]:
    """Four long chains; how many draws they took, R-hat and the effective numbers are in the answer."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    from .nuts import Chains

    rewrite = REWRITTEN.get(target.name, lambda x: (x, 0.0))

    def easier(x: Any) -> Any:
        point, log_determinant = rewrite(x)
        return target.log_density(point) + log_determinant

    centre, root = _whitening(easier, target.start)

    def from_whitened(z: Any) -> Any:
        return jnp.asarray(centre) + jnp.asarray(root) @ z

    chains = Chains(lambda z: easier(from_whitened(z)), WARMUP, dense_mass=True, target_accept_prob=0.9)
    back = jax.jit(jax.vmap(lambda z: rewrite(from_whitened(z))[0]))
    by_chain: list[list[np.ndarray]] = []
    streams = []
    for chain_key in jr.split(jr.key(2024), CHAINS):
        start_key, run_key = jr.split(chain_key)
        streams.append(chains.run(run_key, np.asarray(jr.normal(start_key, (target.dim,)))))
        by_chain.append([])
        _take(streams[-1], WARMUP)
    for _ in range(ROUNDS):
        for stream, draws in zip(streams, by_chain, strict=True):
            draws.append(np.asarray(back(_take(stream, DRAWS))))
        points = np.stack([np.concatenate(draws) for draws in by_chain])  # (chains, draws, d)
        mean, sd = points.mean((0, 1)), points.std((0, 1))
        ess = float(effective_sample_size(points).min())
        ess_squares = float(effective_sample_size((points - mean) ** 2).min())
        r_hat = float(max(split_gelman_rubin(points).max(), split_gelman_rubin((points - mean) ** 2).max()))
        if r_hat < 1.01 and ess >= ENOUGH and ess_squares >= ENOUGH_SQUARES:
            break
    how = f"NUTS: {CHAINS} chains of {points.shape[1]} draws after {WARMUP}, dense, whitened at the mode"
    if target.name in REWRITTEN:
        how += ", non-centered and mapped back"
    checks = {"r_hat": round(r_hat, 5), "ess": round(ess), "ess_of_squares": round(ess_squares)}
    return {"how": how, **_moments(mean, sd), **checks}


def _take(stream: Any, count: int) -> np.ndarray:
    """The next `count` points of a chain; a whole number of chunks."""
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < count:
        parts.append(next(stream)[0])
    return np.concatenate(parts)


def warmup_gradients(target: Target) -> dict[str, int]:
    """Gradients, one after the other, of 1000 iterations of warm-up from the naive start, with NumPyro's defaults."""
    from .nuts import Chains

    counts = {}
    for name, dense in (("diagonal", False), ("dense", True)):
        _, counts[name] = Chains(target.log_density, 1000, dense_mass=dense).draws(jr.key(1), target.start, 0)
    return counts


# --- all of it ---


def _moments(mean: np.ndarray, sd: np.ndarray) -> dict[str, Any]:
    return {name: [float(f"{value:.6g}") for value in values] for name, values in (("mean", mean), ("sd", sd))}


def other_point(target: Target) -> np.ndarray:
    """A point beside the start, at which most parts of a log density show."""
    return np.linspace(-0.1, 0.1, target.dim)


def fingerprint(target: Target) -> list[float]:
    """What a reference is made from: the log density at two points, to six digits. Another target has others."""
    points = jnp.asarray(np.stack([target.start, other_point(target)]))
    return [float(f"{float(value):.6g}") for value in jax.jit(jax.vmap(target.log_density))(points)]


def reference(target: Target) -> dict[str, Any]:
    if target.name in CLOSED:
        moments, how = CLOSED[target.name]
        return {"how": how, **_moments(*moments())}
    if target.name in ON_A_GRID:
        return {"how": "quadrature: 1201 x 1201 points along the axes at the mode", **_moments(*on_a_grid(target))}
    return by_nuts(target)


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
