"""Step times on a CPU beside a plain JAX step and, where they are installed, other libraries.

Contenders take turns in one process, and the best of many short rounds counts, because machines are shared; ratios are
to the plain step with a fixed bandwidth. Memory is that of a process of its own. Run it on an idle machine:

    python benchmarks/cpu.py [--quick] [--json benchmarks/results/cpu.json]

Libraries that are not installed are left out, and so is one where a step would take too long; both are said. The
Markdown table goes beside the JSON.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["TQDM_DISABLE"] = "1"  # before anybody imports it: simpleSVGD shows a bar for every call

import contenders
import jax
import numpy as np
import peers
from contenders import Prepare, Problem
from timing import Budget, Timing, clock, measured

from steinkern.core.files import environment
from steinkern.experiments.tables import Row, aligned, write_results

YARDSTICK = "plain-fixed"
OURS: dict[str, Callable[[Problem], Prepare]] = {
    YARDSTICK: contenders.plain,
    "vanilla": contenders.steinkern,
    "vanilla-all-pairs": contenders.steinkern_all_pairs,
    "fit": contenders.steinkern_fit,
    "average": contenders.steinkern_metric,
    "average-hessian": contenders.steinkern_average,
    "plain-median": contenders.plain_median,
}
ALONE = {**OURS, "mixture": contenders.steinkern_mixture, "numpyro-matrix": peers.numpyro_matrix}
GROWTH = (4000, 8000, 16000, 32000, 50000)


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def everyone() -> dict[str, Callable[[Problem], Prepare]]:
    """Ourselves, and the peers that are installed."""
    there = {method: make for method, (module, make) in peers.PEERS.items() if installed(module)}
    for method in [method for method in peers.PEERS if method not in there]:
        print(f"{method} is not installed and left out.")
    return OURS | there


def step_rows(cases: dict[str, Problem], budget: Budget) -> list[Row]:
    """Every case, in growing n; a contender is left out where the case before says that a step would take too long."""
    methods, rows, reached = everyone(), [], {}
    for case, problem in cases.items():
        n, family = problem.points.shape[0], case.partition("n=")[0]
        power = 1 if family else 2  # the likelihood of logistic regression grows with n, the pairs with its square
        expected = {
            name: seconds * (n / before) ** power
            for (kind, name), (before, seconds) in reached.items()
            if kind == family and name not in ("vanilla", "fit", YARDSTICK)
        }
        kept = {name: make for name, make in methods.items() if expected.get(name, 0) < budget.step_seconds}
        if family == "logreg,":  # its Hessian is that of 10,000 rows at every particle: another comparison
            kept.pop("average-hessian", None)
        times = measured({name: make(problem) for name, make in kept.items()}, budget)
        reached |= {(family, name): (n, timing.best) for name, timing in times.items()}
        limit = 2.0 if n >= 1000 else 3.0
        rows += table(case, times, {"vanilla": limit, "fit": limit})
        for name in [name for name in methods if name not in kept and name in expected]:
            print(f"{name:<18}left out: about {expected[name]:.0f} s a step, by its time at the size before")
    return rows


def table(case: str, times: dict[str, Timing], targets: dict[str, float]) -> list[Row]:
    """Print a case and return its rows. Ratios are of best rounds, to the first contender's."""
    print(f"\n{case:<18}{'time a step':>15}{'in a round':>12}{'ratio':>9}{'±':>7}{'target':>8}")
    rows, base = [], next(iter(times.values()))
    for name, timing in times.items():
        seconds, best, ratio = timing.seconds, timing.best, timing.best / base.best
        paired = min(len(seconds), len(base.seconds))
        ratios = seconds[:paired] / base.seconds[:paired]
        error = float(ratios.std(ddof=1) / np.sqrt(paired)) if paired > 1 else float("nan")
        line = f"{name:<18}{1e3 * best:>12.3f} ms{timing.steps:>12}{ratio:>9.2f}{error:>7.2f}"
        target = targets.get(name)
        print(line + (f"{target:>8.1f} {'met' if ratio <= target else 'MISSED'}" if target else ""), flush=True)
        spread = 1e3 * float(seconds.std(ddof=1) / np.sqrt(len(seconds))) if len(seconds) > 1 else float("nan")
        rows.append(Row(case, name, "milliseconds", 1e3 * best, spread, len(seconds)))
        rows.append(Row(case, name, "ratio", ratio, error, paired))
    return rows


def mixture_rows(n: int, budget: Budget) -> list[Row]:
    """The mixture with an anchor at every particle, against the same formula by hand; ratios are to that one."""
    problem = contenders.banana(n)
    both = {"einsum": contenders.einsum_mixture(problem), "mixture": contenders.steinkern_mixture(problem)}
    ends = {name: jax.tree.leaves(prepare(10)())[0] for name, prepare in both.items()}
    np.testing.assert_allclose(ends["mixture"], ends["einsum"], atol=1e-3)
    return table(f"mixture,n=l={n},d=2", measured(both, budget), {"mixture": 1.5})


def alone(method: str, n: int, d: int) -> dict[str, float]:
    """A step of one contender and the largest resident memory so far: for a process that does nothing else."""
    run = ALONE[method](contenders.gaussian(n, d))(1)
    seconds = [clock(run) for _ in range(1 if n > 20_000 else 3)]
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"milliseconds": 1e3 * min(seconds), "gigabytes": 1024 * int(status["VmHWM"].split()[0]) / 1e9}


def alone_rows(wanted: list[tuple[str, int, int]]) -> list[Row]:
    """Time and memory, everything in it included, of processes that take one step."""
    rows = []
    for method, n, d in wanted:
        if method.startswith("numpyro") and not installed("numpyro"):
            continue
        call = [sys.executable, __file__, "--alone", method, str(n), str(d)]
        run = subprocess.run(call, capture_output=True, text=True, check=False)
        if run.returncode:
            print(f"n={n},d={d} {method}: failed: {run.stderr.strip().splitlines()[-1:]}")
            continue
        found = json.loads(run.stdout.splitlines()[-1])
        print(f"n={n},d={d} {method}: {found['milliseconds']:.1f} ms, {found['gigabytes']:.2f} GB", flush=True)
        rows += [Row(f"alone,n={n},d={d}", method, metric, value, float("nan"), 1) for metric, value in found.items()]
    return rows


def growth_rows(sizes: tuple[int, ...], rounds: int) -> list[Row]:
    """The exponent of a step's time against n, by least squares on its logarithms."""
    runs = {n: contenders.steinkern(contenders.gaussian(n, 50))(1) for n in sizes}
    seconds = np.asarray([[clock(run) for run in runs.values()] for _ in range(rounds + 1)])[1:]
    exponents = [float(np.polyfit(np.log(sizes), np.log(line), 1)[0]) for line in seconds]
    best = float(np.polyfit(np.log(sizes), np.log(seconds.min(axis=0)), 1)[0])
    case = f"n={sizes[0]}..{sizes[-1]},d=50"
    error = float(np.std(exponents, ddof=1) / np.sqrt(rounds)) if rounds > 1 else float("nan")
    print(f"\n{case}: exponent {best:.2f} ± {error:.2f}, target 2 ± 0.15 {'met' if abs(best - 2) < 0.15 else 'MISSED'}")
    rows = [Row(case, "vanilla", "exponent", best, error, rounds)]
    for n, column in zip(sizes, seconds.T, strict=True):
        print(f"n={n},d=50: {1e3 * column.min():.0f} ms", flush=True)
        rows.append(
            Row(f"growth,n={n},d=50", "vanilla", "milliseconds", 1e3 * float(column.min()), float("nan"), rounds)
        )
    return rows


def judged(rows: list[Row]) -> list[str]:
    """The claims that compare rows, met or missed, in words."""
    times = {(row.case, row.method): row.mean for row in rows if row.metric == "milliseconds"}
    said = []
    for case in dict.fromkeys(row.case for row in rows if row.metric == "ratio" and "mixture" not in row.case):
        n = int(case.split("n=")[1].split(",")[0])
        ours, others = times[case, "vanilla"], {m: t for (c, m), t in times.items() if c == case and m in peers.PEERS}
        if others:
            rival = min(others, key=others.__getitem__)
            fastest = "the fastest" if ours <= others[rival] else f"MISSED: slower than {rival}"
            said.append(f"{case}: vanilla is {fastest}; {rival} takes {others[rival] / ours:.1f} times as long")
        for name in ("blackjax", "numpyro"):
            if n >= 1000 and name in others:  # with many data most of the time is the likelihood's, which is the same
                factor = others[name] / ours
                said.append(f"{case}: {name} takes {factor:.1f} times as long, target 20 {_verdict(factor >= 20)}")
        if (case, "average") in times and case.endswith("d=50"):
            factor = times[case, "average"] / ours
            said.append(
                f"{case}: the average kernel takes {factor:.2f} of vanilla, target 1.5 {_verdict(factor <= 1.5)}"
            )
    memory = {(row.case, row.method): row.mean for row in rows if row.metric == "gigabytes"}
    large = memory.get(("alone,n=50000,d=50", "vanilla"))
    if large is not None:
        said.append(f"n=50000,d=50: {large:.2f} GB resident, target 1.5 {_verdict(large < 1.5)}")
    return said


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


TABLES = {
    "a Gaussian": lambda case: case.startswith("n=") and ".." not in case,
    "logistic regression, 10,000 rows": lambda case: case.startswith("logreg"),
    "the mixture, an anchor at every particle": lambda case: case.startswith("mixture"),
    "one step in a process of its own": lambda case: case.startswith("alone"),
}
"""The tables and the cases that stand in them."""


def markdown(rows: list[Row]) -> str:
    """Milliseconds a step and, in brackets, the ratio to the yardstick: a row a method, a column a case."""
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row.metric in ("milliseconds", "ratio", "gigabytes"):
            cells.setdefault((row.case, row.method), {})[row.metric] = row.mean
    return "\n".join(_table(title, {key: cells[key] for key in cells if has(key[0])}) for title, has in TABLES.items())


def _table(title: str, cells: dict[tuple[str, str], dict[str, float]]) -> str:
    cases = list(dict.fromkeys(case for case, _ in cells))
    methods = list(dict.fromkeys(method for _, method in cells))
    heads = [case.split(",", 1)[1] if not case.startswith("n=") else case for case in cases]
    lines = [f"| {title} | " + " | ".join(heads) + " |", "|---" * (len(cases) + 1) + "|"]
    for method in methods:
        line = [_cell(cells.get((case, method))) for case in cases]
        lines.append(f"| {method} | " + " | ".join(line) + " |")
    return "\n".join(lines) + "\n"


def _cell(found: dict[str, float] | None) -> str:
    if found is None:
        return "–"
    milliseconds = found["milliseconds"]
    text = f"{milliseconds / 1e3:.3g} s" if milliseconds >= 1e3 else f"{milliseconds:.3g} ms"
    if "ratio" in found:
        text += f" ({found['ratio']:.2f})"
    return text + (f", {found['gigabytes']:.2f} GB" if "gigabytes" in found else "")


def blas() -> str:
    """What PyTensor multiplies matrices with: installed by pip it often has no BLAS, and is slow with many data."""
    import pytensor

    flags = pytensor.config.blas__ldflags
    return f"linked with {flags}" if flags else "without a BLAS to link to"


def settings(budget: Budget) -> dict[str, Any]:
    """What the numbers depend on."""
    modules = [module for module, _ in peers.PEERS.values() if installed(module)]
    return {
        **environment(),
        **{name: version(name) for name in modules},
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[2], 2),
        "machine": platform.machine(),
        "device": jax.devices()[0].device_kind,
        "dtype": "float32; PyMC and simpleSVGD compute in float64",
        **({"pytensor": blas()} if installed("pytensor") else {}),
        "mean": "the best round; of ratios, over the yardstick's best round",
        "stderr": "of single rounds; of ratios, of the ratios of single rounds",
        **budget._asdict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, and no n = 5000 nor more")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the numbers to PATH")
    parser.add_argument("--alone", nargs=3, metavar=("METHOD", "N", "D"), help="one step of one method, as JSON")
    options = parser.parse_args()
    if options.alone:
        method, n, d = options.alone
        print(json.dumps(alone(method, int(n), int(d))))
        return
    budget = Budget(10, 0.02, 0.5, 5000, 1.0) if options.quick else Budget(30, 0.15, 6.0, 5000, 60.0)
    most = 1000 if options.quick else 5000
    shapes = [(50, 2), (100, 50), (1000, 50), (5000, 50)]
    cases = {f"n={n},d={d}": contenders.gaussian(n, d) for n, d in shapes if n <= most}
    cases |= {f"logreg,n={n},d=54": contenders.logistic(n) for n in (50, 1000, 5000) if n <= most}
    rows = step_rows(cases, budget) + mixture_rows(50, budget)
    matrix = [(method, 100, 50) for method in ("vanilla", "average-hessian", "mixture", "numpyro-matrix")]
    rows += alone_rows(matrix if options.quick else [*matrix, ("vanilla", 50_000, 50)])
    rows += growth_rows(GROWTH[:2] if options.quick else GROWTH, 1 if options.quick else 3)
    print("\n" + "\n".join(judged(rows)))
    text = markdown(rows)
    print("\n" + "\n".join(aligned(part) for part in text.split("\n\n")))
    if options.json:
        write_results(options.json, "cpu", settings(budget), rows)
        options.json.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
