"""Networks: the time of a step and the memory of deep ensembles, SVGD and matrix-SVGD with KFAC.

    python -m benchmarks.networks [--cases NAME ...] [--rounds 10] [--at-once] [--beside DIRECTORY] [--json PATH]

10 particles, batches of 128, random data. The mixture has an anchor at every particle. Curvature is measured every 5
steps and factorised every 10, as in the studies; the methods "-drawn" measure it by one label drawn from the model,
those "-quarter" exactly on a quarter of the batch, those "-least" by one label on a quarter of the batch.
Each contender has a process of its own, and the processes take turns round by round. A step is timed by a callback,
which the library calls after the first third of a fit and at its end: the checks at the end of a fit, which take
seconds, do not count. The best round is reported. Rows of other cases that the file of `--json` has are kept.
`--beside` names the `src` folder of another version, whose processes take turns with these. With `--at-once` all
processes compile at the same time, and first calls are not reported.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PARTICLES, BATCH, ROWS = 10, 128, 640
VARIANTS: dict[str, dict[str, int]] = {
    "": {}, "drawn": {"draws": 1}, "quarter": {"examples": BATCH // 4}, "least": {"draws": 1, "examples": BATCH // 4}
}  # fmt: skip
"""Ways to measure curvature, as arguments of `KFAC`."""
METHODS = ("ensemble", "vanilla", *(f"{name}-{how}".strip("-") for how in VARIANTS for name in ("average", "mixture")))
NETWORKS = {"64-32-10": 40, "784-400-400-10": 100, "lenet": 100}
"""Cases, and the steps of a third of a fit of the mixture."""
LONGER = {"cpu": {"ensemble": 10, "vanilla": 10, "average": 3}, "gpu": {"ensemble": 3, "vanilla": 3, "average": 2}}
"""By device, quicker methods than the mixture take so many times as many steps."""
ON_A_CPU = ("64-32-10",)
KFAC = {"damping": 0.1, "decay": 0.95, "refresh_every": 10, "measure_every": 5}
MIXTURE = {"temperature": "median", "weighting": "no_determinant"}


def network(case: str, key: Any) -> tuple[Any, Callable[[Any, Any], Any], tuple[int, ...]]:
    """The layers, a function of them and one example's inputs, and the shape of these inputs."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import jax.random as jr

    if case != "lenet":
        sizes = tuple(map(int, case.split("-")))
        pairs = zip(sizes[:-1], sizes[1:], jr.split(key, len(sizes) - 1), strict=True)

        def dense(layers: Any, x: Any) -> Any:
            for layer in layers[:-1]:
                x = jnp.tanh(layer(x))
            return layers[-1](x)

        return [eqx.nn.Linear(a, b, key=own) for a, b, own in pairs], dense, (sizes[0],)
    keys = jr.split(key, 5)
    layers = [
        eqx.nn.Conv2d(1, 6, 5, padding=2, key=keys[0]), eqx.nn.Conv2d(6, 16, 5, key=keys[1]),
        eqx.nn.Linear(400, 120, key=keys[2]), eqx.nn.Linear(120, 84, key=keys[3]), eqx.nn.Linear(84, 10, key=keys[4]),
    ]  # fmt: skip
    halved = eqx.nn.AvgPool2d(2, 2)

    def convolutional(layers: Any, x: Any) -> Any:
        first, second, *dense, last = layers
        x = halved(jax.nn.relu(second(halved(jax.nn.relu(first(x)))))).reshape(-1)
        for layer in dense:
            x = jax.nn.relu(layer(x))
        return last(x)

    return layers, convolutional, (1, 28, 28)


def prepare(case: str, method: str) -> Callable[..., Any]:
    """A fit of so many steps; inside a child process, with whichever version it imports."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import jax.random as jr

    import steinkern as sk

    _, apply, shape = network(case, jr.key(0))
    layers = eqx.filter_vmap(lambda key: network(case, key)[0])(jr.split(jr.key(0), PARTICLES))
    start, rest = eqx.partition(layers, eqx.is_inexact_array)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(ROWS, *shape)).astype(np.float32), rng.integers(0, 10, ROWS)

    def model(parameters: Any, example: Any) -> Any:
        return apply(eqx.combine(parameters, rest), example[0])

    posterior = sk.Posterior(
        lambda parameters: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters)),
        lambda parameters, example: sk.Categorical().log_prob(model(parameters, example), example[1]),
        num_data=ROWS,
    )
    name, _, variant = method.partition("-")
    curvature: Any = sk.KFAC(model, sk.Categorical(), **VARIANTS[variant])
    mixed = {**MIXTURE, "temperature": sk.Median()}
    sampler: Any = {
        "ensemble": lambda: sk.ensemble(1e-3),
        "vanilla": lambda: sk.svgd(optimiser=1e-3),
        "average": lambda: sk.matrix_svgd("average", curvature, optimiser=1e-3, **KFAC),
        "mixture": lambda: sk.matrix_svgd("mixture", curvature, optimiser=1e-3, **KFAC, **mixed),
    }[name]()

    def run(steps: int, **more: Any) -> Any:
        options: dict[str, Any] = {"num_steps": steps, "batch_size": BATCH, "record_every": steps, "progress": False}
        options |= more
        return jax.block_until_ready(sk.fit(jr.key(1), posterior, sampler, start, data, **options).points)

    return run


def child(case: str, method: str) -> None:
    """Answer every line by a line of JSON: first the seconds of a first fit, then those of a step."""
    import warnings

    import jax

    warnings.simplefilter("ignore")
    jax.config.update("jax_default_matmul_precision", "highest")  # no TF32
    run, longer = prepare(case, method), LONGER[jax.default_backend()]
    steps = NETWORKS[case] * longer.get(method.partition("-")[0], 1)

    def first() -> float:
        start = time.perf_counter()
        run(steps)
        return time.perf_counter() - start

    def step() -> float:
        stamps: list[tuple[int, float]] = []
        run(3 * steps, record_every=steps, callback=lambda done, *_: stamps.append((done, time.perf_counter())))
        (early, start), *_, (late, end) = stamps
        return (end - start) / (late - early)

    for number, _ in enumerate(sys.stdin):
        device = jax.devices()[0]
        answer = {"first": first(), "device": device.device_kind} if number == 0 else {"step": step()}
        print(json.dumps(answer | _memory(device)), flush=True)


def _memory(device: Any) -> dict[str, float]:
    """The most bytes in use so far, where the device says so."""
    stats = device.memory_stats() or {}
    return {"peak": float(stats["peak_bytes_in_use"])} if "peak_bytes_in_use" in stats else {}


class Contender:
    """A process that runs one case by one method of one version."""

    def __init__(self, source: Path, case: str, method: str):
        settings = {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        command = [sys.executable, "-m", "benchmarks.networks", "--child", case, method]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, env={**os.environ, **settings}, cwd=ROOT, **pipes)

    def ask(self) -> dict[str, Any]:
        self.begin()
        return self.answer()

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a contender failed:\n{self.process.communicate()[1][-3000:]}")
        return json.loads(line)

    def close(self) -> None:
        self.process.communicate()


def start(case: str, sources: dict[str, Path]) -> dict[str, Contender]:
    """The contenders of a case by name."""
    return {
        f"{method}{suffix}": Contender(source, case, method)
        for suffix, source in sources.items()
        for method in METHODS
        if not (suffix and "-" in method)  # the earlier version may not have these variants
    }


def measure(
    case: str, contenders: dict[str, Contender], first: dict[str, dict[str, Any]], rounds: int, calls: bool
) -> tuple[list[Any], str]:
    """The rows of a case, and the device; `first` are the first answers, `calls` says whether to report them."""
    from steinkern.experiments.tables import Row

    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            found[name].append(contender.ask())
    rows = []
    for name, answers in found.items():
        contenders[name].close()
        each = np.array([answer["step"] for answer in answers])
        error = float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else float("nan")
        rows.append(Row(case, name, "step_seconds", float(each.min()), error, len(each)))
        if calls:
            rows.append(Row(case, name, "first_seconds", first[name]["first"], float("nan"), 1))
        if "peak" in answers[-1]:
            rows.append(Row(case, name, "peak_bytes", answers[-1]["peak"], float("nan"), 1))
    return rows, str(next(iter(first.values()))["device"])


def markdown(rows: list[Any]) -> str:
    """A line for each case and method; the ratio is to the ensemble of the same version."""
    found = {(row.case, row.method, row.metric): row.mean for row in rows}
    lines = ["| network | method | a step | over the ensemble's | first call | most memory |", "|---" * 6 + "|"]
    for case, method in dict.fromkeys((row.case, row.method) for row in rows):
        step, first = found[case, method, "step_seconds"], found.get((case, method, "first_seconds"))
        beside = "-beside" if method.endswith("-beside") else ""
        ratio = step / found[case, f"ensemble{beside}", "step_seconds"]
        peak = found.get((case, method, "peak_bytes"))
        memory = "" if peak is None else f"{peak / 1e6:.0f} MB"
        call = "" if first is None else f"{first:.1f} s"
        lines.append(f"| {case} | {method} | {1e3 * step:.2f} ms | {ratio:.1f} | {call} | {memory} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(NETWORKS), help="on a CPU the smallest network by default")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--at-once", action="store_true", help="compile at the same time; no first calls")
    parser.add_argument("--beside", type=Path, metavar="DIRECTORY", help="the src folder of another version")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the numbers to PATH, a table beside it")
    parser.add_argument("--child", nargs=2, metavar=("CASE", "METHOD"), help="one contender, asked by lines")
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    import jax

    from steinkern.core.files import environment
    from steinkern.experiments.tables import aligned, read_results, write_results

    cases = options.cases or (ON_A_CPU if jax.default_backend() == "cpu" else list(NETWORKS))
    sources = {"": ROOT / "src"} | ({"-beside": options.beside.resolve()} if options.beside else {})
    rows: list[Any] = []
    if options.json and options.json.exists():
        rows = [row for row in read_results(options.json)[2] if row.case not in cases]
    device = ""
    # The earlier version may know fewer layers.
    sources_of = {case: {"": sources[""]} if case == "lenet" else sources for case in cases}
    started: dict[str, dict[str, Contender]] = {}
    first: dict[str, dict[str, dict[str, Any]]] = {}
    if options.at_once:
        started = {case: start(case, sources_of[case]) for case in cases}
        for contender in (own for contenders in started.values() for own in contenders.values()):
            contender.begin()
        first = {case: {name: own.answer() for name, own in contenders.items()} for case, contenders in started.items()}
    for case in cases:
        contenders = started[case] if options.at_once else start(case, sources_of[case])
        answers = first[case] if options.at_once else {name: own.ask() for name, own in contenders.items()}
        more, device = measure(case, contenders, answers, options.rounds, not options.at_once)
        rows += more
        print(aligned(markdown(rows)), flush=True)
        if options.json:
            told = {
                **environment(),
                "device": device,
                "processors": os.cpu_count(),
                "dtype": "float32, no TF32",
                "particles": PARTICLES,
                "batch": BATCH,
                "kfac": KFAC,
                "mixture": MIXTURE,
                "seconds": "a step: between two callbacks of a fit, of the best round",
            }
            write_results(options.json, "networks", told, rows)
            options.json.with_suffix(".md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
