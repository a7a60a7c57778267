"""Contenders that take turns, and how long their steps take."""

import time
from typing import NamedTuple

import jax
import numpy as np
from contenders import Prepare, Run

COPIES = 4


class Budget(NamedTuple):
    """How long to measure. Many short rounds: some of them fall where the machine has nothing else to do.

    Not too short: a call allocates its memory anew, which many steps should share.
    """

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
    return seconds if seconds > budget.step_seconds / 16 else min(seconds, clock(run), clock(run))


def calibrated(prepare: Prepare, budget: Budget, least: int = 1) -> tuple[Run, int, int]:
    """A warm run of as many steps as fill a round, `least` or more, that number, and how many rounds it gets."""
    steps, run = least, prepare(least)
    while (seconds := warm_clock(run, budget)) < budget.round_seconds / 2 and steps < budget.most_steps:
        steps = int(min(steps * min(budget.round_seconds / seconds, 16) + 1, budget.most_steps))
        run = prepare(steps)
    return run, steps, int(np.clip(budget.contender_seconds / seconds, 1, budget.rounds))


def measured(prepared: dict[str, Prepare], budget: Budget) -> dict[str, Timing]:
    """The times of contenders that take turns, each round from another one on.

    Quick ones are compiled several times: where a program's constants come to lie in memory changes its speed, for as
    long as it lives.
    """
    # `fit` is a whole call, with looks at the target before and after: many steps share them.
    longer = budget._replace(round_seconds=2 * budget.round_seconds)
    ready = {
        name: calibrated(make, longer, least=50) if name == "fit" else calibrated(make, budget)
        for name, make in prepared.items()
    }
    copies = {
        name: [run] + [prepared[name](steps) for _ in range(COPIES - 1) if rounds == budget.rounds]
        for name, (run, steps, rounds) in ready.items()
    }
    for run in [run for runs in copies.values() for run in runs[1:]]:
        clock(run)
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    for number in range(budget.rounds):
        first = number % len(ready)
        for name, (_, steps, rounds) in (list(ready.items()) * 2)[first : first + len(ready)]:
            if number < rounds:
                seconds[name].append(clock(copies[name][number % len(copies[name])]) / steps)
    return {name: Timing(np.asarray(seconds[name]), steps) for name, (_, steps, _) in ready.items()}
