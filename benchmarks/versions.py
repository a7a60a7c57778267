"""Two versions of the library in turn: steps of `fit`, and first calls in fresh processes.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.versions --before /tmp/before/src [--json benchmarks/results/versions.json]

Both versions run on the libraries of this environment. For the steps each has one process, and the processes take turns
round by round; the ratio is of the best rounds. For first calls every process is a fresh one, and the versions take
turns. Run it on an idle machine.

A `fit` of the later version ends with a check of its particles, whatever the number of its steps. So the cases are run
with two numbers of steps: "steps" has the whole fit of the smaller one, "step" the difference by step.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

CASES = ("vanilla 50x2", "average 50x2", "mixture 50x2", "vanilla 100x10", "average 100x10", "vanilla 2000x50")
FIRST = ("vanilla 50x2", "average 50x2", "mixture 50x2", "sample 5")
STEPS = 200
Times: TypeAlias = dict[str, dict[str, list[float]]]
"""Seconds, by case and version."""


def prepare(case: str) -> Any:
    """A function that runs the case once; inside a child process, with whichever version it imports."""
    import jax
    import jax.numpy as jnp
    import jax.random as jr

    import steinkern as sk

    method, _, size = case.partition(" ")
    if method == "sample":
        d = int(size)
        return lambda: sk.sample(jr.key(0), lambda x: -0.5 * jnp.sum(x**2 / (1 + jnp.arange(d))), jnp.zeros(d))
    n, d = map(int, size.split("x"))
    points = jr.normal(jr.key(0), (n, d))
    scales = 1.0 + jnp.arange(d) / d

    def log_density(x: Any) -> Any:
        return -0.5 * jnp.sum((x / scales) ** 2) - 0.1 * jnp.sum(x**4)

    samplers = {
        "vanilla": lambda: sk.svgd(),
        "average": lambda: sk.matrix_svgd("average", sk.Hessian()),
        "mixture": lambda: sk.matrix_svgd("mixture", sk.Hessian()),
    }
    sampler = samplers[method]()

    def run(lengths: int = 1) -> Any:
        steps = lengths * steps_of(case)
        result = sk.fit(jr.key(1), log_density, sampler, points, num_steps=steps, record_every=steps, progress=False)
        return jax.block_until_ready(result.points)

    return run


def steps_of(case: str) -> int:
    """Steps of the shorter fit."""
    return 10 if case.endswith("2000x50") else STEPS


def longer(case: str) -> int:
    """How many times the steps of the shorter fit the longer one takes; its end must not show beside the steps."""
    return 20 if case.endswith("2000x50") else 25


def child(mode: str) -> None:
    """Answer a line with a case by a line with the seconds that it took; `first` counts from before the import.

    Of "steps" there are two numbers: seconds of a fit, and of one with `longer(case)` times its steps.
    """
    import warnings

    warnings.simplefilter("ignore")
    prepared: dict[str, Any] = {}
    for line in sys.stdin:
        case = line.strip()
        start = time.perf_counter()
        if case not in prepared:
            prepared[case] = prepare(case)
            if mode == "steps":
                prepared[case]()
                prepared[case](longer(case))
                start = time.perf_counter()
        prepared[case]()
        seconds = [time.perf_counter() - start]
        if mode == "steps":
            start = time.perf_counter()
            prepared[case](longer(case))
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), flush=True)


class Version:
    """A process that has imported one version."""

    def __init__(self, source: Path, mode: str):
        environment = {**os.environ, "PYTHONPATH": str(source), "TQDM_DISABLE": "1"}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        command = [sys.executable, __file__, "--child", mode]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)

    def seconds(self, case: str) -> list[float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def step_times(sources: dict[str, Path], rounds: int) -> tuple[Times, Times]:
    """Seconds of a fit, and of one step more, by case and version, round by round in turn."""
    versions = {name: Version(source, "steps") for name, source in sources.items()}
    fits: Times = {case: {name: [] for name in versions} for case in CASES}
    long_fits: Times = {case: {name: [] for name in versions} for case in CASES}
    for case in CASES:
        for _ in range(rounds):
            for name, version in versions.items():
                for times, seconds in zip((fits, long_fits), version.seconds(case), strict=True):
                    times[case][name].append(seconds)
    for version in versions.values():
        version.close()
    return fits, {case: by_step(case, fits[case], long_fits[case]) for case in CASES}


def by_step(case: str, fits: dict[str, list[float]], long_fits: dict[str, list[float]]) -> dict[str, list[float]]:
    """Seconds of a step: the best fit taken from every longer one. The check at the end of a fit drops out."""
    more = (longer(case) - 1) * steps_of(case)
    return {name: [(seconds - min(fits[name])) / more for seconds in long_fits[name]] for name in fits}


def first_times(sources: dict[str, Path], repeats: int) -> Times:
    """Seconds from the import of JAX to the first result, by case and version, every one in a fresh process."""
    times: Times = {case: {name: [] for name in sources} for case in FIRST}
    for case in FIRST:
        for _ in range(repeats):
            for name, source in sources.items():
                version = Version(source, "first")
                times[case][name].append(version.seconds(case)[0])
                version.close()
    return times


def rows(kind: str, times: Times) -> list[Any]:
    from steinkern.experiments.tables import Row

    made = []
    for case, by_version in times.items():
        for name, seconds in by_version.items():
            values = np.array(seconds)
            error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
            made.append(Row(case, name, f"{kind}_seconds", float(values.min()), error, len(values)))
        ratios = np.array(by_version["now"]) / np.array(by_version["before"])
        ratio = min(by_version["now"]) / min(by_version["before"])
        error = float(ratios.std(ddof=1) / np.sqrt(len(ratios))) if len(ratios) > 1 else float("nan")
        made.append(Row(case, "now", f"{kind}_ratio", ratio, error, len(ratios)))
        print(f"{kind:<6} {case:<18} before {min(by_version['before']):.5f} s, now {min(by_version['now']):.5f} s, "
              f"ratio {ratio:.2f} ± {error:.2f}", flush=True)  # fmt: skip
    return made


def _commit(source: Path) -> str:
    command = ["git", "-C", str(source), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the `src` of the other version")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", choices=("steps", "first"))
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    if options.before is None:
        parser.error("--before is needed: the `src` of the version to compare with")
    sources = {"before": options.before, "now": Path(__file__).parents[1] / "src"}
    fits, steps = step_times(sources, options.rounds)
    made = rows("steps", fits) + rows("step", steps) + rows("first", first_times(sources, options.repeats))
    if options.json:
        from steinkern.core.files import environment
        from steinkern.experiments.tables import write_results

        write_results(
            options.json,
            "versions",
            {"environment": environment(), "commits": {n: _commit(s) for n, s in sources.items()}},
            made,
        )


if __name__ == "__main__":
    main()
