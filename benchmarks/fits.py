"""Whole fits: the wall time of a first call, which compiles, and of a second, and where the time of a step goes.

    python benchmarks/fits.py [--data DIRECTORY] [--quick] [--json benchmarks/results/fits.json]

The toy mixture (50 particles, 300 steps), Covertype by mixture (20 particles, 2000 steps, batches of 256) and Concrete
by mixture with KFAC (10 particles, 4500 steps), with the studies' own samplers. Where the data are not there, random
numbers of the same shape stand for them, and the settings say so.

For the shares every part is compiled alone, in a loop of as many turns as the fit takes of it (curvature every few
steps, factors more rarely). "other" is what is left of a second call: drawing the batch, the step rule, the judgement
of a step, the history, and the host. A part alone may take longer than fused into a step, so "other" may be small or,
within the noise, negative. On a busy machine the threads of a BLAS that spin while they wait make factorisation look
dear.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import steinkern as sk
from steinkern.experiments import covtype_study, uci_study
from steinkern.experiments.datasets import data_directory, load_covtype, load_regression, path_of
from steinkern.experiments.results import Row, aligned, write_results
from steinkern.experiments.toy_targets import TARGETS
from steinkern.files import environment
from steinkern.models import NetworkPrior, RegressionNetwork, logistic_posterior, network_posterior
from steinkern.particles import Scored

PARTS = ("score", "curvature", "factorisation", "velocity")


class Fit(NamedTuple):
    """One call of `fit`."""

    name: str
    target: Any
    sampler: Any
    particles: Any
    data: Any
    num_steps: int
    batch_size: int | None
    note: str

    def run(self) -> sk.Result:
        return sk.fit(
            jr.key(1), self.target, self.sampler, self.particles, self.data, num_steps=self.num_steps,
            batch_size=self.batch_size, progress=False, throw=False,
        )  # fmt: skip


def toy(directory: Path) -> Fit:
    start = 1.5 * jr.normal(jr.key(0), (50, 2))
    sampler = sk.matrix_svgd("mixture", sk.Hessian(), optimiser=0.1)
    return Fit("toy", TARGETS["double_banana"].log_density, sampler, start, None, 300, None, "double banana")


def covtype(directory: Path) -> Fit:
    if path_of("covtype", directory).exists():
        task = covtype_study.prepare(load_covtype(directory), 2, (0,))
        features, labels = task.features[task.train_rows[0]], task.labels[task.train_rows[0]]
        note = "Covertype, 70 percent of its rows"
    else:
        rng = np.random.default_rng(0)
        features = np.concatenate([rng.random((406_708, 54)), np.ones((406_708, 1))], axis=1).astype(np.float32)
        labels = rng.integers(0, 2, 406_708).astype(np.float32)
        note = "random numbers of Covertype's shape: its data were not there"
    number = len(labels)
    setting = covtype_study.Setting(rule="plain", step_size=1.0, damping=0.001)
    sampler = covtype_study.build("mixture", setting, number)
    start = jr.normal(jr.key(0), (20, features.shape[1]))
    return Fit("covtype", logistic_posterior(number), sampler, start, (features, labels), 2000, 256, note)


def concrete(directory: Path) -> Fit:
    if path_of("concrete", directory).exists():
        task = uci_study.prepare(load_regression("concrete", directory), 1)
        features, targets = (array[task.train_rows[0]] for array in (task.features, task.targets))
        note = "Concrete, its first split"
    else:
        rng = np.random.default_rng(0)
        features, targets = rng.normal(size=(927, 8)).astype(np.float32), rng.normal(size=927).astype(np.float32)
        note = "random numbers of Concrete's shape: its data were not there"
    setting = uci_study.Setting(step_size=0.1, epochs=400, damping=0.01, noise_rate=20.0)
    sampler = uci_study.build("mixture", setting, len(targets), 4500)
    sizes = (features.shape[1], *uci_study.HIDDEN, 1)
    networks = jax.vmap(
        lambda key: RegressionNetwork.draw(key, sizes=sizes, spread=uci_study.NOISE_SPREAD, dtype=jnp.float32)
    )(jr.split(jr.key(0), 10))
    target = network_posterior(len(targets), NetworkPrior(rate=setting.noise_rate))
    return Fit("concrete", target, sampler, networks, (features, targets), 4500, 100, note)


def seconds_of(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def looped(part: Callable[[Any], Any], start: Any, turns: int, rounds: int) -> float:
    """The best time of so many turns of a part, each fed by the one before so that none can be left out."""

    def turn(carry: Any, _: None) -> tuple[Any, None]:
        leaves = [leaf for leaf in jax.tree.leaves(part(carry)) if eqx.is_inexact_array(leaf)]
        shift = 1e-30 * sum(jnp.sum(leaf).astype(jnp.float32) for leaf in leaves)
        return jax.tree.map(lambda leaf: leaf + shift.astype(leaf.dtype), carry), None

    compiled = jax.jit(lambda first: jax.lax.scan(turn, first, length=turns)[0]).lower(start).compile()
    compiled(start)
    return min(seconds_of(lambda: compiled(start)) for _ in range(rounds))


def parts(fit: Fit, result: sk.Result, rounds: int) -> dict[str, float]:
    """Seconds of a whole fit in each part, at the particles and the metric that it ended with."""
    target, rule, points = result.target, fit.sampler.rule, result.points
    data = jax.tree.map(jnp.asarray, fit.data)
    batch = target.batch(data, fit.batch_size, jr.key(2))
    scores, settings, state = target.scores(points, batch), rule.settings, result.loop.state.rule
    inexact, rest = eqx.partition(state.curvature, eqx.is_inexact_array)
    measured = -(-fit.num_steps // (settings.measure_every if settings.decay else settings.refresh_every))
    factorised = -(-fit.num_steps // settings.refresh_every)

    def velocity(points: Any) -> Any:
        # The rule's own kernel; its metric is at hand, so neither curvature nor factors are due.
        kernel = eqx.tree_at(lambda r: r.settings, rule, sk.MetricSettings(refresh_every=2))
        now = state._replace(steps=jnp.ones((), jnp.int32))
        return kernel.update(now, target, points, batch)[1].velocity(points, Scored.uniform(points, scores))

    return {
        "score": looped(lambda x: target.scores(x, batch), points, fit.num_steps, rounds),
        "curvature": looped(lambda x: rule._measure(target, x, batch), points, measured, rounds),
        "factorisation": looped(lambda c: rule._factorise(eqx.combine(c, rest)), inexact, factorised, rounds),
        "velocity": looped(velocity, points, fit.num_steps, rounds),
    }


def rows_of(fit: Fit, rounds: int) -> list[Row]:
    """First and second calls, and the shares."""
    first = seconds_of(lambda: fit.run().points)
    again = np.asarray([seconds_of(lambda: fit.run().points) for _ in range(rounds)])
    result = fit.run()
    if result.num_steps < fit.num_steps:
        print(f"{fit.name}: only {result.num_steps} of {fit.num_steps} steps were taken: {result.message}")
    found = parts(fit, result, rounds)
    second = float(again.min())
    shares = {name: found[name] / second for name in PARTS}
    shares["other"] = 1 - sum(shares.values())
    case, spread = fit.name, float(again.std(ddof=1) / np.sqrt(rounds)) if rounds > 1 else float("nan")
    rows = [Row(case, "mixture", "first_seconds", first, float("nan"), 1)]
    rows.append(Row(case, "mixture", "second_seconds", second, spread, rounds))
    return rows + [Row(case, "mixture", f"share_{name}", share, float("nan"), 1) for name, share in shares.items()]


def markdown(rows: list[Row]) -> str:
    found = {(row.case, row.metric): row.mean for row in rows}
    names = (*PARTS, "other")
    lines = ["| fit | first call | second call | " + " | ".join(names) + " |", "|---" * (3 + len(names)) + "|"]
    for case in dict.fromkeys(row.case for row in rows):
        shares = " | ".join(f"{100 * found[case, f'share_{name}']:.0f} %" for name in names)
        times = f"{found[case, 'first_seconds']:.2f} s | {found[case, 'second_seconds']:.2f} s"
        lines.append(f"| {case} | {times} | {shares} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the data directory, as in `steinkern reproduce --data`")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, one round")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the numbers to PATH, a table beside it")
    options = parser.parse_args()
    directory, rows, notes = data_directory(options.data), [], {}
    rounds = 1 if options.quick else 3
    warnings.simplefilter("ignore", sk.SteinWarning)  # what is found is not looked at, only how long it takes
    for make in (toy, covtype, concrete):
        fit = make(directory)
        if options.quick:
            fit = fit._replace(num_steps=fit.num_steps // 10)
        rows += rows_of(fit, rounds)
        notes[fit.name] = f"{fit.note}; {fit.num_steps} steps"
        print(aligned(markdown(rows)), flush=True)
    if options.json:
        told = {
            **environment(),
            "device": jax.devices()[0].device_kind,
            "dtype": "float32",
            "data": notes,
            "second_seconds": "the best of the calls after the first",
            "shares": "of a second call: each part compiled alone, in a loop of as many turns as the fit takes of it",
        }
        write_results(options.json, "fits", told, rows)
        options.json.with_suffix(".md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
