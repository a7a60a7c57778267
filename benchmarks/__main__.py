"""Benchmarks: `python -m benchmarks NAME [--cases PATTERN ...] [--beside SRC] [--json PATH]`.

Every case and method runs in a process of its own, with the library in this repository's `src`. `--beside` names the
`src` folder of another version, whose processes take turns with these. `--cases` and `--methods` select by patterns of
the shell. With `--json` the rows are written after each pair, and those of others that the file has are kept. Imports
are never timed, and no process uses a compilation cache.
"""

import argparse
import json
import math
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from .bench import (
    BESIDE,
    ROOT,
    Answer,
    Benchmark,
    Process,
    Row,
    combined,
    in_processes,
    read,
    surroundings,
    table,
    write,
)

NAMES = {
    "whole": "whole",
    "whole-gpu": "whole",
    "cpu": "cpu",
    "gpu": "gpu",
    "gpu-tiles": "gpu",
    "scaling": "scaling",
    "spread": "spread",
    "posteriors": "posteriors.run",
    "coverage": "posteriors.coverage",
    "minibatch": "posteriors.minibatch",
    "references": "posteriors.references",
    "verdicts": "verdicts",
    "verdicts-everyday": "verdicts",
}
"""The modules of the benchmarks."""


def module_of(name: str) -> Any:
    return import_module(f"benchmarks.{NAMES[name]}")


def load(name: str) -> Benchmark:
    """The benchmark of this name."""
    return module_of(name).BENCHMARKS[name]


def selected(benchmark: Benchmark, cases: Sequence[str], methods: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs whose case and method match; all match where there are no patterns."""

    def fits(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns or ("*",))

    return [(case, method) for case, method in benchmark.pairs if fits(case, cases) and fits(method, methods)]


def measure_one(benchmark: Benchmark, options: Namespace) -> None:
    """Measure one pair in this process and print a line of JSON."""
    import jax

    jax.config.update("jax_enable_x64", options.precision == "float64")  # this process is the benchmark's own
    warnings.simplefilter("ignore")
    rows, notes = benchmark.run(*options.one, options)
    plain = [[None if value != value else value for value in row] for row in rows]
    print(json.dumps([plain, notes, surroundings()]))


class Record:
    """Rows and settings of a file, written after each process."""

    def __init__(self, name: str, benchmark: Benchmark, options: Namespace):
        self.name, self.benchmark, self.path = name, benchmark, options.json
        former, rows = read(options.json) if options.json else ({}, [])
        self.settings: dict[str, Any] = {**former, **benchmark.settings, "precision": options.precision}
        self.rows: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            self.rows.setdefault((row.case, row.method), []).append(row)

    def add(self, pair: tuple[str, str], answers: Sequence[Answer]) -> None:
        """Take the rows of the processes of one pair and one version."""
        rows = combined([answer.rows for answer in answers])
        for row in rows:
            self.rows[row.case, row.method] = [other for other in rows if other[:2] == row[:2]]
        *notes, about = answers[-1].notes
        self.settings.setdefault("measured", {})[rows[0].method] = about
        self.settings.setdefault("notes", {}).pop(", ".join(pair), None)
        if notes:
            self.settings["notes"][", ".join(pair)] = notes
        if self.path:
            write(self.path, self.name, self.settings, self.all_rows())

    def all_rows(self) -> list[Row]:
        """In the order of the benchmark's pairs, then the summary."""
        cases = {case: place for place, (case, _) in reversed(list(enumerate(self.benchmark.pairs)))}
        methods = {method: place for place, (_, method) in reversed(list(enumerate(self.benchmark.pairs)))}

        def order(key: tuple[str, str]) -> tuple[float, float, str]:
            return cases.get(key[0], math.inf), methods.get(key[1].removesuffix(BESIDE), math.inf), key[1]

        measured = [row for key in sorted(self.rows, key=order) if key[0] in cases for row in self.rows[key]]
        return list({row[:3]: row for row in measured + self.benchmark.summary(measured)}.values())


def in_turn(processes: Sequence[Process], repeats: int, core: int | None) -> list[list[Answer]]:
    """The answers of each process, which take turns."""
    rounds = [[process.measure(core) for process in processes] for _ in range(repeats)]
    return [list(answers) for answers in zip(*rounds, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(NAMES), metavar="NAME", help="without it, they are listed")
    parser.add_argument("--cases", nargs="+", default=[], metavar="PATTERN", help="cases, as patterns of the shell")
    parser.add_argument("--methods", nargs="+", default=[], metavar="PATTERN", help="methods, as patterns of the shell")
    parser.add_argument("--beside", type=Path, metavar="SRC", help="the src folder of another version")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows to PATH")
    parser.add_argument("--repeats", type=int, default=1, help="processes of every pair, in turn; the best counts")
    parser.add_argument("--workers", type=int, default=1, help="pairs at once, each with one thread on a core")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="end a process after so long")
    parser.add_argument("--resume", action="store_true", help="skip the pairs that the file of --json has")
    parser.add_argument("--precision", choices=("float32", "float64"), help="the dtype, in place of the benchmark's")
    parser.add_argument("--seeds", type=int, default=0, help="keys, in place of the benchmark's number")
    parser.add_argument("--list", action="store_true", help="print the cases and methods, and run nothing")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "METHOD"), help="measure one pair in this process")
    options = parser.parse_args()
    if options.name is None:
        for name in NAMES:
            print(f"{name:20} {module_of(name).__doc__.splitlines()[0]}")
        return
    inherited = dict(os.environ)
    if not options.one:
        os.environ["JAX_PLATFORMS"] = "cpu"  # this process leaves a GPU to those that it starts
    benchmark = load(options.name)
    options.precision = options.precision or benchmark.precision
    if options.one:
        measure_one(benchmark, options)
        return
    pairs = selected(benchmark, options.cases, options.methods)
    if options.list:
        print("\n".join(", ".join(pair) for pair in pairs))
        return
    record = Record(options.name, benchmark, options)
    if options.resume:
        pairs = [pair for pair in pairs if pair not in record.rows]
    sources = [ROOT / "src"] + ([options.beside.resolve()] if options.beside else [])

    environment = {**inherited, **benchmark.environment}

    def job(pair: tuple[str, str], core: int | None) -> list[list[Answer]]:
        versions = sources[:1] if pair[1] in benchmark.foreign else sources
        processes = [Process(options.name, *pair, source, options, environment) for source in versions]
        return in_turn(processes, options.repeats, core)

    def finish(pair: tuple[str, str], versions: list[list[Answer]]) -> None:
        for answers in versions:
            record.add(pair, answers)
            numbers = ", ".join(f"{row.metric} {row.mean:.4g}" for row in combined([each.rows for each in answers]))
            print(f"{', '.join(pair)}: {numbers}", flush=True)

    failed = in_processes({pair: partial(job, pair) for pair in pairs}, options.workers, finish)
    print("\n" + table(record.all_rows(), benchmark.columns))
    for pair, reason in failed.items():
        print(f"{', '.join(pair)} failed: {reason}", file=sys.stderr)
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
