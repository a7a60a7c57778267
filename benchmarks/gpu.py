"""The velocity of many particles on one GPU: milliseconds, error and memory, beside XLA's own ways to compute it.

The error is against float64 on 512 rows, the largest difference over the largest entry: of particles N(0, I) at the
start of a fit to a Gaussian of standard deviations 1 to 2, and, "at rest", of exact draws of it. There the velocity is
the small rest of sums that cancel, and its relative error larger for every way to compute it in float32.

`gpu-tiles` times several tiles for each case and precision, which is how `gpu_tiles.tile_for` was filled.
"""

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk
from steinkern.core.particles import Scored
from steinkern.kernels.radial import gpu, gpu_tiles, radial_velocity
from steinkern.linalg.metrics import DenseMetric

from .bench import Answer, Benchmark, Row, best_of, gigabytes_of, relative_error

TILES = [(128, 64, 8, 2), (128, 64, 4, 3), (128, 64, 4, 2), (128, 64, 8, 3), (64, 64, 4, 2), (128, 128, 8, 3)]
WIDE_TILES = [(64, 32, 4, 2), (64, 64, 4, 1), (64, 64, 4, 2), (128, 32, 8, 2), (128, 64, 8, 1), (128, 64, 8, 2)]
KERNELS = {"vanilla": sk.RBF(), "imq": sk.IMQ()}
LARGE = 2**20


def problem(n: int, d: int, at_rest: bool) -> Scored:
    spread = jnp.linspace(1, 2, d)
    points = jr.normal(jr.key(0), (n, d)) * (spread if at_rest else 1)
    return Scored.uniform(points, -points / spread**2)


def reference(kernel: Any, source: Scored, rows: np.ndarray) -> np.ndarray:
    """Float64, through the kernel's own profile; by products, whose rounding is far below that of float32."""
    with jax.enable_x64():
        y, s = (jnp.asarray(np.asarray(part), jnp.float64) for part in (source.points, source.scores))
        wide = type(kernel)(jnp.asarray(float(kernel.bandwidth), jnp.float64))

        @jax.jit
        def some(x: Any, y: Any, s: Any) -> Any:
            squares = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1)[None]
            value, derivative = wide.profile(jnp.maximum(squares - 2 * x @ y.T, 0))
            return (value @ s - 2 * (jnp.sum(derivative, axis=1)[:, None] * x - derivative @ y)) / len(y)

        return np.concatenate([np.asarray(some(part, y, s)) for part in jnp.split(y[rows], 4)])


def measured(function: Any, *arguments: Any) -> tuple[dict[str, float], Any]:
    """Milliseconds of the best of a few calls, gigabytes by XLA's account, and the answer."""
    compiled = jax.jit(function).lower(*arguments).compile()
    answer = jax.block_until_ready(compiled(*arguments))
    seconds = best_of(lambda: compiled(*arguments), seconds=1.0, most=20)[0]  # an idle GPU takes a while to clock up
    return {"milliseconds": 1e3 * seconds, "gigabytes": gigabytes_of(compiled)}, answer


def ways(kernel: Any, n: int) -> dict[str, Callable[[Any], Any]]:
    """Functions of the particles and scores: those of a step of a fit in every precision, and XLA's own."""
    every = {precision: partial(radial_velocity, kernel, precision=precision) for precision in gpu_tiles.PRECISIONS}
    if n < LARGE:
        every |= {f"xla-{backend}": partial(radial_velocity, kernel, backend=backend) for backend in ("dense", "tiled")}
    return {name: partial(lambda way, source: way(source.points, source), way) for name, way in every.items()}


def run_kernel(case: str, method: str) -> list[Row]:
    """All ways to compute the velocity of one kernel; those that do not fit into the memory are left out."""
    n, d = size_of(case)
    start, rest, some = problem(n, d, False), problem(n, d, True), np.arange(512) * (n // 512)
    kernel = KERNELS[method].adapt(start.points)
    truths = [reference(kernel, source, some) for source in (start, rest)]
    rows = []
    for name, way in ways(kernel, n).items():
        try:
            numbers, answer = measured(way, start)
        except jax.errors.JaxRuntimeError:
            continue
        for metric, array, truth in zip(
            ("relative_error", "relative_error_at_rest"), (answer, jax.jit(way)(rest)), truths, strict=True
        ):
            numbers[metric] = relative_error(np.asarray(array)[some], truth)
        rows += [Row(case, f"{method}-{name}", metric, value) for metric, value in numbers.items()]
    return rows


def velocity(kernel: Any, source: Scored) -> Any:
    """As in a step of a fit, the bandwidth included."""
    return kernel.adapt(source.points).velocity(source.points, source)


def run_matrix(case: str) -> list[Row]:
    """The velocity in an average metric and of a mixture of four, beside that without a metric."""
    n, d = size_of(case)
    source, base = problem(n, d, False), sk.kernels.Isotropic(sk.RBF(), precision="fast")
    root = jnp.eye(d) + 0.1 * jnp.tril(jr.normal(jr.key(1), (d, d)), -1) / d**0.5
    scaled = jax.vmap(lambda scale: sk.kernels.Preconditioned(base, DenseMetric.of(scale * root @ root.T)))
    kernels = {
        "vanilla-fast-median": base,
        "average-fast": sk.kernels.Preconditioned(base, DenseMetric.of(root @ root.T)),
        "mixture-fast,l=4": sk.kernels.Mixture(scaled(jnp.linspace(1, 2, 4)), source.points[:4], float(d)),
    }
    rows = []
    for method, kernel in kernels.items():
        numbers, _ = measured(velocity, kernel, source)
        rows += [Row(case, method, metric, value) for metric, value in numbers.items()]
    return rows


def run(case: str, method: str, options: Namespace) -> Answer:
    """One case with one kernel, or with the matrix kernels."""
    return Answer(run_matrix(case) if method == "matrix" else run_kernel(case, method))


def run_tiles(case: str, method: str, options: Namespace) -> Answer:
    """Every tile that the GPU takes, in one precision."""
    n, d = size_of(case)
    start = problem(n, d, False)
    kernel = sk.RBF().adapt(start.points)
    digits, rows = gpu_tiles.digits_for(kernel, d, method), []
    for tile in TILES if d <= 64 else WIDE_TILES:
        sums = partial(gpu.velocity_sums, kernel, digits=digits, tile=gpu_tiles.Tile(*tile))
        try:
            numbers, _ = measured(lambda source, sums=sums: sums(source.points, source).velocity(source.points), start)
        except Exception:  # Triton raises errors of its own for a tile that is too large
            continue
        rows.append(Row(case, f"{method}, {tile}", "milliseconds", numbers["milliseconds"]))
    return Answer(rows)


def size_of(case: str) -> tuple[int, int]:
    n, d = (int(part.partition("=")[2]) for part in case.split(","))
    return n, d


WIDTHS = [f"n=65536,d={d}" for d in (50, 10, 100, 200, 512)]
BENCHMARKS = {
    "gpu": Benchmark(
        [(case, "vanilla") for case in (*WIDTHS, f"n={LARGE},d=50")]
        + [("n=65536,d=50", "imq")]
        + [(f"n=65536,d={d}", "matrix") for d in (10, 50, 200)],
        run,
    ),
    "gpu-tiles": Benchmark([(case, precision) for case in WIDTHS for precision in gpu_tiles.PRECISIONS], run_tiles),
}
