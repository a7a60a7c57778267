"""Faults injected, survived, lost: kills, damaged files, full disks, bad numbers.

    python benchmarks/faults.py [--quick] [--json PATH]

A fault is survived where the run ends bit for bit as one without it, or, where there is no such run (the target is not
finite, the step is absurd), where it ends finite with the fault counted, or stops and says why. Anything else is lost.
"""

import argparse
import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import steinkern as sk
from steinkern.core.files import environment
from steinkern.experiments.tables import Row, write_results

DATA = np.linspace(-1.0, 1.0, 40)
LONG, SHORT = 2000, 40


def log_prior(x):
    return -0.5 * jnp.sum(x**2)


def log_likelihood(x, row):
    return -0.5 * (row - jnp.sum(jnp.sin(x))) ** 2


TARGET = sk.Posterior(log_prior, log_likelihood, len(DATA))
SAMPLER = sk.matrix_svgd("average", sk.Hessian(diagonal=True), optimiser=optax.adam(0.01), decay=0.9, refresh_every=3)


def run(directory: Path | None, dtype: str, num_steps: int, **options: Any) -> sk.Result:
    """Minibatches, a momentum, a running average of curvature: every kind of state that a run can have."""
    particles = np.random.default_rng(0).normal(size=(5, 2)).astype(dtype)
    saving = {} if directory is None else {"checkpoint": directory, "every": 10}
    return sk.fit(
        jr.key(3), TARGET, SAMPLER, particles, DATA.astype(dtype),
        num_steps=num_steps, batch_size=4, record_every=7, **saving, **options,
    )  # fmt: skip


def end_of(result: sk.Result) -> list[np.ndarray]:
    history = result.history
    columns = [history.step, history.velocity_norm, history.step_size, history.stein_ratio]
    return [np.asarray(leaf) for leaf in [*jax.tree.leaves(result.loop), *columns]]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


# Kills.


def child(directory: Path, dtype: str) -> None:
    """The run that is killed, on a slow disk, so that a kill may meet a write."""
    sync = os.fsync

    def slow(handle: int) -> None:
        time.sleep(0.005)
        sync(handle)

    os.fsync = slow
    np.savez(directory / "writing.npz", *end_of(run(directory / "checkpoints", dtype, LONG)))
    (directory / "writing.npz").rename(directory / "end.npz")


def kills(dtype: str, number: int, writing: bool, seed: int) -> Iterator[bool]:
    """One run, killed so many times; every kill is survived if the end is that of a run without them."""
    steps = np.sort(np.random.default_rng(seed).integers(0, LONG - 200, number))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        met = 0
        for step in [*steps, None]:
            command = [sys.executable, __file__, "--child", name, dtype]
            with subprocess.Popen(command) as process:
                while process.poll() is None:
                    found = [int(path.stem[5:]) for path in directory.glob("checkpoints/step-*.ckpt")]
                    due = step is not None and max(found, default=0) >= step
                    if due and (not writing or any(directory.glob("checkpoints/*.partial"))):
                        process.send_signal(signal.SIGKILL)
                        met += 1
                        break
                    time.sleep(0.0005)
        whole = end_of(run(None, dtype, LONG))
        with np.load(directory / "end.npz", allow_pickle=False) as end:
            survived = same([end[name] for name in end.files], whole)
    yield from [survived] * met


# Files.


@contextmanager
def finished_run() -> Iterator[tuple[Path, list[np.ndarray]]]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name), end_of(run(Path(name), "float64", SHORT))


def harmed(number: int, harm: Callable[[bytes, np.random.Generator], bytes], newest_only: bool) -> Iterator[bool]:
    """Damage to the newest checkpoint, or to both: it is warned of, and the run ends as it should."""
    generator = np.random.default_rng(0)
    with finished_run() as (directory, whole):
        contents = {path: path.read_bytes() for path in directory.iterdir()}
        for _ in range(number):
            for old in directory.iterdir():
                old.unlink()
            for path, content in contents.items():
                damaged = path == max(contents) or not newest_only
                path.write_bytes(harm(content, generator) if damaged else content)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                again = end_of(run(directory, "float64", SHORT))
            yield same(again, whole) and any("truncated or altered" in str(one.message) for one in seen)


def altered(content: bytes, generator: np.random.Generator) -> bytes:
    place = int(generator.integers(len(content)))
    return content[:place] + bytes([content[place] ^ int(generator.integers(1, 256))]) + content[place + 1 :]


def truncated(content: bytes, generator: np.random.Generator) -> bytes:
    return content[: int(generator.integers(len(content)))]


def full_disks(number: int) -> Iterator[bool]:
    """No space left at the k-th write: a clear error, and the same call goes on once there is room."""
    whole = end_of(run(None, "float64", SHORT))
    sync = os.fsync
    for k in range(number):
        calls = iter(range(1000))

        def full(handle: int, k: int = k, calls: Iterator[int] = calls) -> None:
            if next(calls) >= k:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(handle)

        with tempfile.TemporaryDirectory() as name:
            os.fsync = full
            try:
                run(Path(name), "float64", SHORT)
                said = k > 7  # all writes, of file and directory, came before
            except OSError as error:
                said = "No space left" in str(error)
            finally:
                os.fsync = sync
            yield said and same(end_of(run(Path(name), "float64", SHORT)), whole)


def ctrl_c(number: int) -> Iterator[bool]:
    whole = end_of(run(None, "float64", SHORT))
    for k in range(1, number + 1):

        def press(step: int, state: Any, info: sk.Info, k: int = k) -> None:
            if step == 7 * (1 + k % 5):
                os.kill(os.getpid(), signal.SIGINT)

        with tempfile.TemporaryDirectory() as name:
            stopped = run(Path(name), "float64", SHORT, callback=press)
            yield stopped.status is sk.Status.STOPPED and same(end_of(run(Path(name), "float64", SHORT)), whole)


# Numbers.


def fit(target: Any, sampler: sk.AbstractSampler, start: np.ndarray, num_steps: int, **options: Any) -> sk.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sk.SteinWarning)
        return sk.fit(jr.key(0), target, sampler, start, num_steps=num_steps, throw=False, **options)


def draws(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(12, 2))


def walled(x):
    return -0.5 * jnp.sum((x - 1.0) ** 2) + 0.0 * jnp.sqrt(2.2 - x[0])


def walls(number: int) -> Iterator[bool]:
    for seed in range(number):
        result = fit(walled, sk.sgld(0.02), np.minimum(draws(seed), 2.0), 200)
        inside = bool(np.all(np.asarray(result.points)[:, 0] < 2.2))
        yield inside and result.status is sk.Status.FINISHED and result.faults.moved_back > 0


def saddle(x):
    return -0.5 * x[0] ** 2 + 0.05 * x[1] ** 2 - 0.01 * x[1] ** 4


def saddles(number: int) -> Iterator[bool]:
    sampler = sk.matrix_svgd("average", sk.Hessian(repair=None), sk.RBF(1.0), optax.sgd(0.3))
    for seed in range(number):
        result = fit(saddle, sampler, 0.2 * draws(seed), 50)
        yield result.status is sk.Status.FINISHED and result.faults.damped > 0


def needle(x):
    return -0.5 * jnp.sum(x**2) + 1e8 * jnp.exp(-0.5 * jnp.sum((x - 3.0) ** 2) / 1e-4)


def needles(number: int) -> Iterator[bool]:
    sampler = sk.svgd(sk.RBF(0.01), optax.sgd(0.1))
    for seed in range(number):
        start = draws(seed)
        start[0] = [3.01, 3.0]
        result = fit(needle, sampler, start, 600)
        near = bool(np.all(np.abs(np.asarray(result.points)) < 10))
        yield near and result.status is sk.Status.FINISHED and result.faults.shortened > 0


def explosions(number: int) -> Iterator[bool]:
    sampler = sk.svgd(sk.RBF(1.0), optax.sgd(1.0))
    for seed in range(number):
        result = fit(lambda x: -5e4 * jnp.sum(x**2), sampler, draws(seed), 50)
        said = result.status is sk.Status.DIVERGED and "Likely causes" in result.message
        yield said and bool(np.all(np.isfinite(result.points)))


def rows_of(case: str, outcomes: Iterator[bool]) -> list[Row]:
    began = time.perf_counter()
    survived = list(outcomes)
    counts = {"injected": len(survived), "survived": sum(survived), "lost": len(survived) - sum(survived)}
    print(f"{case:<44}" + "".join(f"{count:>10}" for count in counts.values()), flush=True)
    seconds = time.perf_counter() - began
    rows = [Row(case, "fit", metric, float(count), float("nan"), len(survived)) for metric, count in counts.items()]
    return [*rows, Row(case, "fit", "seconds", seconds, float("nan"), len(survived))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the faults")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the counts to PATH")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process begun in the background ignores Ctrl-C
    if options.child:
        child(Path(options.child[0]), options.child[1])
        return
    share = 4 if options.quick else 1
    print(f"{'fault':<44}{'injected':>10}{'survived':>10}{'lost':>10}")
    rows = []
    for seed, (dtype, writing) in enumerate([(d, w) for d in ("float32", "float64") for w in (False, True)]):
        where = "while a checkpoint is written" if writing else "anywhere"
        rows += rows_of(f"SIGKILL {where}, {dtype}", kills(dtype, 12 // share, writing, seed))
    rows += rows_of("newest checkpoint altered in one byte", harmed(40 // share, altered, True))
    rows += rows_of("newest checkpoint truncated", harmed(40 // share, truncated, True))
    rows += rows_of("both checkpoints altered", harmed(8 // share, altered, False))
    rows += rows_of("no space left at some write", full_disks(8 // share))
    rows += rows_of("Ctrl-C", ctrl_c(8 // share))
    rows += rows_of("particles where the target is NaN", walls(12 // share))
    rows += rows_of("metric that cannot be factorised", saddles(12 // share))
    rows += rows_of("needle of height 1e8 under a particle", needles(12 // share))
    rows += rows_of("steps that explode", explosions(12 // share))
    lost = int(sum(row.mean for row in rows if row.metric == "lost"))
    print(f"\n{int(sum(row.mean for row in rows if row.metric == 'injected'))} faults, {lost} lost")
    if options.json:
        write_results(options.json, "faults", {**environment(), "machine": os.uname().machine}, rows)
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
