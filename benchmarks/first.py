"""The first answer: wall time and compiled programs of a first call, of a second, and of a call with another density.

    python -m benchmarks.first [--cases NAME ...] [--repeats 3] [--beside DIRECTORY] [--json PATH]

Every row comes from processes of its own, contenders in turn. `sample` and `fit` are this library's, `nuts` NumPyro's
with 1000 + 1000 iterations of one chain. `sample-cached` and `fit-cached` find their programs in a compilation cache
that an earlier process has filled. `--beside` names the `src` folder of another version, whose fits take turns with
these as `fit-beside`. Imports are not counted, and neither are keys and data that the caller makes. The file is written
after every case, and rows of other cases in it stay, so that a run can be split.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FITS = ("readme", "vanilla", "mixture", "network")
SAMPLED = ("schools", "logistic", "hierarchy", "banana")
METRICS = ("first_seconds", "second_seconds", "new_density_seconds", "programs")
EVENT = "/jax/core/compile/backend_compile_duration"
ROOT = Path(__file__).parents[1]

Pair = tuple[Any, Any]
"""Two densities of one shape."""


def schools() -> Pair:
    """Eight schools, non-centred."""
    import numpyro
    from numpyro import distributions as dist

    effects = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
    errors = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)

    def make(scale: float) -> Callable[[], None]:
        def model() -> None:
            mean, spread = numpyro.sample("mean", dist.Normal(0, 5)), numpyro.sample("spread", dist.HalfCauchy(scale))
            with numpyro.plate("schools", 8):
                unit = numpyro.sample("unit", dist.Normal(0, 1))
                numpyro.sample("effect", dist.Normal(mean + spread * unit, errors), obs=effects)

        return model

    return make(5.0), make(4.0)


def logistic() -> Pair:
    """Logistic regression on 500 rows of 10 features."""
    import numpyro
    from numpyro import distributions as dist

    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 10)).astype(np.float32)
    chances = 1 / (1 + np.exp(-features @ rng.normal(size=10)))
    labels = (rng.random(500) < chances).astype(np.float32)

    def make(scale: float) -> Callable[[], None]:
        def model() -> None:
            weights = numpyro.sample("weights", dist.Normal(0, scale).expand([10]).to_event(1))
            intercept = numpyro.sample("intercept", dist.Normal(0, scale))
            numpyro.sample("label", dist.Bernoulli(logits=jnp.asarray(features) @ weights + intercept), obs=labels)

        return model

    return make(2.0), make(3.0)


def hierarchy() -> Pair:
    """23 groups of 6 observations with a common mean and spread, non-centred: 25 dimensions."""
    import numpyro
    from numpyro import distributions as dist

    rng = np.random.default_rng(0)
    seen = (rng.normal(size=(23, 6)) + rng.normal(size=(23, 1))).astype(np.float32)

    def make(scale: float) -> Callable[[], None]:
        def model() -> None:
            mean, spread = numpyro.sample("mean", dist.Normal(0, 5)), numpyro.sample("spread", dist.HalfNormal(scale))
            with numpyro.plate("groups", 23):
                unit = numpyro.sample("unit", dist.Normal(0, 1))
            numpyro.sample("seen", dist.Normal((mean + spread * unit)[:, None], 1.0), obs=seen)

        return model

    return make(2.0), make(3.0)


def banana() -> Pair:
    """A bent density of two dimensions, a plain function."""

    def make(bend: float) -> Callable[[Any], Any]:
        def log_density(x: Any) -> Any:
            return -(x[0] ** 2) / 8 - (x[1] - x[0] ** 2 / bend) ** 2 / 0.5

        return log_density

    return make(4.0), make(5.0)


def sharp_banana() -> Pair:
    """That of the README."""

    def make(bend: float) -> Callable[[Any], Any]:
        def log_density(x: Any) -> Any:
            return -(x[0] ** 2) / 8 - (x[1] - x[0] ** 2 / bend) ** 2 / 0.18

        return log_density

    return make(4.0), make(5.0)


def network() -> Pair:
    """A network of 64-32-10 with KFAC and the mixture: two fits of 40 steps, each with a posterior of its own."""
    from benchmarks.networks import prepare

    return prepare("64-32-10", "mixture"), prepare("64-32-10", "mixture")


DENSITIES: dict[str, Callable[[], Pair]] = {
    "schools": schools, "logistic": logistic, "hierarchy": hierarchy, "banana": banana, "readme": sharp_banana,
    "vanilla": sharp_banana, "mixture": sharp_banana, "network": network,
}  # fmt: skip


def call_of(case: str, method: str) -> Callable[[Any, Any], Any]:
    """What is timed, a function of a key and a density."""
    if method == "nuts":
        return run_nuts
    import steinkern as sk

    _ = sk.fit, sk.sample  # names are imported on first use
    if case == "network":
        return lambda key, fit: fit(40)
    if method == "sample":
        start = np.zeros(2) if case == "banana" else None
        return lambda key, density: sk.sample(key, density, start).points
    samplers = {
        "readme": lambda: sk.matrix_svgd("mixture", sk.Hessian(), optimiser=0.15),
        "vanilla": sk.svgd,
        "mixture": lambda: sk.matrix_svgd("mixture", sk.Hessian()),
    }
    sampler, particles = samplers[case](), jax.random.normal(jax.random.key(1), (50, 2))
    options: dict[str, Any] = {"num_steps": 700, "record_particles": True} if case == "readme" else {"num_steps": 300}
    return lambda key, density: sk.fit(key, density, sampler, particles, progress=False, **options).points


def run_nuts(key: Any, density: Any) -> Any:
    """1000 + 1000 iterations of one chain; a plain function starts from zeros in two dimensions."""
    from numpyro.infer import MCMC, NUTS

    plain = density.__name__ == "log_density"
    kernel = NUTS(potential_fn=lambda x: -density(x)) if plain else NUTS(density)
    chain = MCMC(kernel, num_warmup=1000, num_samples=1000, progress_bar=False)
    chain.run(key, init_params=jnp.zeros(2) if plain else None)
    return chain.get_samples()


def one(case: str, method: str) -> dict[str, float]:
    """The numbers of one contender, for a process that does nothing else."""
    compiled: list[str] = []

    def listen(event: str, seconds: float, **about: Any) -> None:
        if event == EVENT:
            compiled.append(str(about.get("fun_name")))

    warnings.simplefilter("ignore")
    call, (first, other) = call_of(case, method), DENSITIES[case]()
    keys = [jax.random.key(seed) for seed in range(3)]
    jax.monitoring.register_event_duration_secs_listener(listen)
    found: dict[str, float] = {}
    for metric, key, density in zip(METRICS, keys, (first, first, other), strict=False):
        start = time.perf_counter()
        jax.block_until_ready(call(key, density))
        found[metric] = time.perf_counter() - start
        found.setdefault("programs", len(compiled))
    return found


def contenders(case: str, beside: Path | None, cache: str) -> list[tuple[str, dict[str, str]]]:
    """The methods of a case by name, and the environments of their processes."""

    def in_environment(source: Path, switch: str) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]), "STEINKERN_CACHE": switch}

    own = ROOT / "src"
    if case not in FITS:
        return [
            ("sample", in_environment(own, "0")),
            ("sample-cached", in_environment(own, cache)),
            ("nuts", in_environment(own, "0")),
        ]
    found = [("fit", in_environment(own, "0")), ("fit-cached", in_environment(own, cache))]
    return found + ([("fit-beside", in_environment(beside, "0"))] if beside else [])


def measure(case: str, method: str, environment: dict[str, str]) -> dict[str, float]:
    """The numbers of one contender, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.first", "--one", case, method.partition("-")[0]]
    around = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    run = subprocess.run(command, env={**around, **environment}, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{method} on {case} failed:\n{run.stderr}")
    return json.loads(run.stdout.splitlines()[-1])


def markdown(rows: list[Any]) -> str:
    """A line for each case and method; the last columns are over NUTS' first call, or over that of another version."""
    found = {(row.case, row.method, row.metric): row.mean for row in rows}
    lines = ["| case | method | first call | second | new density | programs | first, over | new density, over |"]
    lines.append("|---" * 8 + "|")
    for case, method in dict.fromkeys((row.case, row.method) for row in rows):
        first, second, new, programs = (found[case, method, metric] for metric in METRICS)
        other = found.get((case, "nuts", "first_seconds"), found.get((case, "fit-beside", "first_seconds")))
        over = f"{first / other:.2f} | {new / other:.2f}" if other else " | "
        lines.append(f"| {case} | {method} | {first:.2f} s | {second:.2f} s | {new:.2f} s | {programs:.0f} | {over} |")
    return "\n".join(lines) + "\n"


def commit_of(source: Path) -> str:
    """The commit of another version's checkout."""
    command = ["git", "-C", str(source), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(DENSITIES), default=[*SAMPLED, *FITS])
    parser.add_argument("--repeats", type=int, default=3, help="processes of every contender; the best counts")
    parser.add_argument("--beside", type=Path, metavar="DIRECTORY", help="the src folder of another version")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the numbers to PATH, a table beside it")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "METHOD"), help="one contender in this process, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*options.one)))
        return
    from steinkern.core.files import environment
    from steinkern.experiments.tables import Row, aligned, read_results, write_results

    told = {
        **environment(),
        "device": jax.devices()[0].device_kind,
        "processors": os.cpu_count(),
        "seconds": "the best of the processes",
        "nuts": "NumPyro, 1000 + 1000 iterations, one chain",
        "beside": "none" if options.beside is None else commit_of(options.beside),
    }
    earlier: list[Row] = []
    if options.json and options.json.exists():
        earlier = [row for row in read_results(options.json)[2] if row.case not in options.cases]
    rows: list[Row] = []
    for case in options.cases:
        with tempfile.TemporaryDirectory() as cache:
            taking_turns = contenders(case, options.beside, cache)
            found: dict[str, list[dict[str, float]]] = {name: [] for name, _ in taking_turns}
            for name, around in taking_turns:
                if name.endswith("-cached"):
                    measure(case, name, around)  # fills the cache
            for _ in range(options.repeats):
                for name, around in taking_turns:
                    found[name].append(measure(case, name, around))
        for name, numbers in found.items():
            for metric in METRICS:
                values = np.asarray([number[metric] for number in numbers])
                spread = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
                rows.append(Row(case, name, metric, float(values.min()), spread, len(values)))
        print(aligned(markdown(rows)), flush=True)
        if options.json:
            places = list(DENSITIES)
            whole = sorted([*earlier, *rows], key=lambda row: places.index(row.case))
            write_results(options.json, "first", told, whole)
            options.json.with_suffix(".md").write_text(markdown(whole))


if __name__ == "__main__":
    main()
