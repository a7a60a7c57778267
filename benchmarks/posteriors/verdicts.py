"""Does `fit` say when it is wrong? The everyday posteriors.

    python -m benchmarks.posteriors.verdicts [--targets NAME ...] [--workers 1] [--seeds 2] [--json PATH]

Every target is fitted by four samplers, from N(0, I), with few and with many particles and steps. A run is *wrong*
where a mean is more than one reference standard deviation off, or a standard deviation by more than a factor of two;
*right* where all means are within 0.35 and all standard deviations within 0.7 to 1.4. Those between count as neither.
The thresholds of what fails were not set on these targets; those of "unclear" were chosen after a first look at them.
A wrong run that warns of nothing, and has not diverged, is silent; a right run whose check does not pass is a false
alarm.
"""

import argparse
import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np

import steinkern as sk
from steinkern.core.files import environment
from steinkern.experiments.tables import Row, write_results

from .references import read_references
from .run import GOOD, Judgement
from .targets import TARGETS

RESULTS = Path(__file__).parents[1] / "results" / "verdicts-everyday.json"
WRONG = (1.0, 0.5, 2.0)
SIZES = ((30, 50), (50, 300), (100, 1000))
"""Particles and steps."""
SAMPLERS = {
    "svgd": lambda: sk.svgd(),
    "svgd, IMQ": lambda: sk.svgd(sk.IMQ()),
    "average, Hessian": lambda: sk.matrix_svgd("average", sk.Hessian(), sk.IMQ()),
    "mixture, Hessian": lambda: sk.matrix_svgd("mixture", sk.Hessian()),
}


def run(name: str, sampler: str, particles: int, steps: int, seed: int, reference: dict[str, Any]) -> dict[str, Any]:
    """One fit: how far its moments are from the reference, and what it says of itself."""
    target = TARGETS[name]
    start = jr.normal(jr.key(100 + seed), (particles, target.dim))
    about = {"target": name, "sampler": sampler, "particles": particles, "steps": steps, "seed": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = sk.fit(
                jr.key(seed), target.log_density, SAMPLERS[sampler](), start, num_steps=steps, progress=False,
                throw=False,
            )  # fmt: skip
        except ValueError as error:
            return {**about, "class": "refused", "said": [str(error)[:80]]}
    points = np.asarray(result.particles)
    judged = Judgement.of(points.mean(0), points.std(0), reference)
    kind = "right" if judged.within(GOOD) else "between" if judged.within(WRONG) else "wrong"
    return {
        **about,
        "class": kind,
        "error": judged.max_mean_error,
        "sds": [judged.min_sd_ratio, judged.max_sd_ratio],
        "status": result.status.value,
        "passed": result.verdict.passed,
        "said": [text.split(": ")[0][:80] for text in result.warnings],
        "verdict": result.verdict.sentence(),
        "failed_checks": list(result.failed_checks),
    }


def of_target(name: str, seeds: int) -> None:
    """All runs of one target, a line of JSON each."""
    reference = read_references()[name]
    for sampler, (particles, steps), seed in product(SAMPLERS, SIZES, range(seeds)):
        if TARGETS[name].dim > 60 and "Hessian" in sampler and steps > 300:
            continue  # minutes each
        print(json.dumps(run(name, sampler, particles, steps, seed, reference)), flush=True)
    jax.clear_caches()


def is_silent(line: dict[str, Any]) -> bool:
    return line["class"] == "wrong" and not line["said"] and line["status"] != "diverged"


def is_false_alarm(line: dict[str, Any]) -> bool:
    return line["class"] == "right" and line["passed"] is not True


def counts(lines: list[dict[str, Any]]) -> list[Row]:
    rows = []
    for sampler in SAMPLERS:
        for particles, steps in SIZES:
            own = [line for line in lines if (line["sampler"], line["particles"]) == (sampler, particles)]
            values = {
                "wrong": sum(line["class"] == "wrong" for line in own),
                "silent": sum(map(is_silent, own)),
                "right": sum(line["class"] == "right" for line in own),
                "false alarms": sum(map(is_false_alarm, own)),
            }
            case = f"{particles} particles, {steps} steps"
            rows += [Row(case, sampler, metric, float(value), None, len(own)) for metric, value in values.items()]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--lines", type=Path, help="every run, a line of JSON each")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if options.one:
        of_target(options.one, options.seeds)
        return
    threads = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    surroundings = {**os.environ, "XLA_FLAGS": threads, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def process(name: str) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "benchmarks.posteriors.verdicts", "--one", name, "--seeds", str(options.seeds)]
        ended = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
        if ended.returncode:
            print(f"{name} failed: {ended.stderr.strip()[-500:]}", flush=True)
        return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]

    lines: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.workers) as pool:
        for own in pool.map(process, sorted(options.targets, key=lambda name: -TARGETS[name].dim)):
            lines += own
            if options.lines:
                options.lines.write_text("\n".join(map(json.dumps, lines)) + "\n")
    for line in lines:
        if is_silent(line) or is_false_alarm(line):
            word = "SILENT" if is_silent(line) else "FALSE ALARM"
            print(f"{word} {line['target']}, {line['sampler']}, {line['particles']} particles, {line['steps']} steps:")
            print(f"    means off by up to {line['error']:.2g} sd, sds {line['sds']}. {line['verdict']}")
    rows = counts(lines)
    for metric in ("wrong", "silent", "right", "false alarms"):
        print(f"{metric}: {sum(row.mean for row in rows if row.metric == metric):.0f} of {len(lines)}")
    settings = {"targets": sorted({line["target"] for line in lines}), "seeds": options.seeds, **environment()}
    write_results(options.json, "verdicts of everyday posteriors", settings, rows)


if __name__ == "__main__":
    main()
