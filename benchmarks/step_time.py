"""Step times beside a plain JAX step and, where they are installed, BlackJAX and NumPyro.

Everything runs in one process on one machine. Contenders take turns, and the best of many short rounds counts, because
machines are shared; what is reported is each one's time over that of the plain step. Run it on an idle machine:

    python benchmarks/step_time.py [--quick] [--json PATH]
"""

import argparse
import importlib.util
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import contenders
import jax
import numpy as np
from contenders import Prepare, Problem, Run

from steinkern.experiments.results import Row, write_results
from steinkern.files import environment


class Budget(NamedTuple):
    """How long to measure. Many short rounds: some of them fall where the machine has nothing else to do."""

    rounds: int
    round_seconds: float  # a contender takes so many steps that a round of it lasts about this long
    contender_seconds: float  # slow contenders get fewer rounds, to stay below this
    most_steps: int  # in a round
    step_seconds: float  # a contender slower than this a step is left out


class Timing(NamedTuple):
    """Seconds a step in every round, and how many steps a round had."""

    seconds: np.ndarray
    steps: int

    @property
    def best(self) -> float:
        """The fastest round, in seconds a step."""
        return float(self.seconds.min())


def clock(run: Run) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def warm_clock(run: Run, budget: Budget) -> float:
    """The best of a few calls, the first of which may compile."""
    clock(run)
    seconds = clock(run)
    return seconds if seconds > budget.step_seconds / 4 else min(seconds, clock(run), clock(run))


def calibrated(prepare: Prepare, budget: Budget) -> tuple[Run, int, int]:
    """A warm run of as many steps as fill a round, that number, and how many rounds it gets."""
    steps, run = 1, prepare(1)
    while (seconds := warm_clock(run, budget)) < budget.round_seconds / 2 and steps < budget.most_steps:
        steps = int(min(steps * min(budget.round_seconds / seconds, 16) + 1, budget.most_steps))
        run = prepare(steps)
    return run, steps, int(np.clip(budget.contender_seconds / seconds, 2, budget.rounds))


def measured(prepared: dict[str, Prepare], budget: Budget) -> dict[str, Timing]:
    """The times of contenders that take turns, each round from another one on."""
    longer = budget._replace(round_seconds=10 * budget.round_seconds)  # `fit` is a whole call: many steps share it
    ready = {name: calibrated(make, longer if "fit" in name else budget) for name, make in prepared.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    for number in range(budget.rounds):
        first = number % len(ready)
        for name, (run, steps, rounds) in (list(ready.items()) * 2)[first : first + len(ready)]:
            if number < rounds:
                seconds[name].append(clock(run) / steps)
    return {name: Timing(np.asarray(seconds[name]), steps) for name, (_, steps, _) in ready.items()}


def vanilla_contenders() -> dict[str, Callable[[Problem], Prepare]]:
    """The yardstick, ourselves, and the peers that are installed."""
    ours = {
        "plain": contenders.plain,
        "steinkern": contenders.steinkern,
        "steinkern.fit": contenders.steinkern_fit,
        "plain, jnp.median": contenders.plain_median,
    }
    peers = {"blackjax": contenders.blackjax, "numpyro": contenders.numpyro}
    for name in [name for name in peers if importlib.util.find_spec(name) is None]:
        print(f"{name} is not installed and left out.")
        del peers[name]
    return ours | peers


def vanilla_rows(cases: list[tuple[int, int]], budget: Budget) -> list[Row]:
    """Every case, in growing n; a contender is left out where n² says that a step would take too long."""
    everyone, rows, reached = vanilla_contenders(), [], {}
    for n, d in cases:
        case, problem = f"n={n},d={d}", contenders.gaussian(n, d)
        expected = {name: seconds * (n / before) ** 2 for name, (before, seconds) in reached.items()}
        kept = {name: make for name, make in everyone.items() if expected.get(name, 0) < budget.step_seconds}
        times = measured({name: make(problem) for name, make in kept.items()}, budget)
        reached |= {name: (n, timing.best) for name, timing in times.items()}
        rows += table(case, times, dict.fromkeys(("steinkern", "steinkern.fit"), 2.0 if n >= 1000 else 3.0))
        for name in [name for name in everyone if name not in kept]:
            print(f"{name:<20}left out: about {expected[name]:.0f} s a step, by its time at n={reached[name][0]}")
    return rows


def mixture_rows(n: int, budget: Budget) -> list[Row]:
    """The mixture with an anchor at every particle, against the same formula by hand."""
    problem = contenders.banana(n)
    both = {"einsum": contenders.einsum_mixture(problem), "steinkern": contenders.steinkern_mixture(problem)}
    ends = {name: jax.tree.leaves(prepare(10)())[0] for name, prepare in both.items()}
    np.testing.assert_allclose(ends["steinkern"], ends["einsum"], atol=1e-3)
    return table(f"mixture,n=l={n},d=2", measured(both, budget), {"steinkern": 1.5})


def table(case: str, times: dict[str, Timing], targets: dict[str, float]) -> list[Row]:
    """Print a case and return its rows. Ratios are of best rounds, to the first contender's."""
    print(f"\n{case:<20}{'time a step':>14}{'steps/s':>10}{'in a round':>12}{'ratio':>9}{'±':>7}{'target':>8}")
    rows, (yardstick, base) = [], next(iter(times.items()))
    for name, timing in times.items():
        seconds, best, ratio = timing.seconds, timing.best, timing.best / base.best
        paired = min(len(seconds), len(base.seconds))
        error = float((seconds[:paired] / base.seconds[:paired]).std(ddof=1) / np.sqrt(paired))
        line = f"{name:<20}{1e6 * best:>11.1f} µs{1 / best:>10.1f}{timing.steps:>12}{ratio:>9.2f}{error:>7.2f}"
        target = targets.get(name)
        print(line + (f"{target:>8.1f} {'met' if ratio <= target else 'MISSED'}" if target else ""), flush=True)
        rows.append(Row(case, name, f"ratio_to_{yardstick}", ratio, error, len(seconds)))
        rows.append(Row(case, name, "steps_per_second", 1 / best, float("nan"), len(seconds)))
    return rows


def settings(budget: Budget) -> dict[str, Any]:
    """What the numbers depend on."""
    peers = [name for name in ("blackjax", "numpyro") if importlib.util.find_spec(name) is not None]
    return {
        **environment(),
        **{name: version(name) for name in peers},
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "device": jax.devices()[0].device_kind,
        "dtype": "float32",
        "mean": "the best round; of ratios, over the yardstick's best round",
        "stderr": "of the ratios of single rounds",
        **budget._asdict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, and no n = 5000")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the numbers to PATH")
    options = parser.parse_args()
    cases = [(50, 2), (100, 50), (1000, 50), (5000, 50)]
    if options.quick:
        budget, cases = Budget(10, 0.02, 0.5, 5000, 1.0), cases[:-1]
    else:
        budget = Budget(60, 0.03, 6.0, 5000, 5.0)
    rows = vanilla_rows(cases, budget) + mixture_rows(50, budget)
    if options.json:
        write_results(options.json, "step_time", settings(budget), rows)


if __name__ == "__main__":
    main()
