"""Posteriors by minibatches: `fit` without a sampler beside SGLD, pSGLD, a mean-field Gaussian and SVGD.

    python -m benchmarks.minibatch.run [--posteriors NAME ...] [--batches 32 ...] [--methods NAME ...] [--workers 1]
                                       [--gpu] [--keep-references]

Reference means and standard deviations are those on all rows (see `references`). A row of results is the largest error
of a mean, in reference standard deviations, the largest relative error of a standard deviation, and the epochs at which
both were first below 0.2 and 15 percent, NaN where they never were. An epoch is as many rows as there are, however many
particles see them. `stein` has three seeds and nothing to choose. The other methods have one seed and the best of four
step sizes each, by the sum of both errors at the end, which a user does not know.

Every run is kept in a journal, so that a stopped benchmark goes on; `--limit` stops it after so many seconds. Rows of
methods whose runs the journal does not have are kept from the file of `--json`. `--merge` adds the runs of other
journals. With `--gpu` the runs share a GPU instead of having a core each.
"""

import argparse
import json
import math
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from steinkern.core.files import environment
from steinkern.experiments.journal import Journal
from steinkern.experiments.tables import Row, read_results, rounded, write_results

from ..jobs import ON_A_GPU, ONE_THREAD, in_processes, machine
from .methods import METHODS, STEP_SIZES, Outcome, run_method
from .posteriors import BUILD
from .references import CHAINS, by_importance, combine, one_chain

RESULTS = Path(__file__).parents[1] / "results" / "minibatch.json"
BATCHES = (32, 256, 2048)
EPOCHS = 20.0
SEEDS = 3
LIMITS = (0.2, 0.15)
LONG = 200_000
"""Rows from which every run has a process of its own."""
Job = dict[str, Any]


@cache
def number_of_rows(name: str) -> int:
    return BUILD[name]().rows


def reference_keys(name: str) -> list[str]:
    """The runs that the reference of a posterior is made of."""
    return ["importance,0"] if name.startswith("logistic") else [f"nuts,{chain}" for chain in range(CHAINS)]


def jobs_of(posteriors: list[str], batches: list[int], methods: list[str]) -> dict[str, Job]:
    """All runs by name: those of `stein` first, then the chains of the references, then the rest, the longest first."""
    found: dict[str, Job] = {}
    for name in posteriors:
        for batch in batches if "stein" in methods else ():
            for seed in range(SEEDS):
                found[f"{name},batch={batch},stein,{seed}"] = {
                    "posterior": name, "batch": batch, "method": "stein", "size": None, "seed": seed
                }  # fmt: skip
    by_rows = sorted(posteriors, key=lambda name: -number_of_rows(name))
    for name in by_rows:
        for key in reference_keys(name):
            found[f"{name},{key}"] = {"posterior": name, "method": key.split(",")[0], "seed": int(key.split(",")[1])}
    for name in by_rows:
        for batch in batches:
            for method in (method for method in methods if method != "stein"):
                for size in STEP_SIZES[method]:
                    found[f"{name},batch={batch},{method},{size:g}"] = {
                        "posterior": name, "batch": batch, "method": method, "size": size, "seed": 0
                    }  # fmt: skip
    return found


def seconds_of(job: Job) -> float:
    """Roughly what a run takes on a core, for `--limit`."""
    million = number_of_rows(job["posterior"]) / 1e6
    if job["method"] in ("nuts", "importance", "stein"):
        return 20 + 200 * million
    return 10 + million * (700 if job["batch"] == 32 else 400)


def run_job(job: Job) -> dict[str, Any]:
    """Moments at every record, or those of a chain of the reference."""
    if job["method"] == "nuts":
        return one_chain(job["posterior"], job["seed"])
    if job["method"] == "importance":
        return by_importance(job["posterior"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = BUILD[job["posterior"]]()
        found = run_method(job["method"], job["size"], posterior, job["batch"], EPOCHS, job["seed"])
    moments = {key: json.dumps(rounded(getattr(found, key))) for key in ("epochs", "means", "sds")}  # a line each
    device = "" if jax.default_backend() == "cpu" else f", {jax.devices()[0].device_kind}"
    return {**moments, "warned": found.warned, "machine": machine() + device}


def read_outcome(piece: dict[str, Any]) -> Outcome:
    epochs, means, sds = (np.array(json.loads(piece[key]), float) for key in ("epochs", "means", "sds"))
    return Outcome(epochs, means, sds, piece["warned"])


def numbers_of(outcome: Outcome, reference: dict[str, Any]) -> dict[str, float]:
    """What is told of one run."""
    mean_errors, sd_errors = outcome.errors(reference)
    within = (mean_errors < LIMITS[0]) & (sd_errors < LIMITS[1])
    return {
        "max_mean_error": mean_errors[-1],
        "max_sd_error": sd_errors[-1],
        "good": float(within[-1]),
        "epochs": outcome.epochs[-1],
        "epochs_to_reach": outcome.epochs[np.argmax(within)] if within.any() else math.nan,
        "warned": float(outcome.warned),
        "silent_failure": float(not within[-1] and not outcome.warned),
    }


def rows_of(case: str, method: str, outcomes: dict[str, Outcome], reference: dict[str, Any]) -> list[Row]:
    """The rows of a method: over the seeds, or of the best step size."""
    found = {name: numbers_of(outcome, reference) for name, outcome in outcomes.items()}
    if method == "stein":
        metrics = next(iter(found.values()))
        return [Row.over([each[metric] for each in found.values()], case, method, metric) for metric in metrics]
    ends = {name: each["max_mean_error"] / LIMITS[0] + each["max_sd_error"] / LIMITS[1] for name, each in found.items()}
    best = min(ends, key=lambda name: ends[name])
    chosen = {**found[best], "step_size": float(best)}
    return [Row(case, method, metric, float(value), math.nan, 1) for metric, value in chosen.items()]


def write(path: Path, journal: Journal) -> list[Row]:
    """The rows of all methods whose runs are in the journal, and the references; what else the file has is kept."""
    former = read_results(path)[1:] if path.exists() else ({}, [])
    references: dict[str, Any] = dict(former[0].get("references", {}))
    machines, environments = set(former[0].get("machines", [])), list(former[0].get("environments", []))
    kept: dict[tuple[str, str], list[Row]] = {}
    for row in former[1]:
        kept.setdefault((row.case, row.method), []).append(row)
    for name in BUILD:
        parts = [journal.get(f"{name},{key}", None) for key in reference_keys(name)]
        whole = [part for part in parts if part is not None]
        if len(whole) == len(parts):
            references[name] = whole[0] if name.startswith("logistic") else combine(whole)
    rows: list[Row] = []
    for name in (name for name in BUILD if name in references):
        for case in (f"{name},batch={batch}" for batch in BATCHES):
            for method in METHODS:
                pieces = pieces_of(journal, case, method)
                if pieces:
                    machines |= {piece["machine"] for piece in pieces.values()}
                    outcomes = {key: read_outcome(piece) for key, piece in pieces.items()}
                    rows += rows_of(case, method, outcomes, references[name])
                else:
                    rows += kept.get((case, method), [])
    settings = {
        "limits": LIMITS, "epochs": EPOCHS, "step_sizes": STEP_SIZES, "references": references,
        "environments": environments + [own for own in journal.environments() if own not in environments],
        "machines": sorted(machines), "written": environment(),
    }  # fmt: skip
    write_results(path, "minibatch", settings, rows)
    return rows


def pieces_of(journal: Journal, case: str, method: str) -> dict[str, Any]:
    """The runs of a method on a case: of `stein` the seeds that there are, of a rival all step sizes or none."""
    keys = [str(seed) for seed in range(SEEDS)] if method == "stein" else [f"{s:g}" for s in STEP_SIZES[method]]
    pieces = {key: journal.get(f"{case},{method},{key}", None) for key in keys}
    found = {key: piece for key, piece in pieces.items() if piece is not None}
    return found if method == "stein" or len(found) == len(keys) else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--posteriors", nargs="+", choices=list(BUILD), default=list(BUILD))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--batches", nargs="+", type=int, choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument(
        "--journal", type=Path, default=Path("out/minibatch.json"), help="the runs, from which it goes on"
    )
    parser.add_argument("--keep-references", action="store_true", help="take those that the file of --json has")
    parser.add_argument("--workers", type=int, default=1, help="runs at once")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, which all workers share")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="journals whose runs are added")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which it stops")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        for name, job in json.loads(options.job).items():
            with options.to.open("a") as file:
                file.write(json.dumps([name, run_job(job)]) + "\n")
        return
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(options.journal)
    for path in options.merge:
        journal.merge(path)
    every = jobs_of(options.posteriors, options.batches, options.methods)
    left = {name: job for name, job in every.items() if journal.get(name, None) is None}
    if options.keep_references:
        left = {name: job for name, job in left.items() if job["method"] in METHODS}
    groups: dict[str, dict[str, Job]] = {}
    for name, job in left.items():  # one process for those that share a program, unless they are long
        together = job["method"] in METHODS and (options.gpu or number_of_rows(job["posterior"]) < LONG)
        groups.setdefault(name.rsplit(",", 1)[0] if together else name, {})[name] = job
    with tempfile.TemporaryDirectory() as directory:
        places = {group: Path(directory) / f"{place}.json" for place, group in enumerate(groups)}

        def take(group: str) -> None:
            lines = places[group].read_text().splitlines(keepends=True) if places[group].exists() else []
            for name, result in (json.loads(line) for line in lines if line.endswith("\n")):
                journal.put(name, None, result)
            write(options.json, journal)

        def finish(group: str) -> None:
            take(group)
            print(f"{group} done", flush=True)

        commands = {
            group: ["benchmarks.minibatch.run", "--job", json.dumps(jobs), "--to", os.fspath(places[group])]
            for group, jobs in groups.items()
        }
        expected = {} if options.gpu else {group: sum(map(seconds_of, jobs.values())) for group, jobs in groups.items()}
        settings = ON_A_GPU if options.gpu else ONE_THREAD
        failed = in_processes(commands, options.workers, finish, options.limit, expected, settings)
        for group, why in failed.items():
            take(group)  # the runs before the one that failed
            print(f"{group} failed: {why}", flush=True)
    for row in write(options.json, journal):
        if row.metric in ("max_mean_error", "max_sd_error", "epochs_to_reach"):
            print(f"{row.case:32} {row.method:6} {row.metric:16} {row.mean:.3g}")


if __name__ == "__main__":
    main()
