"""The velocity of many particles on one GPU: milliseconds, error and memory, beside XLA's own ways to compute it.

    python benchmarks/gpu.py [--tune] [--seconds 150] [--json benchmarks/results/gpu.json]

`--tune` tries several tiles for each case and reports the fastest, which is how `gpu_tiles.tile_for` was filled. The
error is against float64 on 512 rows, the largest difference over the largest entry: of particles N(0, I) at the start
of a fit to a Gaussian of standard deviations 1 to 2, and, "at rest", of exact draws of it. There the velocity is the
small rest of sums that cancel, and its relative error larger for every way to compute it in float32.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk
from steinkern.core.files import environment, write_text
from steinkern.core.metric import DenseMetric
from steinkern.core.particles import Scored
from steinkern.experiments.tables import Row, write_results
from steinkern.kernels.radial import gpu, gpu_tiles, radial_velocity

BEGIN = time.perf_counter()
LEAST_SECONDS = 0.3  # of calls: an idle GPU takes a while to clock up
CEILING = 650.0  # TFLOP/s of products of 16 bits on an H200
TILES = [(128, 64, 8, 2), (128, 64, 4, 3), (128, 64, 4, 2), (128, 64, 8, 3), (64, 64, 4, 2), (128, 128, 8, 3)]
WIDE_TILES = [(64, 32, 4, 2), (64, 64, 4, 1), (64, 64, 4, 2), (128, 32, 8, 2), (128, 64, 8, 1), (128, 64, 8, 2)]


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


class Times(NamedTuple):
    """Milliseconds: the best of several calls, the standard error of their mean, and how many there were."""

    best: float
    stderr: float
    trials: int

    @classmethod
    def of(cls, seconds: list[float]) -> "Times":
        spread = float(np.std(seconds, ddof=1) / np.sqrt(len(seconds)))
        return cls(1e3 * min(seconds), 1e3 * spread, len(seconds))


def measured(function: Any, *arguments: Any, repeats: int = 5) -> tuple[Times, float, Any]:
    """Times, gigabytes, and the answer."""
    compiled = jax.jit(function).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    bytes_used = sum(getattr(memory, f"{part}_size_in_bytes") for part in ("argument", "output", "temp"))
    answer = jax.block_until_ready(compiled(*arguments))
    seconds: list[float] = []
    while len(seconds) < repeats or sum(seconds) < LEAST_SECONDS:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.perf_counter() - start)
    return Times.of(seconds), bytes_used / 1e9, answer


class Bench:
    """Rows as they come, until the time is up."""

    def __init__(self, seconds: float, tune: bool, path: Path | None):
        self.rows: list[Row] = []
        self.seconds, self.tune, self.path = seconds, tune, path

    @property
    def over(self) -> bool:
        return time.perf_counter() - BEGIN > self.seconds

    def keep(self, case: str, method: str, times: Times, **metrics: float) -> None:
        self.rows.append(Row(case, method, "milliseconds", *times))
        self.rows += [Row(case, method, metric, value, float("nan"), 1) for metric, value in metrics.items()]
        if self.path is not None:  # row by row: a run that is stopped keeps what it has
            settings = {
                "device": jax.devices()[0].device_kind,
                "environment": environment(),
                "milliseconds": "the best of the trials; stderr is that of their mean",
            }
            write_results(self.path, "gpu", settings, self.rows)
            write_text(self.path.with_suffix(".md"), table(self.rows))
        told = ", ".join(f"{metric} {value:.3g}" for metric, value in {"milliseconds": times.best, **metrics}.items())
        print(f"{time.perf_counter() - BEGIN:5.0f} s  {case} {method}: {told}", flush=True)

    def vanilla(self, n: int, d: int, kernel: Any, label: str = "vanilla", repeats: int = 5) -> None:
        case, start, rest = f"n={n},d={d}", problem(n, d, False), problem(n, d, True)
        kernel = kernel.adapt(start.points)
        rows = np.arange(512) * (n // 512)
        truths = [reference(kernel, source, rows) for source in (start, rest)]
        for precision in gpu_tiles.PRECISIONS:
            digits = gpu_tiles.digits_for(kernel, d, precision)
            profiles = 1 if isinstance(kernel, sk.RBF) else 2
            chosen = (TILES if d <= 64 else WIDE_TILES) if self.tune else [gpu_tiles.tile_for(d, digits, profiles)]
            best: tuple[Times, Any, float, list[Any]] | None = None
            for tile in chosen:
                if self.over:
                    return

                def run(source: Scored, tile: Any = tile, digits: Any = digits, precision: Any = precision) -> Any:
                    if not self.tune:  # what a step of a fit calls
                        return radial_velocity(kernel, source.points, source, precision=precision)
                    found = gpu.velocity_sums(kernel, source.points, source, digits, tile=gpu_tiles.Tile(*tile))
                    return found.velocity(source.points)

                try:
                    times, gigabytes, answer = measured(run, start, repeats=repeats)
                except Exception as error:
                    print(
                        f"        {case} {label}-{precision} {tile}: {' '.join(str(error).split())[:100]}", flush=True
                    )
                    continue
                if self.tune:
                    print(f"        {case} {label}-{precision} {tile}: {times.best:.2f} ms", flush=True)
                if best is None or times.best < best[0].best:
                    best = times, tile, gigabytes, [answer, jax.jit(run)(rest)]
            if best is not None:
                errors = [relative(np.asarray(a)[rows], t) for a, t in zip(best[3], truths, strict=True)]
                flops = 4 * n**2 * d / best[0].best / 1e9
                print(f"        tile {best[1]}, {flops:.0f} TFLOP/s, {flops / CEILING:.0%} of {CEILING:.0f}")
                self.keep(
                    case, f"{label}-{precision}", best[0], relative_error=errors[0],
                    relative_error_at_rest=errors[1], gigabytes=best[2],
                )  # fmt: skip
        if self.tune or n > 2**17:
            return
        for backend in ("dense", "tiled"):
            if self.over:
                return
            run = partial(radial_velocity, kernel, backend=backend)
            try:
                times, gigabytes, answer = measured(run, start.points, start, repeats=3)
            except jax.errors.JaxRuntimeError:
                print(f"        {case} {label}-xla-{backend}: does not fit into the memory", flush=True)
                continue
            errors = [relative(np.asarray(answer)[rows], truths[0])]
            errors.append(relative(np.asarray(jax.jit(run)(rest.points, rest))[rows], truths[1]))
            self.keep(
                case, f"{label}-xla-{backend}", times, relative_error=errors[0],
                relative_error_at_rest=errors[1], gigabytes=gigabytes,
            )  # fmt: skip

    def matrix(self, n: int, d: int, anchors: int) -> None:
        case, source = f"n={n},d={d}", problem(n, d, False)
        base = sk.Isotropic(sk.RBF(), precision="fast")
        root = jnp.eye(d) + 0.1 * jnp.tril(jr.normal(jr.key(1), (d, d)), -1) / d**0.5
        metric = DenseMetric.of(root @ root.T)
        ways = {
            "vanilla-fast-median": base,
            "average-fast": sk.Preconditioned(base, metric),
            f"mixture-fast,l={anchors}": sk.Mixture(
                jax.vmap(lambda scale: sk.Preconditioned(base, DenseMetric.of(scale * root @ root.T)))(
                    jnp.linspace(1, 2, anchors)
                ),
                source.points[:anchors],
                float(d),
            ),
        }
        for method, kernel in ways.items():
            if self.over:
                return

            def run(kernel: Any, source: Scored) -> Any:
                return kernel.adapt(source.points).velocity(source.points, source)

            times, gigabytes, _ = measured(run, kernel, source)
            self.keep(case, method, times, gigabytes=gigabytes)


def table(rows: list[Row]) -> str:
    """The rows as Markdown, one line a case and method."""
    lines = [
        "| n × d | method | time | error | at rest | memory | 4 n² d flops | of 650 TFLOP/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        found.setdefault((row.case, row.method), {})[row.metric] = row.mean
    before = ""
    for (case, method), number in found.items():
        n, d = (int(part.partition("=")[2]) for part in case.split(","))
        milliseconds = number["milliseconds"]
        flops = 4 * n**2 * d / milliseconds / 1e9
        errors = [
            f"{number[name]:.1e}" if name in number else "" for name in ("relative_error", "relative_error_at_rest")
        ]
        time_taken = f"{milliseconds:.1f} ms" if milliseconds < 500 else f"{milliseconds / 1e3:.2f} s"
        rates = [f"{flops:.0f} TFLOP/s", f"{flops / CEILING:.0%}"] if number.keys() >= {"relative_error"} else ["", ""]
        shown = "" if case == before else f"{n:,} × {d}"
        cells = [shown, method, time_taken, *errors, f"{number['gigabytes']:.2f} GB", *rates]
        lines.append(f"| {' | '.join(cells)} |")
        before = case
    return "\n".join(lines) + "\n"


def relative(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.max(np.abs(found - truth)) / np.max(np.abs(truth)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="try several tiles for each case")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin nothing new after so long")
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    if jax.default_backend() != "gpu":
        raise SystemExit("benchmarks/gpu.py needs an NVIDIA GPU and JAX's CUDA packages; none was found.")
    bench = Bench(options.seconds, options.tune, options.json)
    bench.vanilla(65536, 50, sk.RBF())
    if not options.tune:
        bench.vanilla(2**20, 50, sk.RBF(), repeats=3)
    bench.vanilla(65536, 50, sk.IMQ(), label="imq")
    for d in (10, 100, 200, 512):
        bench.vanilla(65536, d, sk.RBF())
    if not options.tune:
        for d in (10, 50, 200):
            bench.matrix(65536, d, anchors=4)


if __name__ == "__main__":
    main()
