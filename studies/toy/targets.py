"""The two-dimensional targets of the paper's toy study (Wang et al., 2019, appendix "Toy Examples").

`TARGETS` holds them by name: "sine", "double_banana" and "star" as the paper prints them, and each with the suffix
"_released" as the authors' released code has it. `LogMMD` is the measure by which particles are compared with them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from steinkern.core.types import Key, Scalar
from steinkern.kernels.distance import squared_distances
from steinkern.kernels.scalar import RBF, AbstractScalarKernel

Place = Float[Array, "2"]
Places = Float[Array, "n 2"]


class Window(NamedTuple):
    """A rectangle [left, right] × [bottom, top]."""

    left: float
    right: float
    bottom: float
    top: float


@dataclass(frozen=True)
class ToyTarget:
    """A density on the plane, with all that an experiment on it needs."""

    name: str
    title: str
    """The name for people."""
    log_density: Callable[[Place], Scalar]
    """log p at one point of shape (2,), up to a constant, in the point's precision."""
    residual: Callable[[Place], Float[Array, " k"]] | None
    """r with −log p = ½‖r‖² + const, the prior's term included, for `steinkern.GaussNewton`; `None` for the star."""
    draws: Callable[[Key, int], Places]
    """Independent draws, from a key and their number."""
    window: Window
    """What a figure should show: nearly all the mass, and nearly all first particles of the paper, 1.5·N(0, I)."""
    iterations: tuple[int, ...]
    """The iterations that the paper's figures show."""
    reported_iteration: int
    """The iteration at which this study compares the methods."""


def grid_draws(log_density: Callable[[Place], Scalar], box: Window, cells: int = 2000) -> Callable[[Key, int], Places]:
    """A function (key, number) -> draws from a density on the plane, by inverting its distribution on a fine grid.

    The law drawn from is piecewise constant: the density at the midpoints of cells × cells cells, uniform inside each.
    It differs from the target by O(width²) for cells of that width; each coordinate's variance grows by width²/12. The
    box must hold all the mass that matters. With the boxes and 2000 cells of this file the ridges of the targets are at
    least eight cells to a standard deviation, and less than 1e-7 of the mass lies outside.

    The numbers are handled with care: log densities lose their maximum before `exp`, so that nothing overflows; the
    cumulative sum over all cells and the uniform numbers searched in it have double precision whatever the precision of
    JAX is (the 2²³ numbers of a single-precision uniform would hardly tell 4·10⁶ cells apart), so that rounding is
    below 1e-9 of the mass; and a cell of no mass is never drawn. The table takes 32 MB; it is built at the first call.

    Args:
        log_density: at one point, up to a constant.
        box: where to draw.
        cells: along each axis.
    """
    width, height = (box.right - box.left) / cells, (box.top - box.bottom) / cells

    @lru_cache(maxsize=1)
    def cumulative() -> np.ndarray:
        with jax.enable_x64(True):
            midpoints = jnp.arange(cells, dtype=float) + 0.5
            second = box.bottom + height * midpoints

            def column(first: Scalar) -> Array:
                return jax.vmap(lambda b: log_density(jnp.stack([first, b])))(second)

            log_mass = np.asarray(jax.lax.map(column, box.left + width * midpoints))
        return np.cumsum(np.exp(log_mass - np.max(log_mass)))

    def draw(key: Key, number: int) -> Places:
        table = cumulative()
        generator = np.random.default_rng(np.asarray(jr.key_data(key)))
        # The first cell whose cumulative mass exceeds the level: side="right" passes over cells of no mass.
        cell = np.searchsorted(table, generator.random(number) * table[-1], side="right")
        corner = np.stack(np.divmod(np.minimum(cell, cells**2 - 1), cells), axis=1)
        inside = corner + generator.random((number, 2))
        return jnp.asarray(np.array([box.left, box.bottom]) + np.array([width, height]) * inside)

    return draw


def _half_square(residual: Callable[[Place], Array]) -> Callable[[Place], Scalar]:
    """The log density −½‖r‖²."""

    def log_density(x: Place) -> Scalar:
        return -0.5 * jnp.sum(residual(x) ** 2)

    return log_density


def _sine(name: str, title: str, power: int) -> ToyTarget:
    """−log p = (x₂ + sin x₁)^(2·power)/(2·0.003) + ‖x‖²/2: power 1 in the paper, 2 in the released code."""

    def residual(x: Place) -> Float[Array, "3"]:
        offset = (x[1] + jnp.sin(x[0])) ** power
        return jnp.stack([offset / 0.003**0.5, x[0], x[1]])

    log_density = _half_square(residual)
    return ToyTarget(
        name,
        title,
        log_density,
        residual,
        draws=grid_draws(log_density, Window(-5.5, 5.5, -2.0, 2.0)),
        window=Window(-4.0, 4.0, -3.0, 3.0),
        iterations=(0, 5, 10, 30, 500),
        reported_iteration=30,
    )


def _double_banana(name: str, title: str, valley: float) -> ToyTarget:
    """−log p = ‖x‖²/2 + (log 30 − F(x))²/(2·0.09), F(x) = log((a − x₁)² + 100 (x₂ − x₁²)²).

    a = `valley` is 1 in the paper and 0 in the released code. At (a, a²) the logarithm is −∞ and the density 0; the
    released code adds 1e-10 to its argument, the paper does not.
    """

    def residual(x: Place) -> Float[Array, "3"]:
        forward = jnp.log((valley - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2)
        return jnp.stack([(float(np.log(30.0)) - forward) / 0.3, x[0], x[1]])

    log_density = _half_square(residual)
    return ToyTarget(
        name,
        title,
        log_density,
        residual,
        draws=grid_draws(log_density, Window(-2.6, 2.6, -1.75, 5.0)),
        window=Window(-3.6, 3.6, -3.1, 3.6),
        iterations=(0, 10, 30, 100, 1000),
        reported_iteration=100,
    )


def _star(name: str, title: str, first_mean: tuple[float, float], reach: float) -> ToyTarget:
    """An equal mixture of five Gaussians: N(first_mean, diag(1, 1/100)) and its turns by 2π/5, 4π/5, …

    The first mean is (0, 1.5) in the paper, so that the arms lie across the ray to their mean, as the sides of a
    pentagon's star do; it is (1.5, 0) in the released code, where the arms point outwards.
    """
    number = 5
    angle = 2 * np.pi / number
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    turns = np.stack([np.linalg.matrix_power(turn, i) for i in range(number)])
    means = turns @ np.array(first_mean)
    scales = np.array([1.0, 0.1])

    def log_density(x: Place) -> Scalar:
        offsets = x[None, :] - jnp.asarray(means, x.dtype)
        # uᵀ(x − mean) for the rotation u of each arm: coordinates along and across it.
        along = jnp.einsum("kij,ki->kj", jnp.asarray(turns, x.dtype), offsets, precision="highest")
        return jax.nn.logsumexp(-0.5 * jnp.sum((along / jnp.asarray(scales, x.dtype)[None, :]) ** 2, axis=1))

    def draw(key: Key, count: int) -> Places:
        arm_key, noise_key = jr.split(key)
        arm = jr.randint(arm_key, (count,), 0, number)
        noise = jr.normal(noise_key, (count, 2))
        along = noise * jnp.asarray(scales, noise.dtype)[None, :]
        turned = jnp.einsum("nij,nj->ni", jnp.asarray(turns, noise.dtype)[arm], along, precision="highest")
        return jnp.asarray(means, noise.dtype)[arm] + turned

    return ToyTarget(
        name,
        title,
        log_density,
        residual=None,
        draws=draw,
        window=Window(-reach, reach, -reach, reach),
        iterations=(0, 30, 100, 500, 1000),
        reported_iteration=30,
    )


class LogMMD(eqx.Module):
    """The natural log of the biased squared MMD (`steinkern.mmd2`) of particles to exact draws, with k = exp(−r²/m).

    m is the median of the squared distances of the distinct pairs of draws, so that the measure is the same for all
    particles. What depends on the draws alone, most of the work, is computed once.
    """

    draws: Float[Array, "m 2"]
    kernel: AbstractScalarKernel
    within_draws: Scalar

    @classmethod
    def to(cls, draws: Float[Array, "m 2"]) -> "LogMMD":
        """The measure against `draws`."""
        r2 = squared_distances(draws, draws)
        # NumPy selects a median; of some million numbers that is faster than counting passes over them.
        pairs = np.concatenate([row[i + 1 :] for i, row in enumerate(np.asarray(r2))])
        kernel = RBF(float(np.median(pairs)) / 2)  # RBF is exp(−r²/2h)
        return cls(draws, kernel, jnp.mean(kernel.profile(r2)[0]))

    @eqx.filter_jit
    def along(self, history: Float[Array, "t n 2"]) -> Float[Array, " t"]:
        """Log MMD² of many sets, one after the other to save memory."""
        return jax.lax.map(self, history)

    def __call__(self, particles: Float[Array, "n 2"]) -> Scalar:
        """Log MMD² of one set of particles."""

        def mean(other: Array) -> Scalar:
            return jnp.mean(self.kernel.profile(squared_distances(particles, other))[0])

        return jnp.log(mean(particles) + self.within_draws - 2 * mean(self.draws))


TARGETS = {
    target.name: target
    for target in (
        _sine("sine", "Sine", 1),
        _double_banana("double_banana", "Double banana", 1.0),
        _star("star", "Star", (0.0, 1.5), 4.2),
        _sine("sine_released", "Sine (released code)", 2),
        _double_banana("double_banana_released", "Double banana (released code)", 0.0),
        _star("star_released", "Star (released code)", (1.5, 0.0), 4.8),
    )
}
"""The targets by name."""

PAPER = ("sine", "double_banana", "star")
"""The names of the targets as the paper prints them."""
