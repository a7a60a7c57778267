"""What all benchmarks share: one record, one timer of whole calls, and processes that take turns.

A benchmark is a list of cases and methods, and a function that measures one of them in a process of its own. The same
function runs with the `src` of another version, whose rows have the suffix "-beside".
"""

import json
import math
import os
import platform
import queue
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BESIDE = "-beside"
PACKAGES = ("jax", "jaxlib", "numpy", "optax", "equinox", "numpyro", "blackjax", "pymc", "msvgd", "simpleSVGD")
ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # where the caller's JAX_PLATFORMS says cuda, they share a GPU
    "PJRT_NPROC": "8",  # with one thread, programs of many small factorisations can wait for each other forever
}
"""The environment of processes that have a core each."""


class Row(NamedTuple):
    """The mean of a metric over trials, or its best value where times are measured, and its standard error."""

    case: str
    method: str
    metric: str
    mean: float
    stderr: float = math.nan
    trials: int = 1

    @classmethod
    def over(cls, values: Sequence[float], case: str, method: str, metric: str) -> "Row":
        """The row of values, one for each trial."""
        return cls(case, method, metric, float(np.mean(values)), _standard_error(values), len(values))


class Answer(NamedTuple):
    """What a process reports: its rows, and what is to be stored beside them."""

    rows: list[Row]
    notes: Sequence[Any] = ()


@dataclass(frozen=True)
class Benchmark:
    """What is measured.

    Args:
        pairs: cases and methods, in the order of the table.
        run: measures one pair; the last argument holds the options of the command.
        summary: rows made from all others.
        columns: the metrics that are printed at the end, all where none are named.
        foreign: methods without this library, which have one version.
        settings: what the numbers depend on.
        precision: the dtype of a run without `--precision`.
        environment: variables of every process.
    """

    pairs: Sequence[tuple[str, str]]
    run: Callable[[str, str, Namespace], Answer]
    summary: Callable[[list[Row]], list[Row]] = lambda rows: []
    columns: Sequence[str] = ()
    foreign: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "float32"
    environment: Mapping[str, str] = field(default_factory=dict)


def seconds_of(call: Callable[[], Any]) -> float:
    """The wall time of a whole call, until its arrays are there."""
    import jax

    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def best_of(*calls: Callable[[], Any], seconds: float = 2.0, most: int = 5) -> list[float]:
    """The best times of calls that take turns: one round at least, and none begun after so many seconds."""
    rounds: list[list[float]] = []
    while not rounds or (len(rounds) < most and np.sum(rounds) < seconds):
        rounds.append([seconds_of(call) for call in calls])
    return [min(times) for times in zip(*rounds, strict=True)]


def gigabytes_of(compiled: Any) -> float:
    """What a compiled program needs on a device: arguments, results and everything between, by XLA's account."""
    memory = compiled.memory_analysis()
    return sum(getattr(memory, f"{part}_size_in_bytes") for part in ("argument", "output", "temp")) / 1e9


def relative_error(answer: np.ndarray, truth: np.ndarray) -> float:
    """The largest difference over the largest entry."""
    return float(np.max(np.abs(answer - truth)) / np.max(np.abs(truth)))


def combined(answers: Sequence[list[Row]]) -> list[Row]:
    """The rows of several processes: the best value, the standard error of single ones, and how many there are."""
    if len(answers) == 1:
        return list(answers[0])
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in (row for rows in answers for row in rows):
        values.setdefault(row[:3], []).append(row.mean)
    return [Row(*key, min(each), _standard_error(each), len(each)) for key, each in values.items()]


def by_metric(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, float]]:
    """Means by case and method, then by metric."""
    table: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        table.setdefault((row.case, row.method), {})[row.metric] = row.mean
    return table


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A line a case and method, a column a metric; all metrics where none are named."""
    metrics = list(columns or dict.fromkeys(row.metric for row in rows))
    lines = [f"| case | method | {' | '.join(metrics)} |", "|---" * (2 + len(metrics)) + "|"]
    for (case, method), numbers in by_metric(rows).items():
        cells = [f"{numbers[metric]:.4g}" if metric in numbers else "" for metric in metrics]
        if any(cells):
            lines.append(f"| {case} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """The settings and rows of a file of results; nothing where there is none."""
    if not path.exists():
        return {}, []
    content = json.loads(path.read_text(encoding="utf-8"))
    numbers = [{key: math.nan if value is None else value for key, value in line.items()} for line in content["rows"]]
    return content["settings"], [Row(*(line[name] for name in Row._fields)) for line in numbers]


def write(path: Path, name: str, settings: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """A file of results."""
    lines = [{key: None if value != value else value for key, value in row._asdict().items()} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"experiment": name, "settings": dict(settings), "rows": lines}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)  # another process may be reading it


def surroundings() -> dict[str, Any]:
    """The date, the versions and the machine; for the process that has measured."""
    import jax

    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    device = jax.devices()[0]
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {
        "date": datetime.now(UTC).date().isoformat(),
        **versions,
        "machine": f"{model}, {os.cpu_count()} cores" + ("" if device.platform == "cpu" else f", {device.device_kind}"),
        "commit": _commit(),
    }


class Process(NamedTuple):
    """One pair of a benchmark, to be measured with the library of one `src`."""

    name: str
    case: str
    method: str
    source: Path
    options: Namespace
    environment: Mapping[str, str]

    def measure(self, core: int | None = None) -> Answer:
        """Run it, with one thread on a core of its own where one is given; RuntimeError where it fails."""
        taskset = shutil.which("taskset")
        pin = [taskset, "-c", str(core)] if taskset and core is not None else []
        options = self.options
        command = [
            *pin, sys.executable, "-m", "benchmarks", self.name, "--one", self.case, self.method,
            "--precision", options.precision, "--seeds", str(options.seeds),
        ]  # fmt: skip
        command += ["--json", str(options.json.resolve())] if options.json else []
        path = os.pathsep.join([str(self.source), str(ROOT), self.environment.get("PYTHONPATH", "")])
        variables = {**({} if core is None else ONE_THREAD), **self.environment, "PYTHONPATH": path}
        variables.pop("JAX_COMPILATION_CACHE_DIR", None)
        try:
            ended = subprocess.run(
                command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=options.limit
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"ended after {options.limit:.0f} s") from error
        if ended.returncode:
            raise RuntimeError(ended.stderr.strip()[-1500:])
        rows, notes, about = json.loads(ended.stdout.splitlines()[-1])
        suffix = "" if self.source == ROOT / "src" else BESIDE
        made = [Row(*(math.nan if value is None else value for value in row)) for row in rows]
        made = [row._replace(method=f"{row.method}{suffix}") for row in made]
        return Answer(made, [*notes, about])


def in_processes(
    jobs: Mapping[Any, Callable[[int | None], Any]], workers: int, finish: Callable[[Any, Any], None]
) -> dict[Any, str]:
    """Run jobs, some at once, in their order; one worker alone has all cores, of several each has one.

    `finish` is called with the name and the answer of a job that has ended well, one at a time. Returned are the names
    of the others, with what went wrong.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for number in range(workers):
        free.put(None if workers == 1 else cores[number % len(cores)])

    def run(job: Callable[[int | None], Any]) -> Any:
        core = free.get()
        try:
            return job(core)
        finally:
            free.put(core)

    failed: dict[Any, str] = {}
    with ThreadPoolExecutor(workers) as pool:
        names = {pool.submit(run, job): name for name, job in jobs.items()}
        for future in as_completed(names):
            error = future.exception()
            if isinstance(error, RuntimeError):
                failed[names[future]] = str(error)
            else:
                finish(names[future], future.result())
    return failed


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else math.nan


def _commit() -> str:
    """The commit of the library that is imported, "unknown" outside a repository."""
    import steinkern

    folder = Path(steinkern.__file__).parent
    git = shutil.which("git")
    if git is None:
        return "unknown"
    run = subprocess.run(
        [git, "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return run.stdout.strip() or "unknown"
