"""Seconds of the first and the second call of the untuned methods, on a few of the everyday posteriors.

    python -m benchmarks.posteriors.times [--targets NAME ...] [--methods NAME ...]

Methods run in turn, each in a process of its own with all cores: the first call compiles, the second has another seed.
NUTS has as many gradients as `ours` used in the file of `run`. Rows of other targets that the file of `--json` has are
kept. Use an idle machine; on a busy one seconds of the processor tell more.
"""

import argparse
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from steinkern.core.files import environment
from steinkern.experiments.tables import Row, read_results, write_results

from ..jobs import machine
from .methods import NAMES
from .references import read_references
from .run import RESULTS as COUNTS
from .run import Bench
from .targets import TARGETS

RESULTS = COUNTS.with_name("posteriors-times.json")
FEW = ("logistic-raw", "schools-noncentred", "counties", "gaussian-100", "ar2", "logistic-growth")
METHODS = ("ours", "stein", "nuts", "svgd")
METRICS = ("first_seconds", "second_seconds", "first_processor_seconds", "second_processor_seconds")


def seconds(target: str, method: str, counts: Bench) -> list[Row]:
    """Two calls in one process."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.json"
        known = {pair: rows for pair, rows in counts.rows.items() if pair == (target, "ours")}
        if known and method == "nuts":  # which takes its budget from them
            Bench(path, counts.references, known).write()
        own = ["--targets", target, "--methods", method, "--seeds", "2", "--json", str(path)]
        subprocess.run(
            [sys.executable, "-m", "benchmarks.posteriors.run", *own], check=True, capture_output=True, text=True
        )
        _, _, rows = read_results(path)
    return [row for row in rows if (row.case, row.method) == (target, method) and row.metric in METRICS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(FEW), metavar="NAME")
    parser.add_argument("--methods", nargs="+", choices=NAMES, default=list(METHODS))
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    counts = Bench(COUNTS, read_references())
    counts.load()
    found = {}
    if options.json.exists():
        found = {(row.case, row.method, row.metric): row for row in read_results(options.json)[2]}
    for target in options.targets:
        for method in options.methods:
            for row in seconds(target, method, counts):
                found[target, method, row.metric] = row
            told = [found.get((target, method, metric)) for metric in METRICS]
            first, second, *work = (math.nan if row is None else row.mean for row in told)
            print(
                f"{target:22} {method:10} first {first:.2f} s, second {second:.2f} s; of the processor "
                f"{work[0]:.2f} and {work[1]:.2f} s",
                flush=True,
            )
            settings = {"environment": environment(), "machine": machine()}
            write_results(options.json, "posteriors-times", settings, found.values())


if __name__ == "__main__":
    main()
