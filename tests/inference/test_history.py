"""The history stays bounded and the run its own, however it is watched; and memory does not grow with the steps."""

import sys

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.inference import history
from steinkern.inference.history import Recorder, Records, max_records
from steinkern.samplers.sampler import Info
from tests.helpers.memory import resident_bytes

START = np.random.default_rng(0).normal(size=(6, 2))


def log_density(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4)


def fit(num_steps: int = 100, sampler: sk.samplers.AbstractSampler | None = None, **options) -> sk.Result:
    return sk.fit(jr.key(0), log_density, sampler or sk.sgld(0.01), START, num_steps=num_steps, **options)


def records(steps) -> Records:
    numbers = np.asarray(steps, float)
    return np.asarray(steps), Info(numbers, 2 * numbers, 3 * numbers), None


# Thinning.


@pytest.mark.parametrize("sizes", [[100], [1] * 100, [7, 93], [64, 36]], ids=str)
@pytest.mark.parametrize(("most", "stride"), [(200, 1), (100, 1), (99, 2), (20, 8)])
def test_thinned_lines_are_those_of_a_run_that_recorded_less_often(most, stride, sizes):
    recorder, start = Recorder(5, 1, most), 5
    for size in sizes:
        recorder.add(records(range(start + 1, start + size + 1)))
        start += size
    steps, info, _ = recorder.records()
    expected = [step for step in range(6, 106) if (step - 5) % stride == 0 or step == 105]
    np.testing.assert_array_equal(steps, expected)
    np.testing.assert_array_equal(info.stein_ratio, 3.0 * np.asarray(expected))
    assert recorder.every == stride


def test_a_fit_of_many_lines_is_thinned_and_says_which_are_left(monkeypatch):
    whole = fit().history
    monkeypatch.setattr(history, "MAX_RECORDS", 16)
    thinned = fit(record_particles=True).history
    np.testing.assert_array_equal(thinned.step, [*range(8, 101, 8), 100])
    # Keeping particles makes another program, and a hundred steps pass its rounding on.
    np.testing.assert_allclose(thinned.velocity_norm, whole.velocity_norm[thinned.step - 1], rtol=1e-8)
    assert thinned.particles.shape == (13, 6, 2)


def test_a_thinned_run_goes_on_from_its_checkpoint_as_one_that_never_stopped(monkeypatch, tmp_path):
    monkeypatch.setattr(history, "MAX_RECORDS", 16)
    whole = fit().history
    for num_steps in (37, 50, 100):
        parts = fit(num_steps, checkpoint=tmp_path, checkpoint_every=10).history
    np.testing.assert_array_equal(parts.step, whole.step)
    np.testing.assert_array_equal(parts.velocity_norm, whole.velocity_norm)


def test_a_callback_is_called_at_every_record_thinned_or_not(monkeypatch):
    monkeypatch.setattr(history, "MAX_RECORDS", 16)
    seen = []
    fit(record_every=2, callback=lambda step, state, info: seen.append(step))
    assert seen == list(range(2, 101, 2))


def test_lines_are_bounded_by_number_and_by_size():
    assert max_records(4) == 65_536
    assert max_records(2**20) == 64
    assert max_records(2**40) == 16


# Determinism.


@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["smallest chunks", "largest chunks"])
@pytest.mark.parametrize("record_every", [1, 7, 1000])
@pytest.mark.parametrize("progress", [False, True], ids=["quiet", "with a bar"])
def test_neither_chunks_nor_records_nor_a_bar_change_a_bit(seconds, record_every, progress, monkeypatch, capsys):
    expected = fit(300)
    monkeypatch.setattr(sys.modules["steinkern.inference.run"], "_CHUNK_SECONDS", seconds)
    actual = fit(300, record_every=record_every, progress=progress)
    np.testing.assert_array_equal(actual.points, expected.points)
    for name in ("velocity_norm", "stein_ratio"):
        every, some = (getattr(result.history, name) for result in (expected, actual))
        np.testing.assert_array_equal(some, every[actual.history.step - 1])


# Memory.


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_steps():
    sizes = []
    sampler = sk.svgd()
    fit(1000, sampler)
    fit(
        100_000, sampler, record_every=20,
        callback=lambda step, state, info: sizes.append(resident_bytes()) if step % 10_000 == 0 else None,
    )  # fmt: skip
    assert len(sizes) == 10
    assert max(sizes) <= 1.05 * sizes[0]
