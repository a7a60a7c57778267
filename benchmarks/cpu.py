"""Steps on a CPU beside a plain JAX step and, where they are installed, other libraries.

A step is a whole call divided by its steps, the best of many short calls in a process of its own; memory is the largest
resident set of that process. Ratios are to the plain step with a fixed bandwidth. The exponent of growth is that of n
in a step's time, by least squares on logarithms. A `fit` is a whole call with its
checks and its history, so that many steps share them. PyMC and simpleSVGD compute in float64, and PyMC compiles for
minutes where it has no C compiler. Run it on an idle machine.
"""

import importlib.util
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from .bench import Answer, Benchmark, Row, best_of, by_metric
from .contenders import CONTENDERS, Problem, gaussian, logistic

CASES: dict[str, Callable[[], Problem]] = {
    **{f"n={n},d={d}": partial(gaussian, n, d) for n, d in ((50, 2), (100, 50), (1000, 50), (5000, 50))},
    **{f"logreg,n={n},d=54": partial(logistic, n) for n in (50, 1000, 5000)},
    **{f"growth,n={n},d=50": partial(gaussian, n, 50) for n in (4000, 8000, 16000, 32000, 50000)},
}
PEERS = {"blackjax": "blackjax", "numpyro": "numpyro", "msvgd": "msvgd", "pymc": "pymc", "simplesvgd": "simpleSVGD"}
"""The modules of other libraries, by method."""
ROUND, SECONDS = 0.3, 8.0  # of one call, and of all
LEAST = {"fit": 50}
"""Steps of the shortest call."""


def pairs() -> list[tuple[str, str]]:
    """Peers that are not installed are left out; growth is that of `vanilla`."""
    missing = [name for name, module in PEERS.items() if importlib.util.find_spec(module) is None]
    methods = [name for name in CONTENDERS if name not in missing]
    return [(case, method) for case in CASES for method in (["vanilla"] if case.startswith("growth") else methods)]


def run(case: str, method: str, options: Namespace) -> Answer:
    """Milliseconds of a step, and gigabytes."""
    prepare, steps = CONTENDERS[method](CASES[case]()), LEAST.get(method, 1)
    call = prepare(steps)
    call()
    while (seconds := best_of(call, most=2)[0]) < ROUND / 2 and steps < 20_000:
        steps = int(steps * min(ROUND / seconds, 16)) + 1
        call = prepare(steps)
        call()
    best = best_of(call, seconds=SECONDS, most=30)[0] / steps
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    numbers = {"milliseconds": 1e3 * best, "gigabytes": 1024 * int(status["VmHWM"].split()[0]) / 1e9}
    return Answer([Row(case, method, metric, value) for metric, value in numbers.items()])


def compared(rows: list[Row]) -> list[Row]:
    """Ratios to the yardstick, and the exponent of growth."""
    times = {key: number["milliseconds"] for key, number in by_metric(rows).items() if "milliseconds" in number}
    made = []
    for (case, method), milliseconds in times.items():
        base = times.get((case, "plain-fixed"))
        if base is not None:
            made.append(Row(case, method, "ratio", milliseconds / base))
    growth = {int(case.split("=")[1].split(",")[0]): t for (case, _), t in times.items() if case.startswith("growth")}
    if len(growth) > 1:
        exponent = float(np.polyfit(np.log(list(growth)), np.log(list(growth.values())), 1)[0])
        made.append(Row(f"n={min(growth)}..{max(growth)},d=50", "vanilla", "exponent", exponent))
    return made


BENCHMARKS = {
    "cpu": Benchmark(
        pairs(),
        run,
        compared,
        ("milliseconds", "ratio", "gigabytes", "exponent"),
        foreign=("plain-fixed", *PEERS),
        environment={"JAX_PLATFORMS": "cpu", "TQDM_DISABLE": "1", "MPLBACKEND": "agg"},
    )
}
