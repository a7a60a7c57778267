"""Whole fits: the wall time of a first call, which compiles, and of a second, and where the time of a step goes.

    python benchmarks/fits.py [--data DIRECTORY] [--quick] [--json benchmarks/results/fits.json]

The toy mixture (50 particles, 300 steps), Covertype by mixture (20 particles, 2000 steps, batches of 256) and Concrete
by mixture with KFAC (10 particles, 4500 steps), with the studies' own samplers. Where the data are not there, random
numbers of the same shape stand for them, and the settings say so.

The shares come from a profile of a second call, in a process of its own (`traced.py`): of the time that the compiled
loop's instructions ran, what the library's named parts took. "bandwidth" is the kernel's, and the mixture's weights;
"other" the step rule, the judgement of a step, the history. "busy" is the time of all instructions over that of a
second call: on a GPU the rest is launching kernels, which are too short to fill it; above 1 several threads ran.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import traced

import steinkern as sk
from steinkern.core.files import environment
from steinkern.experiments.covtype import runs as covtype_runs
from steinkern.experiments.data.datasets import data_directory, load_covtype, load_regression, path_of
from steinkern.experiments.tables import Row, aligned, write_results
from steinkern.experiments.toy.targets import TARGETS
from steinkern.experiments.uci import runs as uci_runs
from steinkern.targets.models import NetworkPrior, RegressionNetwork, logistic_posterior, network_posterior

PROGRAM = "advance"
"""The compiled loop of `fit`."""
PARTS = ("batch", "score", "curvature", "factorisation", "bandwidth", "velocity")
"""The library's `jax.named_scope`s."""
PROFILED_STEPS = 300


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
        task = covtype_runs.prepare(load_covtype(directory), 2, (0,), (2000,))
        features, labels = task.features[task.train_rows[0]], task.labels[task.train_rows[0]]
        note = "Covertype, 70 percent of its rows"
    else:
        rng = np.random.default_rng(0)
        features = np.concatenate([rng.random((406_708, 54)), np.ones((406_708, 1))], axis=1).astype(np.float32)
        labels = rng.integers(0, 2, 406_708).astype(np.float32)
        note = "random numbers of Covertype's shape: its data were not there"
    number = len(labels)
    setting = {"rule": "plain", "step_size": 1.0, "damping": 0.001}
    sampler = covtype_runs.sampler("mixture", setting, number)
    start = jr.normal(jr.key(0), (20, features.shape[1]))
    return Fit("covtype", logistic_posterior(number), sampler, start, (features, labels), 2000, 256, note)


def concrete(directory: Path) -> Fit:
    if path_of("concrete", directory).exists():
        task = uci_runs.prepare(load_regression("concrete", directory), 1)
        features, targets = (array[task.train_rows[0]] for array in (task.features, task.targets))
        note = "Concrete, its first split"
    else:
        rng = np.random.default_rng(0)
        features, targets = rng.normal(size=(927, 8)).astype(np.float32), rng.normal(size=927).astype(np.float32)
        note = "random numbers of Concrete's shape: its data were not there"
    setting = {"step_size": 0.1, "epochs": 400, "damping": 0.01, "noise_rate": 20.0}
    sampler = uci_runs.sampler("mixture", setting, len(targets), 4500)
    sizes = (features.shape[1], *uci_runs.HIDDEN, 1)
    networks = jax.vmap(
        lambda key: RegressionNetwork.draw(key, sizes=sizes, spread=uci_runs.NOISE_SPREAD, dtype=jnp.float32)
    )(jr.split(jr.key(0), 10))
    target = network_posterior(len(targets), NetworkPrior(rate=setting["noise_rate"]))
    return Fit("concrete", target, sampler, networks, (features, targets), 4500, 100, note)


def seconds_of(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def profiled(name: str, directory: Path, steps: int, dump: Path) -> dict[str, float]:
    """Seconds a step in each part, by a profile of a call after the first; for a process that does nothing else."""
    fit = FITS[name](directory)._replace(num_steps=steps)
    fit.run()
    found = traced.seconds_by_part(lambda: fit.run().points, PROGRAM, PARTS, dump)
    return {part: seconds / steps for part, seconds in found.items()}


def seconds_by_part(fit: Fit, directory: Path) -> dict[str, float]:
    """Seconds a step in each part, from a process in which XLA writes down the names of its instructions."""
    steps = min(fit.num_steps, PROFILED_STEPS)
    with TemporaryDirectory() as dump:
        call = [sys.executable, __file__, "--data", str(directory), "--profiled", fit.name, str(steps), dump]
        run = subprocess.run(call, env=traced.dumping(dump, PROGRAM), capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"The profile of {fit.name} failed:\n{run.stderr}")
    return json.loads(run.stdout.splitlines()[-1])


def rows_of(fit: Fit, rounds: int, directory: Path) -> list[Row]:
    """First and second calls, and the shares."""
    first = seconds_of(lambda: fit.run().points)
    again = np.asarray([seconds_of(lambda: fit.run().points) for _ in range(rounds)])
    result = fit.run()
    if result.num_steps < fit.num_steps:
        print(f"{fit.name}: only {result.num_steps} of {fit.num_steps} steps were taken: {result.message}")
    found, second = seconds_by_part(fit, directory), float(again.min())
    total = sum(found.values())
    told = {f"share_{part}": seconds / total for part, seconds in found.items()}
    told["busy"] = total * fit.num_steps / second
    spread = float(again.std(ddof=1) / np.sqrt(rounds)) if rounds > 1 else float("nan")
    rows = [Row(fit.name, "mixture", "first_seconds", first, float("nan"), 1)]
    rows.append(Row(fit.name, "mixture", "second_seconds", second, spread, rounds))
    return rows + [Row(fit.name, "mixture", metric, value, float("nan"), 1) for metric, value in told.items()]


def markdown(rows: list[Row]) -> str:
    found = {(row.case, row.metric): row.mean for row in rows}
    names = (*PARTS, "other")
    lines = ["| fit | first call | second call | " + " | ".join(names) + " | busy |", "|---" * (4 + len(names)) + "|"]
    for case in dict.fromkeys(row.case for row in rows):
        shares = " | ".join(f"{100 * found[case, f'share_{name}']:.0f} %" for name in names)
        times = f"{found[case, 'first_seconds']:.2f} s | {found[case, 'second_seconds']:.2f} s"
        lines.append(f"| {case} | {times} | {shares} | {found[case, 'busy']:.2f} |")
    return "\n".join(lines) + "\n"


FITS: dict[str, Callable[[Path], Fit]] = {"toy": toy, "covtype": covtype, "concrete": concrete}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the data directory, as in `steinkern reproduce --data`")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, one round")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the numbers to PATH, a table beside it")
    parser.add_argument("--profiled", nargs=3, metavar=("FIT", "STEPS", "DUMP"), help="the parts of one fit, as JSON")
    options = parser.parse_args()
    directory, rows, notes = data_directory(options.data), [], {}
    rounds = 1 if options.quick else 3
    warnings.simplefilter("ignore", sk.SteinWarning)  # what is found is not looked at, only how long it takes
    if options.profiled:
        name, steps, dump = options.profiled
        print(json.dumps(profiled(name, directory, int(steps), Path(dump))))
        return
    for make in FITS.values():
        fit = make(directory)
        if options.quick:
            fit = fit._replace(num_steps=fit.num_steps // 10)
        rows += rows_of(fit, rounds, directory)
        notes[fit.name] = f"{fit.note}; {fit.num_steps} steps"
        print(aligned(markdown(rows)), flush=True)
    if options.json:
        told = {
            **environment(),
            "device": jax.devices()[0].device_kind,
            "dtype": "float32",
            "data": notes,
            "second_seconds": "the best of the calls after the first",
            "shares": f"of the compiled loop's time in instructions, by a profile of up to {PROFILED_STEPS} steps",
        }
        write_results(options.json, "fits", told, rows)
        options.json.with_suffix(".md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
