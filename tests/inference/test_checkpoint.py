"""Checkpoints: what is read is what was written, damage is seen, and a run that was stopped ends as if it never was."""

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk
from steinkern.core import checkpoint as files
from steinkern.core import checkpoint_file
from steinkern.core.checkpoint_file import CheckpointContents, DamagedCheckpoint, read, write
from steinkern.core.description import describe
from tests import killed_run
from tests.inference.test_fit import RESUMED, points_of, regression
from tests.samplers.test_sampler_contract import SAMPLERS, SamplerCase

SETTINGS = {"number of particles": 3, "sampler": {"class": "SVGD", "rates": [0.1, 0.2]}}
ARRAYS = [np.arange(6.0).reshape(2, 3), np.asarray(1.5, np.float32), np.zeros((0, 2)), np.array([True, False]),
          np.arange(3, dtype=jnp.bfloat16), np.array([1, 2], np.uint32)]  # fmt: skip


def saved_file(directory: Path) -> Path:
    write(directory / "step-000000000007.ckpt", CheckpointContents(7, SETTINGS, {"stride": 2}, ARRAYS))
    return directory / "step-000000000007.ckpt"


# The files.


def test_what_is_read_is_what_was_written(tmp_path):
    saved = read(saved_file(tmp_path))
    assert saved[:3] == (7, SETTINGS, {"stride": 2})
    for actual, expected in zip(saved.arrays, ARRAYS, strict=True):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual, expected)


def test_a_change_of_any_byte_is_seen(tmp_path):
    path = saved_file(tmp_path)
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        with pytest.raises(DamagedCheckpoint, match="truncated or altered"):
            read(path)


def test_any_truncation_and_any_surplus_is_seen(tmp_path):
    path = saved_file(tmp_path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedCheckpoint):
            read(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(DamagedCheckpoint):
        read(path)


def forged(path: Path, header: bytes, length: int | None = None, body: bytes = b"") -> Path:
    """A file whose checksum is right, as somebody who knows the format could make it."""
    content = checkpoint_file.FORMAT + (len(header) if length is None else length).to_bytes(8, "little") + header + body
    path.write_bytes(content + hashlib.sha256(content).digest())
    return path


def header(**changes) -> bytes:
    return json.dumps({"step": 1, "settings": {}, "notes": {}, "arrays": []} | changes).encode()


@pytest.mark.parametrize(
    "forgery",
    [
        {"header": header(), "length": 2**63},
        {"header": b"[" * 100_000},
        {"header": b"3"},
        {"header": header(step=-1)},
        {"header": header(step=True)},
        {"header": header(settings=[])},
        {"header": header(arrays=[["object", [1]]]), "body": bytes(8)},
        {"header": header(arrays=[["float64", [-1]]])},
        {"header": header(arrays=[["float64", [2**62, 2**62]]])},
        {"header": header(arrays=[["float64", 3]])},
        {"header": header(arrays=7)},
        {"header": header(arrays=[["float64", [2**62] * 200_000]])},
        {"header": header(arrays=[["bool", [1] * 100]]), "body": b"\0"},
        {"header": header(arrays=[["float64", [0, 2**47, 2**47]]])},
        {"header": header(arrays=[[["float64"], [1]]]), "body": bytes(8)},
    ],
    ids=["huge header", "deep", "number", "negative step", "boolean step", "no settings", "objects", "negative axis",
         "huge array", "no shape", "no arrays", "a product of hours", "too many axes", "zero times too much",
         "no name of a type"],
)  # fmt: skip
def test_a_forged_file_is_refused_before_it_costs_memory(forgery, tmp_path):
    path = forged(tmp_path / "step-1.ckpt", **forgery)
    with pytest.raises(DamagedCheckpoint):
        read(path)


def test_numbers_that_could_not_be_read_again_are_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"array of complex64.* a checkpoint can hold bool, bfloat16"):
        write(tmp_path / "step-1.ckpt", CheckpointContents(1, {}, {}, [np.zeros(2, np.complex64)]))
    assert not os.listdir(tmp_path)


def test_two_are_kept_and_what_a_kill_left_behind_is_cleared(tmp_path):
    (tmp_path / "step-000000000009.partial").write_bytes(b"half")
    store = files.CheckpointDirectory(tmp_path, SETTINGS)
    for step in (1, 2, 3):
        store.save(step, ARRAYS, {})
    assert sorted(os.listdir(tmp_path)) == ["step-000000000002.ckpt", "step-000000000003.ckpt"]
    assert store.latest().step == 3


def test_no_code_is_loaded():
    source = Path(files.__file__).parents[1]
    for path in source.rglob("*.py"):
        loaded = re.search(r"\bpickle\b|allow_pickle=True|(?<![.\w])(eval|exec)\(|joblib|yaml", path.read_text())
        assert not loaded, path


# Runs.


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


def in_default_set(case: SamplerCase, dtype: str) -> bool:
    """One plain sampler in single precision, and one whose kernel rule keeps a state."""
    return (case.name, dtype) in (("svgd, rbf", "float32"), ("mixture, anchors given, diagonal, decayed", "float64"))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [pytest.param(*one, marks=[] if in_default_set(*one) else pytest.mark.thorough) for one in STOPPED],
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
    saving = {"checkpoint": tmp_path / "run", "every": 3}
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
        "every": 5, **changes,
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
    assert_same_end(fit_gaussian(directory, 33, every=None), fit_gaussian(tmp_path / "other", 33))
    with pytest.raises(ValueError, match="`num_steps` must be at least 33"):
        fit_gaussian(directory)


def test_lines_of_a_run_that_goes_further_are_those_of_one_long_run(tmp_path):
    fit_gaussian(tmp_path / "parts", 10, record_every=4)
    parts = fit_gaussian(tmp_path / "parts", 21, record_every=4)
    np.testing.assert_array_equal(parts.history.step, [4, 8, 12, 16, 20, 21])
    assert_same_end(parts, fit_gaussian(tmp_path / "whole", 21, record_every=4))


@pytest.mark.parametrize("harm", ["truncated", "altered", "empty"])
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(harm, finished, tmp_path):
    directory = copied(finished, tmp_path)
    newest = max(directory.iterdir())
    content = newest.read_bytes()
    middle = len(content) // 2
    harmed = {"truncated": content[:middle], "empty": b""}
    newest.write_bytes(harmed.get(harm, content[:middle] + b"?" + content[middle + 1 :]))
    seen = []
    with pytest.warns(RuntimeWarning, match="truncated or altered. The one before it is used"):
        result = fit_gaussian(directory, record_every=1, callback=lambda step, state, info: seen.append(step))
    assert seen == [16, 17, 18, 19, 20]
    assert_same_end(result, finished[1])


def test_where_no_checkpoint_is_whole_the_run_starts_anew_and_says_so(finished, tmp_path):
    directory = copied(finished, tmp_path)
    for path in directory.iterdir():
        path.write_bytes(b"nothing")
    with pytest.warns(RuntimeWarning) as warned:
        result = fit_gaussian(directory)
    assert [str(one.message).split(". ")[1] for one in warned] == [
        "The one before it is used; the file is kept as step-000000000020.ckpt.damaged.",
        "None is left: the run starts anew; the file is kept as step-000000000015.ckpt.damaged.",
    ]  # fmt: skip
    assert_same_end(result, finished[1])


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"particles": STARTS[:4]}, ("number of particles", "5", "4")),
        ({"particles": STARTS + 1e-9}, ("first particles", "", "")),
        ({"particles": STARTS.astype(np.float32), "data": np.zeros(2, np.float32)}, ("dtype", "float64", "float32")),
        ({"sampler": sk.svgd(sk.IMQ())}, ("sampler.rule.kernel", "RBF", "IMQ")),
        ({"sampler": sk.svgd(sk.RBF(2.0))}, ("sampler.rule.kernel.scalar.bandwidth", "Median", "2.0")),
        ({"sampler": sk.svgd(optimiser=0.2)}, ("sampler.optimiser", "0.3", "0.2")),
        ({"sampler": sk.sgld(0.1)}, ("sampler.class", "SVGD", "SGLD")),
        ({"data": np.zeros((1, 2))}, ("data shapes", "[2]", "[1, 2]")),
        ({"data": np.full(2, 1e-9)}, ("data", "", "")),
        ({"target": shifted}, ("target.function", "gaussian", "shifted")),
        ({"key": jr.key(1)}, ("key", "0", "1")),
        ({"tolerance": 0.1}, ("tolerance", "None", "0.1")),
        ({"record_every": 2}, ("record_every", "1", "2")),
        ({"tempering": lambda step: jnp.ones(())}, ("tempering", "None", "lambda")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_another_run_is_refused_and_the_difference_named(changes, named, finished):
    with pytest.raises(ValueError, match="is of another run: its ") as raised, jax.numpy_rank_promotion("allow"):
        fit_gaussian(finished[0], **changes)
    place, before, now = named
    assert f"its {place}" in str(raised.value)
    assert before in str(raised.value).split("here it is")[0]
    assert now in str(raised.value).split("here it is")[1]


def test_the_same_name_for_another_log_density_is_refused(finished, monkeypatch):
    monkeypatch.setattr(shifted, "__qualname__", "gaussian")
    with pytest.raises(ValueError, match="is of another run: its log density or data preparation computes something"):
        fit_gaussian(finished[0], target=shifted)
    monkeypatch.setattr("steinkern.inference.resume.versions", lambda: {"python": "4"})
    with pytest.raises(ValueError, match="log densities at the first particles"):
        fit_gaussian(finished[0], target=shifted)


def test_other_versions_are_warned_of(finished, monkeypatch):
    monkeypatch.setattr("steinkern.inference.resume.versions", lambda: {"python": "4"})
    with pytest.warns(RuntimeWarning, match="may differ in its last digits"):
        fit_gaussian(finished[0])


def test_going_on_from_a_result_with_checkpoints(tmp_path):
    first = fit_gaussian(tmp_path / "first", 7)
    for step in (9, None):
        callback = None if step is None else killer(step)
        try:
            result = fit_gaussian(tmp_path / "second", 13, particles=first, callback=callback, every=1)
        except Killed:
            continue
    whole = fit_gaussian(tmp_path / "whole", 20)
    np.testing.assert_array_equal(result.points, whole.points)
    np.testing.assert_array_equal(result.history.step, np.arange(8, 21))


def test_a_converged_run_stays_converged(tmp_path):
    fits = [fit_gaussian(tmp_path, 5000, tolerance=0.5) for _ in range(2)]
    assert fits[0].status is sk.Status.CONVERGED
    assert_same_end(fits[1], fits[0])


def test_functions_are_described_by_what_they_close_over():
    def loop(x):
        return loop(x)

    assert describe(loop) == {"function": describe(loop)["function"], "loop": "itself"}
    assert describe(optax.adam(0.1)) == describe(optax.adam(0.1)) != describe(optax.adam(0.2))
    assert describe(jax.jit(gaussian)) == describe(gaussian)
    assert describe(float("nan")) == "nan"
    assert describe({"a": np.arange(3)}) != describe({"a": np.arange(3) + 1})


# Trouble with the disk.


def test_a_full_disk_stops_the_run_with_the_last_good_checkpoint_intact(tmp_path, monkeypatch, finished):
    fit_gaussian(tmp_path, 10)
    names = sorted(os.listdir(tmp_path))
    real = os.fsync

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"step 15 could not be written .* No space left on device.* intact; make room"):
        fit_gaussian(tmp_path)
    assert sorted(os.listdir(tmp_path)) == names
    monkeypatch.setattr(os, "fsync", real)
    assert_same_end(fit_gaussian(tmp_path), finished[1])


def test_a_file_that_the_system_refuses_to_let_grow_is_not_left_behind(tmp_path, finished):
    resource = pytest.importorskip("resource")
    store = files.CheckpointDirectory(tmp_path, SETTINGS)
    store.save(1, ARRAYS, {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="could not be written"):
            store.save(2, [np.zeros(10_000)], {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == ["step-000000000001.ckpt"]
    assert store.latest().step == 1


def test_a_directory_that_cannot_be_written_to_is_refused_before_any_long_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"`checkpoint` .*file cannot be written to"):
        fit_gaussian(tmp_path / "file")


# SIGKILL.


def start(directory: Path, *arguments: str) -> subprocess.Popen:
    """The run in a process of its own."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.killed_run", str(directory), *arguments]
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


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_killed_many_times_ends_bit_for_bit_as_one_that_was_not(dtype, tmp_path):
    kill_and_resume(tmp_path, dtype, 25, seed=1)
