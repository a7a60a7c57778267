"""Checkpoints: a run that was stopped ends as if it never was, and goes on from nothing but its own checkpoints."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from tests.helpers import killed_run
from tests.inference.test_fit import RESUMED, points_of, regression
from tests.samplers.test_sampler_contract import SAMPLERS, SamplerCase


class Killed(BaseException):
    """Not an `Exception`: nothing may catch it."""


def killer(step: int):
    def callback(now, state, info):
        if now >= step:
            raise Killed

    return callback


def assert_same_end(actual: sk.Result, expected: sk.Result):
    assert (actual.status, actual.num_steps) == (expected.status, expected.num_steps)
    for one, other in zip(killed_run.end_of(actual), killed_run.end_of(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


IN_SINGLE = ["svgd, rbf", "average, diagonal, decayed, refreshed", "psgld"]
STOPPED = [(case, dtype) for case in SAMPLERS for dtype, names in {"float64": RESUMED, "float32": IN_SINGLE}.items()
           if case.name in names]  # fmt: skip


IN_DEFAULT_SET = {("svgd, rbf", "float32"), ("mixture, anchors given, diagonal, decayed", "float64")}
"""One plain sampler in single precision, and one whose kernel rule keeps a state."""


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case, dtype, marks=[] if (case.name, dtype) in IN_DEFAULT_SET else pytest.mark.thorough)
        for case, dtype in STOPPED
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_run_that_died_goes_on_bit_for_bit(case: SamplerCase, dtype, tmp_path):
    problem = regression(20)
    data = jax.tree.map(lambda leaf: leaf.astype(dtype), problem.data)
    sampler, particles = case.make(4, 2), points_of(4, 2).astype(dtype)

    def fit(**options):
        return sk.fit(
            jr.key(1), problem.target, sampler, particles, data,
            num_steps=11, batch_size=5, record_every=2, record_particles=True, **options,
        )  # fmt: skip

    whole = fit()
    saving = {"checkpoint": tmp_path / "run", "checkpoint_every": 3}
    for step in (4, 10):
        with pytest.raises(Killed):
            fit(callback=killer(step), **saving)
    assert_same_end(fit(**saving), whole)
    np.testing.assert_array_equal(fit(**saving).history.particles, whole.history.particles)


def gaussian(x, data):
    return -0.5 * jnp.sum((x - data) ** 2)


def shifted(x, data):
    return -0.5 * jnp.sum((x - data - 0.1) ** 2)


STARTS = np.random.default_rng(1).normal(size=(5, 2))


def fit_gaussian(directory, num_steps: int = 20, **changes):
    arguments = {
        "key": jr.key(0), "target": gaussian, "sampler": sk.svgd(), "particles": STARTS, "data": np.zeros(2),
        "checkpoint_every": 5, **changes,
    }  # fmt: skip
    return sk.fit(**arguments, num_steps=num_steps, checkpoint=directory)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished") / "deep" / "run"
    return directory, fit_gaussian(str(directory))


def copied(finished, tmp_path: Path) -> Path:
    for path in finished[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_a_finished_run_is_not_run_again(finished):
    directory, result = finished
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert_same_end(fit_gaussian(directory), result)
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def test_more_steps_go_further_and_fewer_are_refused(finished, tmp_path):
    directory = copied(finished, tmp_path)
    assert_same_end(fit_gaussian(directory, 33, checkpoint_every=None), fit_gaussian(tmp_path / "other", 33))
    with pytest.raises(ValueError, match="`num_steps` must be at least 33"):
        fit_gaussian(directory)


def test_lines_of_a_run_that_goes_further_are_those_of_one_long_run(tmp_path):
    fit_gaussian(tmp_path / "parts", 10, record_every=4)
    parts = fit_gaussian(tmp_path / "parts", 21, record_every=4)
    np.testing.assert_array_equal(parts.history.step, [4, 8, 12, 16, 20, 21])
    assert_same_end(parts, fit_gaussian(tmp_path / "whole", 21, record_every=4))


@pytest.mark.parametrize("harmed", [1, 2])
def test_damaged_checkpoints_are_passed_over_with_a_warning_and_later_ones_gone_on_from(harmed, finished, tmp_path):
    directory = copied(finished, tmp_path)
    for path in sorted(directory.glob("*.npz"))[-harmed:]:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
    with pytest.warns(RuntimeWarning, match="truncated or altered") as warned, pytest.raises(Killed):
        fit_gaussian(directory, checkpoint_every=2, callback=killer(19))
    assert [one.filename for one in warned] == [__file__] * harmed
    assert sorted(path.name for path in directory.glob("*.npz")) == ["step-000000000016.npz", "step-000000000018.npz"]
    steps = []
    result = fit_gaussian(directory, checkpoint_every=2, callback=lambda step, state, info: steps.append(step))
    assert steps == [19, 20]
    assert_same_end(result, finished[1])


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"particles": STARTS[:4]}, "number of particles (was 5, is 4)"),
        ({"particles": STARTS + 1e-9}, "first particles"),
        ({"particles": STARTS.astype(np.float32), "data": np.zeros(2, np.float32)}, "dtype (was float64, is float32)"),
        ({"sampler": sk.svgd(sk.IMQ())}, "program of the steps"),
        ({"sampler": sk.svgd(sk.RBF(2.0))}, "sampler"),
        ({"sampler": sk.svgd(optimizer=0.2)}, "program of the steps"),
        ({"sampler": sk.sgld(0.1)}, "sampler"),
        ({"data": np.zeros((1, 2))}, "data shapes (was ['float64[2]'], is ['float64[1, 2]'])"),
        ({"data": np.full(2, 1e-9)}, "data"),
        ({"target": shifted}, "log densities"),
        ({"key": jr.key(1)}, "key (was ['threefry2x32', [0, 0]], is ['threefry2x32', [0, 1]])"),
        ({"key": jr.key(0, impl="rbg")}, "key"),
        ({"tolerance": 0.1}, "tolerance (was None, is 0.1)"),
        ({"record_every": 2}, "record_every (was 1, is 2)"),
        ({"tempering": lambda step: jnp.ones(())}, "tempering (was None, is <lambda>)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_run_is_refused_and_the_difference_named(changes, named, finished):
    with pytest.raises(sk.CheckpointError, match="is of another run") as raised, jax.numpy_rank_promotion("allow"):
        fit_gaussian(finished[0], **changes)
    assert named in str(raised.value)
    assert named.partition(" (")[0] in raised.value.differences


def test_a_run_goes_on_from_the_particles_of_another_one(finished):
    further = fit_gaussian(None, 4, checkpoint_every=None, target=shifted, particles=sk.load(finished[0]))
    assert further.num_steps == 24


def test_other_versions_are_refused(finished, monkeypatch):
    monkeypatch.setattr("steinkern.inference.checkpoint.versions", lambda: {"python": "4"})
    with pytest.raises(sk.CheckpointError, match=r"version of python \(was 3.*, is 4\)"):
        fit_gaussian(finished[0])


@pytest.mark.usefixtures("as_installed")
def test_numbers_of_numpy_and_whole_ones_are_the_same_run(finished, tmp_path):
    assert_same_end(fit_gaussian(finished[0], max_move=100, checkpoint_every=np.int64(5)), finished[1])
    numbers = {"record_every": 2, "tolerance": 2.0**-20, "max_move": 64.0}
    of_numpy = {"record_every": np.int64(2), "tolerance": np.float32(2.0**-20), "max_move": jnp.asarray(64)}
    with pytest.warns(sk.SteinWarning, match="has not converged"):
        fit_gaussian(tmp_path, np.int32(4), **of_numpy)
    with pytest.warns(sk.SteinWarning, match="has not converged"):
        assert fit_gaussian(tmp_path, 5, **numbers).num_steps == 5


def test_minibatches_are_the_same_with_and_without_double_precision():
    target = sk.Posterior(lambda x: 0.0, lambda x, row: 0.0, 1000)
    rows = np.arange(1000, dtype=np.int32)
    wide = target.batch(rows, 8, jr.key(3))
    with jax.enable_x64(False):
        np.testing.assert_array_equal(target.batch(rows, 8, jr.key(3)), wide)


OUTSIDE = {"scale": 1.0}


@jax.custom_jvp
def called_back(x, data):
    """A log density that JAX does not see, with a gradient of its own."""
    kind = jax.ShapeDtypeStruct((), x.dtype)
    return jax.pure_callback(
        lambda x: np.asarray(-0.5 * OUTSIDE["scale"] * np.sum(x**2)), kind, x, vmap_method="sequential"
    )


called_back.defjvp(lambda values, slopes: (called_back(*values), -jnp.vdot(values[0], slopes[0])))


def test_host_callbacks_are_told_by_their_values(tmp_path, monkeypatch):
    fit_gaussian(tmp_path, 2, target=called_back)
    assert fit_gaussian(tmp_path, 3, target=called_back).num_steps == 3
    monkeypatch.setitem(OUTSIDE, "scale", 1.0001)
    with pytest.raises(sk.CheckpointError, match=r"What differs: log densities \("):
        fit_gaussian(tmp_path, 4, target=called_back)


def test_a_checkpoint_is_a_result_that_loads(tmp_path):
    target = sk.LogDensity(lambda x: -0.5 * jnp.sum(x) - jnp.sum(jnp.log(x)) ** 2, support=sk.positive)
    options = {
        "particles": np.exp(STARTS),
        "data": None,
        "target": target,
        "record_particles": True,
        "checkpoint_every": 3,
    }
    with pytest.raises(Killed):
        fit_gaussian(tmp_path, 7, callback=killer(7), **options)
    so_far, whole = sk.load(tmp_path, target=target), fit_gaussian(None, 6, **{**options, "checkpoint_every": None})
    assert (so_far.num_steps, so_far.status, so_far.message.code) == (6, sk.Status.STOPPED, "checkpoint")
    np.testing.assert_array_equal(so_far.points, whole.points)
    np.testing.assert_allclose(so_far.particles, whole.particles, rtol=1e-12)
    np.testing.assert_allclose(so_far.history.particles, whole.history.particles, rtol=1e-12)
    np.testing.assert_array_equal(so_far.history.stein_ratio, whole.history.stein_ratio)
    assert np.isfinite(so_far.scores()).all()


def test_going_on_from_a_result_with_checkpoints(tmp_path):
    first = fit_gaussian(tmp_path / "first", 7)
    options = {"particles": first, "checkpoint_every": 1}
    with pytest.raises(Killed):
        fit_gaussian(tmp_path / "second", 13, callback=killer(9), **options)
    result = fit_gaussian(tmp_path / "second", 13, **options)
    whole = fit_gaussian(tmp_path / "whole", 20)
    np.testing.assert_array_equal(result.points, whole.points)
    np.testing.assert_array_equal(result.history.step, np.arange(8, 21))


def test_a_converged_run_stays_converged(tmp_path):
    fits = [fit_gaussian(tmp_path, 5000, tolerance=0.5) for _ in range(2)]
    assert fits[0].status is sk.Status.CONVERGED
    assert_same_end(fits[1], fits[0])


# Trouble with the disk, and two runs in one directory.


def test_a_full_disk_stops_the_run_with_its_result_and_the_last_good_checkpoint_intact(tmp_path, monkeypatch, finished):
    fit_gaussian(tmp_path, 10)
    names = sorted(os.listdir(tmp_path))

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            sk.CheckpointError, match=r"step 15 could not .* No space left on device.*; make room"
        ) as caught:
            fit_gaussian(tmp_path)
    assert (caught.value.result.num_steps, caught.value.result.status) == (15, sk.Status.STOPPED)
    assert sorted(os.listdir(tmp_path)) == names
    assert_same_end(fit_gaussian(tmp_path), finished[1])


def test_a_directory_that_cannot_be_written_to_is_refused_before_any_long_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"`checkpoint` .*file cannot be written to"):
        fit_gaussian(tmp_path / "file")


def test_two_runs_do_not_share_a_directory(tmp_path):
    errors = []

    def again(step, state, info):
        if step == 1:
            with pytest.raises(OSError, match="is in use: another run writes there") as caught:
                fit_gaussian(tmp_path, 4)
            errors.append(caught.value)

    fit_gaussian(tmp_path, 5, callback=again)
    assert errors
    with pytest.raises(ValueError, match="`num_steps` must be at least 5"):
        fit_gaussian(tmp_path, 2)
    assert fit_gaussian(tmp_path, 6).num_steps == 6  # it is free again, after a refusal too


# SIGKILL.


def start(directory: Path, *arguments: str) -> subprocess.Popen:
    """The run in a process of its own."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.helpers.killed_run", str(directory), *arguments]
    environment = {**os.environ, "PYTHONPATH": paths}
    with (directory / "errors").open("w") as errors:
        return subprocess.Popen(command, env=environment, cwd=root, stderr=errors)


def kill_at(directory: Path, dtype: str, step: int, place: str) -> None:
    """SIGKILL a run where it waits: past `step`, or in the middle of writing a checkpoint there."""
    (directory / "waiting").unlink(missing_ok=True)
    with start(directory, dtype, str(step), place) as process:
        while not (directory / "waiting").exists():
            assert process.poll() is None, (directory / "errors").read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert place == "stepping" or any((directory / "checkpoints").glob("*.partial"))


def kill_and_resume(directory: Path, dtype: str, number: int, seed: int) -> None:
    """Kill a run so many times, every second time during a write, let it end, and compare with one without kills."""
    steps = np.sort(np.random.default_rng(seed).integers(0, killed_run.NUM_STEPS - 200, number))
    for turn, step in enumerate(steps):
        place = "stepping" if turn % 2 else "writing"
        kill_at(directory, dtype, max(int(step), killed_run.newest(directory)), place)
    with start(directory, dtype) as process:
        assert process.wait() == 0, (directory / "errors").read_text()
    with np.load(directory / "end.npz", allow_pickle=False) as end:
        actual = [end[name] for name in end.files]
    expected = killed_run.end_of(killed_run.run(None, dtype))
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.thorough
def test_a_run_killed_three_times_ends_bit_for_bit_as_one_that_was_not(tmp_path):
    kill_and_resume(tmp_path, "float32", 3, seed=0)


# Campaigns: `pytest -m soak tests/inference/test_checkpoint.py`.


@pytest.mark.soak
@pytest.mark.parametrize(("dtype", "number"), [("float32", 25), ("float64", 25)])
def test_a_run_killed_many_times_ends_bit_for_bit_as_one_that_was_not(dtype, number, tmp_path):
    kill_and_resume(tmp_path, dtype, number, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("number", [25])
def test_a_file_system_that_is_full_at_any_byte_loses_nothing(number, finished, tmp_path):
    resource = pytest.importorskip("resource")
    largest = max(path.stat().st_size for path in finished[0].glob("*.npz"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for turn, size in enumerate(np.linspace(1, largest - 1, number).astype(int)):
        fit_gaussian(tmp_path / str(turn), 10)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), limits[1]))
        try:
            with pytest.raises(sk.CheckpointError, match="File too large"):
                fit_gaussian(tmp_path / str(turn))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert len(list((tmp_path / str(turn)).glob("step-*"))) == 2
        assert_same_end(fit_gaussian(tmp_path / str(turn)), finished[1])
