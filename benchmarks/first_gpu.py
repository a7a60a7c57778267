"""On a GPU: first calls, and a step of a whole fit beside its velocity and score.

    python -m benchmarks.first_gpu [--cases NAME ...] [--json benchmarks/results/first-gpu.json]

First calls run in processes of their own, one after the other, without a compilation cache; imports are not counted.
Rows of other cases that the file of `--json` has are kept.
"sample" is `sk.sample` of a plain function in 5 dimensions, "mixture" a fit of 20 steps of a network 784-400-400-10,
10 particles, by the mixture kernel with KFAC (`benchmarks/networks.py`).

A step of a fit on a standard normal target, vanilla SVGD, is the difference of a long fit and a short one over their
difference in steps. It holds the median's bandwidth, the history and the checks. Velocity and score, with the bandwidth
given, are one compiled program, called again and again; "in a loop" it is the body of a compiled loop that moves the
particles, timed like a fit. All are the best of their rounds, which alternate. A fit of a million particles goes to the
host after every step: its steps are timed there, by a callback, because the checks at its end take longer than a step.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

ROOT = Path(__file__).parents[1]
EVENT = "/jax/core/compile/backend_compile_duration"
FIRST = {"sample": "sample, 5 dimensions", "mixture": "784-400-400-10, KFAC mixture"}
"""The cases of first calls, and their names in the rows."""


class Fit(NamedTuple):
    """The sizes of a case, and the steps of its short and long fit; without rounds its steps are timed one by one."""

    particles: int
    dimensions: int
    precision: str
    short: int
    long: int
    rounds: int


FITS = {
    "50x2": Fit(50, 2, "float32", 1000, 6000, 5),
    "65536x50-float32": Fit(65536, 50, "float32", 50, 350, 5),
    "65536x50-fast": Fit(65536, 50, "fast", 50, 350, 5),
    "1048576x50-float32": Fit(2**20, 50, "float32", 1, 7, 0),
    "1048576x50-fast": Fit(2**20, 50, "fast", 1, 7, 0),
}
CASES = (*FIRST, *FITS)


def log_density(x: Any) -> Any:
    """A standard normal."""
    return -0.5 * jnp.sum(x**2)


def seconds_of(call: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call(*arguments))
    return time.perf_counter() - start


def first_call(case: str) -> dict[str, float]:
    """A first and a second call, and the programs that the first one compiles; for a process that does nothing else."""
    compiled: list[float] = []

    def listen(event: str, seconds: float, **about: Any) -> None:
        if event == EVENT:
            compiled.append(seconds)

    call: Any
    if case == "sample":
        import steinkern as sk

        keys = iter([jr.key(0), jr.key(1)])
        call = lambda: sk.sample(next(keys), log_density, np.zeros(5)).points  # noqa: E731
    else:
        from benchmarks.networks import prepare

        jax.config.update("jax_default_matmul_precision", "highest")  # no TF32
        run = prepare("784-400-400-10", "mixture")
        call = lambda: run(20)  # noqa: E731
    jax.block_until_ready(jnp.zeros(1) + 1)  # the device is awake
    jax.monitoring.register_event_duration_secs_listener(listen)
    first = seconds_of(call)
    programs, compiling = len(compiled), sum(compiled)
    second = seconds_of(call)
    return {"first_seconds": first, "second_seconds": second, "programs": programs, "compile_seconds": compiling}


def steps(case: Fit) -> dict[str, list[float]]:
    """Seconds of a step of a fit, and of velocity and score, in every round."""
    import steinkern as sk
    from steinkern.core.particles import Scored

    points = 1.1 * jr.normal(jr.key(0), (case.particles, case.dimensions), jnp.float32)
    kernel = sk.Isotropic(sk.RBF(), precision=case.precision)
    sampler = sk.svgd(kernel, 1e-2)
    adapted = jax.jit(lambda kernel, points: kernel.adapt(points))(kernel, points)

    @jax.jit
    def velocity(kernel: Any, points: Any) -> Any:
        scores = jax.vmap(jax.grad(log_density))(points)
        return kernel.velocity(points, Scored.uniform(points, scores))

    @jax.jit
    def loop(kernel: Any, points: Any, number: Any) -> Any:
        return jax.lax.fori_loop(0, number, lambda _, x: x + 1e-2 * velocity(kernel, x), points)

    def fit(number: int, **more: Any) -> Any:
        options: dict[str, Any] = {"num_steps": number, "progress": False, **more}
        return sk.fit(jr.key(1), log_density, sampler, points, **options).points

    if case.rounds == 0:
        return by_callback(lambda: velocity(adapted, points), fit, case)
    repeats = max(1, min(20, case.long))
    found: dict[str, list[float]] = {"velocity": []}
    runs: dict[str, Any] = {"fit": fit, "loop": lambda number: loop(adapted, points, jnp.int32(number))}
    found |= {name + part: [] for name in runs for part in ("", "_short", "_long")}
    seconds_of(velocity, adapted, points)
    seconds_of(runs["loop"], 1)
    found["fit_first"] = [seconds_of(fit, case.short)]
    for _ in range(case.rounds):
        many = [seconds_of(velocity, adapted, points) for _ in range(repeats)]
        found["velocity"].append(float(np.median(many)))
        for name, run in runs.items():
            short, long = seconds_of(run, case.short), seconds_of(run, case.long)
            found[f"{name}_short"].append(short)
            found[f"{name}_long"].append(long)
            found[name].append((long - short) / (case.long - case.short))
    return found


def by_callback(velocity: Any, fit: Any, case: Fit) -> dict[str, list[float]]:
    """Seconds of every step but the first ones, and of velocity and score, before and after them."""
    stamps: list[float] = []
    seconds_of(velocity)
    before = [seconds_of(velocity) for _ in range(2)]
    fit(case.long, record_every=1, callback=lambda *_: stamps.append(time.perf_counter()))
    return {
        "velocity": before + [seconds_of(velocity) for _ in range(2)],
        "fit": np.diff(stamps)[case.short :].tolist(),
    }


def child(case: str) -> dict[str, Any]:
    """The numbers of one case from a process of its own."""
    settings = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "STEINKERN_CACHE": "0"}
    inherited = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    more = os.environ.get("PYTHONPATH", "")
    settings["PYTHONPATH"] += os.pathsep + more if more else ""
    command = [sys.executable, "-m", "benchmarks.first_gpu", "--one", case]
    run = subprocess.run(command, env=inherited | settings, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{case} failed:\n{run.stderr[-3000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def rows_of(case: str, found: dict[str, Any]) -> list[Any]:
    from steinkern.experiments.tables import Row

    if case in FIRST:
        method = "sample" if case == "sample" else "fit"
        return [Row(FIRST[case], method, metric, float(value), float("nan"), 1) for metric, value in found.items()]
    rows = []
    methods = {"velocity and score": "velocity", "velocity and score, in a loop": "loop", "fit": "fit"}
    for method, name in methods.items():
        if name not in found:
            continue
        values = found[name]
        error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
        best = min(values)
        if f"{name}_long" in found:  # of the best rounds of each length
            best = (min(found[f"{name}_long"]) - min(found[f"{name}_short"])) / (FITS[case].long - FITS[case].short)
        rows.append(Row(case, method, "step_seconds", float(best), error, len(values)))
    if "fit_first" in found:
        rows.append(Row(case, "fit", "first_seconds", float(found["fit_first"][0]), float("nan"), 1))
    return rows


def markdown(rows: list[Any]) -> str:
    """First calls, then steps with their ratio to velocity and score."""
    found = {(row.case, row.method, row.metric): row.mean for row in rows}
    lines = ["| case | method | first call | second call | a step | over velocity and score |", "|---" * 6 + "|"]
    for case, method in dict.fromkeys((row.case, row.method) for row in rows):
        first, second, step = (
            found.get((case, method, metric)) for metric in ("first_seconds", "second_seconds", "step_seconds")
        )
        least = found.get((case, "velocity and score", "step_seconds"))
        cells = [
            "" if first is None else f"{first:.1f} s",
            "" if second is None else f"{second:.2f} s",
            "" if step is None else f"{1e3 * step:.3g} ms",
            "" if step is None or least is None or method == "velocity and score" else f"{step / least:.3f}",
        ]
        lines.append(f"| {case} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the numbers to PATH, a table beside it")
    parser.add_argument("--one", metavar="CASE", choices=CASES, help="one case in this process, as JSON")
    options = parser.parse_args()
    if options.one:
        warnings.simplefilter("ignore")
        found = first_call(options.one) if options.one in FIRST else steps(FITS[options.one])
        print(json.dumps({"device": jax.devices()[0].device_kind, "found": found}))
        return
    from steinkern.core.files import environment
    from steinkern.experiments.tables import aligned, read_results, write_results

    rows: list[Any] = []
    if options.json and options.json.exists():
        names = [FIRST.get(case, case) for case in options.cases]
        rows = [row for row in read_results(options.json)[2] if row.case not in names]
    for case in options.cases:
        answer = child(case)  # this process leaves the device alone
        rows += rows_of(case, answer["found"])
        print(aligned(markdown(rows)), flush=True)
        if options.json:  # case by case: a run that is stopped keeps what it has
            told = {
                **environment(),
                "device": answer["device"],
                "processors": os.cpu_count(),
                "dtype": "float32; products of the network without TF32",
                "step_seconds": "of the best rounds, a long fit less a short one; of velocity and score the best round",
            }
            write_results(options.json, "first-gpu", told, rows)
            options.json.with_suffix(".md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
